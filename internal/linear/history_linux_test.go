package linear

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/mysql"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

var (
	histories = flag.Int("linear.histories", 2, "how many histories of each database")
	length    = flag.Int("linear.calls", 400, "how many calls each process makes")
)

func TestMain(m *testing.M) {
	child.Modes["work"] = work
	if _, ok := os.LookupEnv(child.Env); ok {
		child.Main(m)
	}
	code := pgtest.RunSeated(m)
	mytest.Close()
	os.Exit(code)
}

// work is what a process does: calls, until it has made as many as it is told to, or
// its stdin ends.
func work() {
	dsn, path := os.Args[1], os.Args[2]
	seed, err := strconv.ParseUint(os.Args[3], 10, 64)
	child.Check(err)
	calls, err := strconv.Atoi(os.Args[4])
	child.Check(err)
	log, err := OpenLog(path)
	child.Check(err)
	store, err := open(dsn)
	child.Check(err)
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	w := &worker{store: &Store{Full: store, Log: log},
		signs: onFile(dsn), draw: rand.New(rand.NewPCG(seed, 0)),
		owner: driver.Owner{PID: os.Getpid(), Hostname: "here"}, refs: map[string]driver.Ref{}}
	w.look("") // nobody claims what he has not seen
	for range calls {
		select {
		case <-ended:
			os.Exit(0)
		default:
			w.step()
		}
	}
	fmt.Println("done")
	<-ended
}

func open(dsn string) (Full, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch {
	case strings.HasPrefix(dsn, "postgres://"):
		return postgres.Open(ctx, dsn)
	case onFile(dsn):
		return sqlite.Open(ctx, dsn)
	}
	return mysql.Open(ctx, dsn)
}

func onFile(dsn string) bool { return strings.HasPrefix(dsn, "/") }

// A worker makes one call after the other.
type worker struct {
	store *Store
	signs bool // that are looked at, unless somebody has watched for long
	draw  *rand.Rand
	owner driver.Owner
	view  driver.Snapshot
	refs  map[string]driver.Ref // what it has acquired; those that it has lost, too
}

var timing = driver.Timing{TTL: time.Hour, RenewDeadline: 45 * time.Minute,
	HeartbeatInterval: time.Minute}

// step makes a call that is drawn. Nobody waits: who has a view takes over, as if the holder had
// been watched for its TTL.
func (w *worker) step() {
	key := [...]string{"", "", "a", "b"}[w.draw.IntN(4)]
	ref, has := w.refs[key]
	switch drawn := w.draw.IntN(10); {
	case drawn < 4:
		w.look(key)
	case drawn < 7 || !has:
		w.acquire(key)
	case drawn < 9:
		w.renew(key, ref)
	default:
		w.release(key, ref)
	}
}

func keyOf(name string) namedlock.Key {
	return namedlock.Key{Kind: namedlock.KindLock, Name: name}
}

// limited is for one call. What is recorded of the lock is Store's.
func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

func (w *worker) look(key string) {
	ctx, cancel := limited()
	defer cancel()
	if key == "" {
		if view, err := w.store.Look(ctx); err == nil {
			w.view = view
		}
		return
	}
	w.store.Log.Record(Call{Op: Look, Key: key}, func() (r Result, err error) {
		row, err := w.store.Named().Look(ctx, keyOf(key))
		if row != nil {
			r.Saw.Token = row.Token.String()
		}
		r.Answer = Yes
		return r, err
	})
}

func (w *worker) acquire(key string) {
	ctx, cancel := limited()
	defer cancel()
	ref := driver.Ref{Owner: w.owner, Token: driver.NewToken()}
	if key == "" {
		expected, watched := w.view, w.view.Row != nil || w.signs || w.draw.IntN(2) == 0
		if r := w.view.Row; r != nil && !w.signs && w.draw.IntN(4) == 0 { // hearsay, often false
			expected.Row, watched = nil, false
			expected.Newest = &driver.Term{Ref: r.Ref, EndedAt: w.view.Now,
				EndReason: driver.EndReleased}
		}
		grant, _ := w.store.Acquire(ctx, driver.Claim{Ref: ref, Timing: timing, Expected: expected,
			Reason: driver.EndExpired, Watched: watched})
		ref.Term = grant.Term
	} else {
		c := Call{Op: Acquire, Key: key, Token: ref.Token.String()}
		w.store.Log.Record(c, func() (r Result, err error) {
			r.Term, _, err = w.store.Named().Take(ctx, namedlock.Claim{Key: keyOf(key),
				Owner: w.owner, Token: ref.Token, TTL: time.Hour})
			r.Answer, ref.Term = answer(r.Term != 0), r.Term
			return r, err
		})
	}
	if ref.Term != 0 {
		w.refs[key] = ref
	}
}

func (w *worker) renew(key string, ref driver.Ref) {
	ctx, cancel := limited()
	defer cancel()
	if key == "" {
		_, _ = w.store.Heartbeat(ctx, ref, driver.StateLeading)
		return
	}
	w.store.Log.Record(Call{Op: Renew, Key: key, Token: ref.Token.String()},
		func() (Result, error) {
			extended, err := w.store.Named().Extend(ctx, named(key, ref), time.Hour)
			return Result{Answer: answer(extended)}, err
		})
}

func (w *worker) release(key string, ref driver.Ref) {
	ctx, cancel := limited()
	defer cancel()
	if key == "" {
		_, _ = w.store.Release(ctx, ref, driver.EndReleased)
		return
	}
	w.store.Log.Record(Call{Op: Release, Key: key, Token: ref.Token.String()},
		func() (Result, error) {
			released, err := w.store.Named().Release(ctx, named(key, ref), false)
			return Result{Answer: answer(released)}, err
		})
}

func named(key string, ref driver.Ref) namedlock.Ref {
	return namedlock.Ref{Key: keyOf(key), Token: ref.Token, Term: ref.Term}
}

// A history of four processes: one after the other is stopped for a while, and some are
// killed and followed by another.
func record(t testing.TB, dsn string, seed uint64) (history []Op) {
	t.Helper()
	dir := t.TempDir()
	draw := rand.New(rand.NewPCG(seed, 1))
	var files []string
	start := func() *child.Process {
		path := filepath.Join(dir, strconv.Itoa(len(files)))
		files = append(files, path)
		p := child.Start(t, "work", dsn, path, strconv.FormatUint(draw.Uint64(), 10),
			strconv.Itoa(*length))
		require.Equal(t, "ready", p.Line())
		return p
	}
	running := []*child.Process{start(), start(), start(), start()}
	const kills = 4
	for range kills {
		for range 2 {
			p := running[draw.IntN(len(running))]
			require.NoError(t, p.Cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(time.Duration(draw.IntN(30)) * time.Millisecond) // is the fault
			require.NoError(t, p.Cmd.Process.Signal(syscall.SIGCONT))
		}
		i := draw.IntN(len(running))
		require.NoError(t, running[i].Cmd.Process.Kill())
		running[i] = start()
	}
	for _, p := range running {
		require.Equal(t, "done", p.Line())
		require.NoError(t, p.Stdin.Close())
		require.NoError(t, p.Cmd.Wait())
	}
	for _, path := range files {
		ops, err := Read(path)
		require.NoError(t, err)
		history = append(history, ops...)
	}
	return history
}

func TestTheStoresAreLinearizable(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	for name, fresh := range map[string]func(t *testing.T) string{
		"SQLite": func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "app.db")
			s, err := sqlite.Opener(path)(t.Context())
			require.NoError(t, err)
			require.NoError(t, s.(*sqlite.Store).Close())
			return path
		},
		"PostgreSQL": func(t *testing.T) string {
			return pgtest.Shared(t).Filled(t, func(url string) {
				s, err := postgres.Opener(url)(t.Context())
				require.NoError(t, err)
				s.(*postgres.Store).Close()
			})
		},
		"MariaDB": func(t *testing.T) string {
			url := mytest.Shared(t).Database(t)
			s, err := mysql.Opener(url)(t.Context())
			require.NoError(t, err)
			require.NoError(t, s.(*mysql.Store).Close())
			return url
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "MariaDB" {
				missing.OnlyFull(t, "starts MariaDB; by default the harness checks its statements")
			}
			for i := range *histories {
				seed := uint64(i) + rand.Uint64()
				history := record(t, fresh(t), seed)
				count := map[string]int{}
				for _, op := range history {
					count[op.Op+" "+op.Answer]++
				}
				t.Logf("seed %d: %d calls: %v", seed, len(history), count)
				var refused []string // because another acquisition is under way
				if name != "SQLite" {
					refused = []string{Acquire}
				}
				result, misfit := Check(history, false, refused...)
				require.Equal(t, porcupine.Ok, result, "seed %d: no place for %v\n%s", seed, misfit,
					Around(history, misfit))
				require.True(t, termsGrow(history), "seed %d", seed)
				for _, op := range []string{Look, Acquire, Renew, Release} {
					require.NotZero(t, count[op+" "+Yes], op)
				}
				require.NotZero(t, count[Acquire+" "+No])
			}
		})
	}
}
