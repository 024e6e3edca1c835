package named_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

// The test binary is its own replica: with this variable set it plays a role
// instead of running tests. A role says "ready", and begins when it is told to.
const roleEnv = "SCHEDLOCK_NAMED_TEST_ROLE"

var roles = map[string]func(args []string) error{"count": count, "take one": takeOne, "hold": hold}

// openLocks opens a database that a DSN names, makes its tables, and returns
// its locks.
func openLocks(dsn string,
	opts ...named.Option) (locks *named.Locks, close func() error, err error) {
	var store driver.Store
	if strings.HasPrefix(dsn, "postgres://") {
		store, err = postgres.Opener(dsn)(ctx)
	} else {
		store, err = sqlite.Opener(dsn)(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	s := store.(interface {
		Named() namedlock.Store
		Close() error
	})
	locks, err = named.New(s.Named(), append([]named.Option{silent}, opts...)...)
	return locks, s.Close, err
}

// ready waits until the parent says to begin, and returns what else it says.
func ready() *bufio.Scanner {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	in.Scan()
	return in
}

// count adds one to a number in one of two files, again and again, in eight
// threads. Only the named lock of that file keeps others from losing it.
func count(args []string) error {
	dsn, dir := args[0], args[1]
	rounds, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	locks, closeDB, err := openLocks(dsn, named.WithMaxPause(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer closeDB()
	ready()
	var (
		wg   sync.WaitGroup
		left atomic.Int64
		errs = make(chan error, 8)
	)
	left.Store(int64(rounds))
	for range 8 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				name := []string{"a", "b"}[rand.IntN(2)]
				err := locks.WithLock(ctx, name, func(context.Context, *named.Lock) error {
					return addOne(filepath.Join(dir, name))
				})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func addOne(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// takeOne takes a lock of a database that may not exist, says how that ended,
// and keeps it until the parent is gone.
func takeOne(args []string) error {
	in := ready()
	locks, closeDB, err := openLocks(args[0])
	if err != nil {
		return err
	}
	defer closeDB()
	lock, err := locks.TryLock(ctx, "x")
	switch held, isHeld := errors.AsType[*named.HeldError](err); {
	case err == nil:
		lock.KeepAlive()
		fmt.Println("won", os.Getpid())
	case isHeld && errors.Is(err, schedlock.ErrHeld):
		fmt.Println("held", held.Info.PID)
	default:
		return err
	}
	in.Scan()
	if lock != nil {
		return lock.Unlock(ctx)
	}
	return nil
}

// holdTTL lets a process on a busy machine keep what it has.
const holdTTL = 4 * time.Second

// hold takes a lock, keeps it alive, and says what becomes of it when the
// process was stopped meanwhile.
func hold(args []string) error {
	locks, closeDB, err := openLocks(args[0], named.WithTTL(holdTTL))
	if err != nil {
		return err
	}
	defer closeDB()
	ready()
	lock, err := locks.TryLock(ctx, "x")
	if err != nil {
		return err
	}
	lock.KeepAlive()
	fmt.Println("holds", lock.Term())
	<-lock.Done()
	said := func(err error) string {
		switch {
		case err == nil:
			return "no error"
		case errors.Is(err, driver.ErrLost):
			return "lost"
		}
		return err.Error()
	}
	fmt.Println(said(lock.Err()), said(lock.Extend(ctx)), said(lock.Unlock(ctx)))
	return nil
}

// A replica is another process.
type replica struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
}

func newReplica(t *testing.T, role string, args ...string) *replica {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	r := &replica{t: t, cmd: exec.Command(exe, args...)}
	r.cmd.Env = append(child.Environ(), roleEnv+"="+role)
	r.cmd.Stderr = &r.stderr
	r.in, err = r.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := r.cmd.StdoutPipe()
	require.NoError(t, err)
	r.out = bufio.NewReader(stdout)
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	return r
}

func (r *replica) line() string {
	r.t.Helper()
	line, err := r.out.ReadString('\n')
	if err != nil {
		_ = r.cmd.Wait()
		require.NoError(r.t, err, "the replica said: %s%s", line, r.stderr.String())
	}
	return strings.TrimSuffix(line, "\n")
}

func (r *replica) begin() {
	r.t.Helper()
	_, err := fmt.Fprintln(r.in, "begin")
	require.NoError(r.t, err)
}

// finish waits until the process has ended without an error.
func (r *replica) finish() {
	r.t.Helper()
	_ = r.in.Close()
	err := r.cmd.Wait()
	require.NoError(r.t, err, r.stderr.String())
}

// onBoth runs a test on SQLite, in a file that does not exist, and on an empty
// PostgreSQL database.
func onBoth(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, filepath.Join(pgtest.TempDir(t), "app.db"))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, pgtest.Shared(t).Database(t))
	})
}

// locksOn are the locks of the test itself.
func locksOn(t *testing.T, dsn string, opts ...named.Option) *named.Locks {
	t.Helper()
	locks, closeDB, err := openLocks(dsn, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, closeDB()) })
	return locks
}

func TestTwoProcessesOfEightThreadsCountRight(t *testing.T) {
	rounds := 400
	if *soak {
		rounds = 20_000
	}
	onBoth(t, func(t *testing.T, dsn string) {
		dir := pgtest.TempDir(t)
		for _, name := range []string{"a", "b"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("0"), 0o600))
		}
		locksOn(t, dsn)
		var replicas []*replica
		for range 2 {
			replicas = append(replicas, newReplica(t, "count", dsn, dir, strconv.Itoa(rounds/2)))
		}
		for _, r := range replicas {
			require.Equal(t, "ready", r.line())
		}
		start := time.Now()
		for _, r := range replicas {
			r.begin()
		}
		for _, r := range replicas {
			r.finish()
		}
		sum := 0
		for _, name := range []string{"a", "b"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			n, err := strconv.Atoi(string(text))
			require.NoError(t, err)
			require.NotZero(t, n)
			sum += n
		}
		require.Equal(t, rounds, sum)
		t.Logf("%d rounds in %v", rounds, time.Since(start).Round(time.Millisecond))
	})
}

// Each makes the file, or the tables, first.
func TestOfManyProcessesOneTakesALockOfANewDatabase(t *testing.T) {
	n := 12
	if *soak {
		n = 32
	}
	onBoth(t, func(t *testing.T, dsn string) {
		replicas := make([]*replica, n)
		for i := range replicas {
			replicas[i] = newReplica(t, "take one", dsn)
		}
		for _, r := range replicas {
			require.Equal(t, "ready", r.line())
		}
		for _, r := range replicas {
			r.begin()
		}
		said := map[string]int{}
		winner := ""
		for _, r := range replicas {
			line := r.line()
			word, pid, _ := strings.Cut(line, " ")
			said[word]++
			if word == "won" {
				winner = pid
			}
			said["by "+pid]++
		}
		require.Equal(t, map[string]int{"won": 1, "held": n - 1, "by " + winner: n}, said)
		for _, r := range replicas {
			require.NoError(t, r.in.Close())
		}
		for _, r := range replicas {
			r.finish()
		}
		held, err := locksOn(t, dsn).Locked(ctx, "x")
		require.NoError(t, err)
		require.False(t, held, "the winner has released it")
	})
}
