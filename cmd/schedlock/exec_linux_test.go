package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
)

var execFaults = flag.Int("exec.faults", 4, "how many faults TestExecUnderFaults injects")

// inBoth runs a test on a new SQLite file and on a new PostgreSQL database.
func inBoth(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, filepath.Join(folder(t), "app.db"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, pgtest.Shared(t).Database(t))
	})
}

// execOf is schedlock exec on a database.
func execOf(t testing.TB, dsn string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := process(t, append([]string{"exec", "--db", dsn}, args...)...)
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"), "GOMAXPROCS=2")
	return cmd
}

func TestExecPassesOnWhatTheCommandSays(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		run := func(args ...string) result { return finish(t, execOf(t, dsn, args...)) }
		require.Equal(t, result{0, "", ""}, run("true"))
		require.Equal(t, result{1, "", ""}, run("--", "false"))
		require.Equal(t, result{7, "out\n", "err\n"},
			run("sh", "-c", "echo out; echo err >&2; exit 7"))
		require.Equal(t, 128+9, run("sh", "-c", "kill -9 $$").code)
		require.Equal(t, 128+15, run("sh", "-c", "kill -15 $$").code)

		r := run("no-such-command-anywhere")
		require.Equal(t, 127, r.code)
		require.Equal(t, "schedlock: \"no-such-command-anywhere\": no such command in PATH\n", r.err)
		r = run("/dev/null/none")
		require.Equal(t, 126, r.code, r.err)
		r = run("/etc/passwd")
		require.Equal(t, 126, r.code, r.err)
		require.Contains(t, r.err, "permission denied")

		r = run("sh", "-c", `echo "$SCHEDLOCK_NAME $SCHEDLOCK_TERM $SCHEDLOCK_TOKEN"; `+
			`[ -n "$SCHEDLOCK_HOLDER" ]`)
		require.Zero(t, r.code)
		require.Regexp(t, `^scheduler [1-9]\d* [0-9a-f]{32}\n$`, r.out)
		require.Contains(t, run("--name", "nightly", "sh", "-c", "echo $SCHEDLOCK_NAME").out,
			"nightly")
		input := execOf(t, dsn, "cat")
		input.Stdin = strings.NewReader("from stdin")
		require.Equal(t, result{0, "from stdin", ""}, finish(t, input))
		require.Equal(t, exitNothing, call(t, "status", "--db", dsn).code, "it is given back")
	})
}

// A worker is a call of exec whose command runs.
type worker struct {
	t     testing.TB
	cmd   *exec.Cmd
	out   *os.File
	lines *bufio.Scanner
	err   bytes.Buffer
	ended chan struct{}
}

// startExec starts exec; the command must print a line when it runs.
func startExec(t testing.TB, dsn string, args ...string) *worker {
	t.Helper()
	w := &worker{t: t, cmd: execOf(t, dsn, args...), ended: make(chan struct{})}
	w.cmd.Stderr = &w.err
	w.cmd.WaitDelay = time.Second // what is left behind may keep it open
	out, w1, err := os.Pipe()
	require.NoError(t, err)
	w.cmd.Stdout = w1
	w.out, w.lines = out, bufio.NewScanner(out)
	require.NoError(t, w.cmd.Start())
	w1.Close()
	go func() {
		_ = w.cmd.Wait()
		close(w.ended)
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		<-w.ended
		out.Close()
	})
	return w
}

func (w *worker) line() string {
	w.t.Helper()
	require.NoError(w.t, w.out.SetReadDeadline(time.Now().Add(time.Minute)))
	require.True(w.t, w.lines.Scan(), "the command has ended, or says nothing")
	return w.lines.Text()
}

func (w *worker) wait() int {
	w.t.Helper()
	select {
	case <-w.ended:
	case <-time.After(time.Minute):
		require.Fail(w.t, "exec does not end")
	}
	return w.cmd.ProcessState.ExitCode()
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// inner is the process that holds the lock.
func (w *worker) inner() int {
	w.t.Helper()
	pids := childrenOf(w.pid())
	require.Len(w.t, pids, 1)
	return pids[0]
}

func childrenOf(pid int) (pids []int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, f := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(f)
			if err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

func TestExecSaysThatAnotherHoldsTheLock(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		w := startExec(t, dsn, "sh", "-c", "echo up; exec sleep 1000")
		w.line()
		for _, args := range [][]string{{"--no-wait"}, {"--timeout", "300ms"}} {
			r := finish(t, execOf(t, dsn, append(args, "true")...))
			require.Equal(t, exitTemporary, r.code, r.err)
			require.NotEmpty(t, r.err)
			r = finish(t, execOf(t, dsn, append(args, "--skip-ok", "true")...))
			require.Equal(t, result{0, "", ""}, r)
		}
		require.Zero(t, finish(t, execOf(t, dsn, "--no-wait", "--name", "another", "true")).code)
		next := startExec(t, dsn, "echo", "next")
		require.NoError(t, w.cmd.Process.Signal(unix.SIGTERM))
		require.Equal(t, "next", next.line())
		require.Zero(t, next.wait())
		require.Equal(t, 128+15, w.wait(), &w.err)
	})
}

func TestExecGivesTheCommandItsGrace(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		w := startExec(t, dsn, "sh", "-c", `trap 'echo told; exit 3' TERM; echo up; `+
			`while :; do sleep 0.02; done`)
		w.line()
		require.NoError(t, w.cmd.Process.Signal(unix.SIGTERM))
		require.Equal(t, "told", w.line())
		require.Equal(t, 3, w.wait())

		w = startExec(t, dsn, "--grace", "300ms", "sh", "-c", `trap '' TERM; echo up; `+
			`while :; do sleep 0.02; done`)
		w.line()
		require.NoError(t, w.cmd.Process.Signal(unix.SIGTERM))
		require.Equal(t, 128+9, w.wait())

		w = startExec(t, dsn, "sh", "-c", `trap 'echo again' USR1; echo up; `+
			`while :; do sleep 0.02; done`)
		w.line()
		for range 2 {
			require.NoError(t, w.cmd.Process.Signal(unix.SIGUSR1))
			require.Equal(t, "again", w.line())
		}
	})
}

func TestExecEndsWhatTheCommandLeavesBehind(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		// A daemon that has left the group, and whose parents have ended.
		r := finish(t, execOf(t, dsn, "sh", "-c",
			`(setsid sh -c 'sleep 1000 & echo $!; exec sleep 1000' </dev/null &) ; sleep 0.1`))
		require.Zero(t, r.code, r.err)
		pid, err := strconv.Atoi(strings.TrimSpace(r.out))
		require.NoError(t, err)
		require.Equal(t, unix.ESRCH, unix.Kill(pid, 0))
	})
}

func TestExecIsHandedOverByAnOperator(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		script := []string{"--ttl", "6s", "sh", "-c", "echo $SCHEDLOCK_TERM; exec sleep 1000"}
		first := startExec(t, dsn, script...)
		term := first.line()
		second := startExec(t, dsn, script...)
		r := call(t, "release", "--force", "--yes", "--reason", "test", "--db", dsn)
		require.Zero(t, r.code, r.err)
		require.Greater(t, second.line(), term)
		require.NoError(t, second.cmd.Process.Signal(unix.SIGTERM))
		require.Greater(t, first.line(), term, "it has stood by again")
	})
}

func TestExecStartsTheCommandAgain(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		w := startExec(t, dsn, "--restart", "on-failure", "sh", "-c",
			`echo run; [ -e `+filepath.Join(folder(t), "ok")+` ]`)
		w.line()
		w.line()
		w = startExec(t, dsn, "--name", "other", "--restart", "on-failure", "sh", "-c", "echo run")
		w.line()
		require.Zero(t, w.wait())
		w = startExec(t, dsn, "--name", "other", "--restart", "always", "echo", "run")
		w.line()
		w.line()
	})
}

func TestOfManyCronLinesOneRuns(t *testing.T) {
	missing.Long(t, "starts many processes")
	inBoth(t, func(t *testing.T, dsn string) {
		count := 12
		if *execFaults > 4 {
			count = 50
		}
		require.Zero(t, finish(t, execOf(t, dsn, "true")).code) // the tables
		marks := filepath.Join(folder(t), "marks")
		var wg sync.WaitGroup
		codes := make([]int, count)
		for i := range count {
			wg.Go(func() {
				args := []string{"--name", "nightly", "--once-per", "23h", "--", "sh", "-c",
					"echo x >> " + marks}
				if i%2 == 1 {
					args = append([]string{"--skip-ok"}, args...)
				}
				cmd := execOf(t, dsn, args...)
				_ = cmd.Run()
				codes[i] = cmd.ProcessState.ExitCode()
			})
		}
		wg.Wait()
		text, err := os.ReadFile(marks)
		require.NoError(t, err)
		require.Equal(t, "x\n", string(text))
		ran := 0
		for i, code := range codes {
			switch {
			case i%2 == 1 || code == 0:
				require.Zero(t, code)
				ran++
			default:
				require.Equal(t, exitTemporary, code)
			}
		}
		require.LessOrEqual(t, ran, count/2+1)
	})
}

// The beacon writes a line every few milliseconds, and so does its child, which
// leaves the process group: when, who, in which term.
func beacon(path string) {
	if os.Getenv("BEACON_CHILD") == "" {
		cmd := exec.Command("/proc/self/exe", path)
		cmd.Env = append(os.Environ(), "BEACON_CHILD=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		fmt.Fprintf(file, "%d %d %s\n", boot(), os.Getpid(), os.Getenv("SCHEDLOCK_TERM"))
		time.Sleep(5 * time.Millisecond)
	}
}

func boot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

// A beat is one line of a beacon.
type beat struct {
	at   time.Duration
	pid  int
	term int64
}

func beatsOf(t testing.TB, path string) (beats []beat) {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var b beat
		if n, _ := fmt.Sscanf(line, "%d %d %d\n", &b.at, &b.pid, &b.term); n == 3 {
			beats = append(beats, b)
		}
	}
	return beats
}

// requireOneTermAtATime fails if a term goes on after a later one has begun.
func requireOneTermAtATime(t testing.TB, beats []beat) {
	t.Helper()
	first := map[int64]time.Duration{}
	for _, b := range beats {
		if at, ok := first[b.term]; !ok || b.at < at {
			first[b.term] = b.at
		}
	}
	for _, b := range beats {
		for term, at := range first {
			require.False(t, term > b.term && b.at > at,
				"pid %d of term %d was alive %v after term %d had begun", b.pid, b.term, b.at-at,
				term)
		}
	}
}

// fleet keeps some calls of exec running.
type execFleet struct {
	t     *testing.T
	dsn   string
	beats string
	calls []*exec.Cmd
	ended []chan struct{}
}

func (f *execFleet) start(i int) {
	f.t.Helper()
	cmd := execOf(f.t, f.dsn, "--ttl", "3s", "--restart", "always", "--", "env",
		childEnv+"=beacon", binary.path, f.beats)
	cmd.Stderr = os.Stderr
	require.NoError(f.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	f.calls[i], f.ended[i] = cmd, ended
}

// awaitTerm waits until a beacon of a term above one is alive.
func (f *execFleet) awaitTerm(above int64) int64 {
	f.t.Helper()
	var term int64
	require.Eventually(f.t, func() bool {
		beats := beatsOf(f.t, f.beats)
		if len(beats) == 0 {
			return false
		}
		last := slices.MaxFunc(beats, func(a, b beat) int { return int(a.at - b.at) })
		term = last.term
		return term > above && boot()-last.at < time.Second
	}, time.Minute, 20*time.Millisecond, "a command in a term above %d", above)
	return term
}

// leading is the call whose command is alive in a term.
func (f *execFleet) leading(term int64) (outer, inner, command int) {
	f.t.Helper()
	for _, cmd := range f.calls {
		for _, inner := range childrenOf(cmd.Process.Pid) {
			for _, command := range childrenOf(inner) {
				env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", command))
				if bytes.Contains(env, fmt.Appendf(nil, "SCHEDLOCK_TERM=%d\x00", term)) {
					return cmd.Process.Pid, inner, command
				}
			}
		}
	}
	return 0, 0, 0
}

func TestExecUnderFaults(t *testing.T) {
	missing.Long(t, "kills and stops processes")
	inBoth(t, func(t *testing.T, dsn string) {
		process(t) // makes the binary
		f := &execFleet{t: t, dsn: dsn, beats: filepath.Join(folder(t), "beats"),
			calls: make([]*exec.Cmd, 3), ended: make([]chan struct{}, 3)}
		for i := range f.calls {
			f.start(i)
		}
		stop := func() {
			for i, cmd := range f.calls {
				_ = cmd.Process.Signal(unix.SIGCONT)
				_ = cmd.Process.Signal(unix.SIGTERM)
				select {
				case <-f.ended[i]:
				case <-time.After(20 * time.Second):
					t.Errorf("call %d does not end", i)
					_ = cmd.Process.Kill()
				}
			}
		}
		t.Cleanup(stop)
		term := f.awaitTerm(0)
		for round := range *execFaults {
			outer, inner, command := f.leading(term)
			require.NotZero(t, outer, "whose command is that of term %d", term)
			targets := []int{outer, inner, command}
			which := rand.IntN(len(targets))
			kind := rand.IntN(3)
			t.Logf("%d: fault %d on process %d of term %d", round, kind, which, term)
			switch kind {
			case 0:
				_ = unix.Kill(targets[which], unix.SIGKILL)
			case 1:
				_ = unix.Kill(targets[which], unix.SIGSTOP)
				time.Sleep(4 * time.Second) // the fault itself: past the TTL
				_ = unix.Kill(targets[which], unix.SIGCONT)
				if which != 1 { // the lock stays held: only inner must be awake
					_ = unix.Kill(outer, unix.SIGTERM)
				}
			case 2:
				_ = unix.Kill(outer, unix.SIGTERM)
			}
			term = f.awaitTerm(term)
			for i, ended := range f.ended {
				select {
				case <-ended:
					f.start(i)
				default:
				}
			}
		}
		stop()
		requireOneTermAtATime(t, beatsOf(t, f.beats))
		seen := map[int]bool{}
		for _, b := range beatsOf(t, f.beats) {
			seen[b.pid] = true
		}
		for pid := range seen {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			assert.False(t, err == nil && bytes.Contains(text, []byte(f.beats)),
				"process %d was left behind", pid)
		}
	})
}

func TestNothingOutlivesWhoeverIsKilled(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		for name, target := range map[string]func(w *worker) int{
			"outer": (*worker).pid,
			"inner": (*worker).inner,
			"the command": func(w *worker) int {
				pids := childrenOf(w.inner())
				require.NotEmpty(t, pids)
				return pids[0]
			},
		} {
			w := startExec(t, dsn, "--ttl", "3s", "sh", "-c",
				"setsid sleep 1000 & echo $!; exec sleep 1000")
			daemon, err := strconv.Atoi(w.line())
			require.NoError(t, err)
			require.NoError(t, unix.Kill(target(w), unix.SIGKILL), name)
			require.Eventually(t, func() bool {
				return unix.Kill(daemon, 0) == unix.ESRCH
			}, time.Minute, time.Millisecond, "what the command has started, after %s", name)
			require.NotZero(t, w.wait())
		}
	})
}

// The fence finds one row while the command's lock is held, and none afterwards.
func TestTheFenceOfACommandIsOpenWhileItHoldsItsLock(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		for _, lock := range [][]string{nil, {"--name", "it's"},
			{"--name", "nightly", "--once-per", "1h"}} {
			w := startExec(t, dsn, append(lock, "sh", "-c",
				`"$0" fence --db "$1"; exec sleep 1000`, binary.path, dsn)...)
			statement := w.line()
			rows := func() int64 {
				if isPostgres(dsn) {
					conn, err := pgx.Connect(t.Context(), dsn)
					require.NoError(t, err)
					defer conn.Close(context.Background())
					tag, err := conn.Exec(t.Context(), statement)
					require.NoError(t, err, statement)
					return tag.RowsAffected()
				}
				db, err := sqlitedriver.Open("file:" + dsn + "?_pragma=busy_timeout(10000)")
				require.NoError(t, err)
				defer db.Close()
				r, err := db.ExecContext(t.Context(), statement)
				require.NoError(t, err, statement)
				n, err := r.RowsAffected()
				require.NoError(t, err)
				return n
			}
			require.EqualValues(t, 1, rows(), statement)
			require.NoError(t, w.cmd.Process.Signal(unix.SIGTERM))
			require.Equal(t, 128+15, w.wait())
			require.Zero(t, rows(), statement)
		}
	})
}

func TestExecRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ flags, says string }{
		{"--ttl 1s", "TTL 1s is too short"},
		{"--grace 15s", "--grace 15s does not fit"},
		{"--grace 14.751s", "at most 14.75s remain"},
		{"--grace -1s", "--grace -1s is below 0"},
		{"--restart often", `--restart "often" is neither`},
		{"--no-wait --timeout 3s", "--no-wait and --timeout 3s exclude each other"},
		{"--once-per 23h", "--once-per 23h0m0s needs --name"},
		{"--once-per 25h --name n", "--once-per 25h0m0s"},
		{"--at-most 23h", "--at-most 23h0m0s needs --once-per"},
		{"--skip-ok", "--skip-ok needs"},
	} {
		path := filepath.Join(folder(t), "app.db")
		r := finish(t, execOf(t, path, append(strings.Fields(tc.flags), "echo", "it ran")...))
		assert.Equal(t, exitUsage, r.code, tc.flags)
		assert.Contains(t, r.err, tc.says)
		assert.Empty(t, r.out)
		assert.NoFileExists(t, path)
	}
}
