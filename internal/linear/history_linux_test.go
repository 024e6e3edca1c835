package linear

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
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
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
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
	os.Exit(pgtest.RunSeated(m))
}

// An event is a line of a process's file: a call, or the answer to it. Each is written at
// once, so that what a killed process has asked is known.
type event struct {
	ID     int
	At     int64 // CLOCK_MONOTONIC, which all processes share
	Call   *call
	Result *result
}

func now() int64 {
	var ts unix.Timespec
	child.Check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano()
}

// work is what a process does: calls, until it has made as many as it is told to, or
// its stdin ends.
func work() {
	dsn, path := os.Args[1], os.Args[2]
	seed, err := strconv.ParseUint(os.Args[3], 10, 64)
	child.Check(err)
	calls, err := strconv.Atoi(os.Args[4])
	child.Check(err)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	child.Check(err)
	store, err := open(dsn)
	child.Check(err)
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	w := &worker{store: store, file: file, draw: rand.New(rand.NewPCG(seed, 0)),
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

type store interface {
	driver.Store
	Named() namedlock.Store
}

func open(dsn string) (store, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if strings.HasPrefix(dsn, "postgres://") {
		return postgres.Open(ctx, dsn)
	}
	return sqlite.Open(ctx, dsn)
}

// A worker makes one call after the other.
type worker struct {
	store store
	file  *os.File
	draw  *rand.Rand
	owner driver.Owner
	id    int
	view  driver.Snapshot
	refs  map[string]driver.Ref // what it has acquired; those that it has lost, too
}

func (w *worker) write(e event) {
	line, err := json.Marshal(e)
	child.Check(err)
	_, err = w.file.Write(append(line, '\n'))
	child.Check(err)
}

// record makes a call and writes both of its ends.
func (w *worker) record(c call, do func(context.Context) (result, error)) {
	w.id++
	w.write(event{ID: w.id, At: now(), Call: &c})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := do(ctx)
	switch {
	case err == nil:
	case errors.Is(err, driver.ErrLost), errors.Is(err, driver.ErrConflict):
		r.Answer = no
	case errors.Is(err, driver.ErrBlocked):
		r.Answer = blocked
	default:
		r = result{Answer: unknown}
	}
	w.write(event{ID: w.id, At: now(), Result: &r})
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

func answer(so bool) string {
	if so {
		return yes
	}
	return no
}

func keyOf(name string) namedlock.Key {
	return namedlock.Key{Kind: namedlock.KindLock, Name: name}
}

func (w *worker) look(key string) {
	w.record(call{Op: look, Key: key}, func(ctx context.Context) (result, error) {
		r := result{Answer: yes}
		if key != "" {
			row, err := w.store.Named().Look(ctx, keyOf(key))
			if row != nil {
				r.Row = row.Token.String()
			}
			return r, err
		}
		view, err := w.store.Look(ctx)
		if err != nil {
			return r, err
		}
		if w.view = view; view.Row != nil {
			r.Row, r.Beat = view.Row.Token.String(), view.Row.Beat
		}
		if view.Newest != nil {
			r.Newest = view.Newest.Token.String()
		}
		return r, nil
	})
}

func (w *worker) acquire(key string) {
	ref := driver.Ref{Owner: w.owner, Token: driver.NewToken()}
	c := call{Op: acquire, Key: key, Token: ref.Token.String()}
	if key == "" {
		if w.view.Row != nil {
			c.Row, c.Beat = w.view.Row.Token.String(), w.view.Row.Beat
		}
		if w.view.Newest != nil {
			c.Newest = w.view.Newest.Token.String()
		}
	}
	w.record(c, func(ctx context.Context) (r result, err error) {
		if key != "" {
			r.Term, _, err = w.store.Named().Take(ctx, namedlock.Claim{Key: keyOf(key), Owner: w.owner,
				Token: ref.Token, TTL: time.Hour})
		} else {
			var grant driver.Grant
			grant, err = w.store.Acquire(ctx, driver.Claim{Ref: ref, Timing: timing,
				Expected: w.view, Reason: driver.EndExpired, Watched: true})
			r.Term = grant.Term
		}
		r.Answer = answer(r.Term != 0)
		if ref.Term = r.Term; r.Term != 0 {
			w.refs[key] = ref
		}
		return r, err
	})
}

func (w *worker) renew(key string, ref driver.Ref) {
	w.record(call{Op: renew, Key: key, Token: ref.Token.String()},
		func(ctx context.Context) (result, error) {
			if key == "" {
				_, err := w.store.Heartbeat(ctx, ref, driver.StateLeading)
				return result{Answer: yes}, err
			}
			extended, err := w.store.Named().Extend(ctx, named(key, ref), time.Hour)
			return result{Answer: answer(extended)}, err
		})
}

func (w *worker) release(key string, ref driver.Ref) {
	w.record(call{Op: release, Key: key, Token: ref.Token.String()},
		func(ctx context.Context) (result, error) {
			if key == "" {
				deleted, err := w.store.Release(ctx, ref, driver.EndReleased)
				return result{Answer: answer(deleted)}, err
			}
			released, err := w.store.Named().Release(ctx, named(key, ref), false)
			return result{Answer: answer(released)}, err
		})
}

func named(key string, ref driver.Ref) namedlock.Ref {
	return namedlock.Ref{Key: keyOf(key), Token: ref.Token, Term: ref.Term}
}

// read returns what a process has written. A call without an answer may take effect at any
// later time, or never.
func read(t testing.TB, path string, client int) (history []porcupine.Operation) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
		if e.Call != nil {
			history = append(history, porcupine.Operation{ClientId: client, Input: *e.Call,
				Call: e.At, Output: result{Answer: unknown}, Return: math.MaxInt64})
			continue
		}
		last := &history[len(history)-1]
		last.Return, last.Output = e.At, *e.Result
		if e.Result.Answer == unknown {
			last.Return = math.MaxInt64
		}
	}
	return history
}

// A history of four processes: one after the other is stopped for a while, and some are
// killed and followed by another.
func record(t testing.TB, dsn string, seed uint64) (history []porcupine.Operation) {
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
	for i, path := range files {
		history = append(history, read(t, path, i)...)
	}
	return history
}

func TestTheStoresAreLinearizable(t *testing.T) {
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range *histories {
				seed := uint64(i) + rand.Uint64()
				history := record(t, fresh(t), seed)
				count := map[string]int{}
				for _, op := range history {
					count[op.Input.(call).Op+" "+op.Output.(result).Answer]++
				}
				t.Logf("seed %d: %d calls: %v", seed, len(history), count)
				require.Equal(t, porcupine.Ok, check(modelOf(name == "PostgreSQL"), history),
					"seed %d", seed)
				require.True(t, termsGrow(history), "seed %d", seed)
				for _, op := range []string{look, acquire, renew, release} {
					require.NotZero(t, count[op+" "+yes], op)
				}
				require.NotZero(t, count[acquire+" "+no])
			}
		})
	}
}
