package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

// execOf is schedlock exec on a database.
func execOf(t testing.TB, dsn string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := process(t, append([]string{"exec", "--db", dsn}, args...)...)
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"), "GOMAXPROCS=2")
	return cmd
}

func TestExecPassesOnWhatTheCommandSays(t *testing.T) {
	missing.Long(t, "starts many processes")
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
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
	input := execOf(t, dsn, "cat")
	input.Stdin = strings.NewReader("from stdin")
	require.Equal(t, result{0, "from stdin", ""}, finish(t, input))
}

func TestExecTakesItsLockAndGivesItBack(t *testing.T) {
	missing.Long(t, "starts many processes")
	inAll(t, func(t *testing.T, dsn string) {
		run := func(args ...string) result { return finish(t, execOf(t, dsn, args...)) }
		r := run("sh", "-c", `echo "$SCHEDLOCK_NAME $SCHEDLOCK_TERM $SCHEDLOCK_TOKEN"; `+
			`[ -n "$SCHEDLOCK_HOLDER" ]`)
		require.Zero(t, r.code)
		require.Regexp(t, `^scheduler [1-9]\d* [0-9a-f]{32}\n$`, r.out)
		once := []string{"--name", "nightly", "--once-per", "1h", "sh", "-c",
			"echo $SCHEDLOCK_NAME"}
		require.Equal(t, result{0, "nightly\n", ""}, run(once...))
		r = run(once...)
		require.Equal(t, exitTemporary, r.code, r)
		require.Empty(t, r.out)
		require.Equal(t, result{}, run(append([]string{"--skip-ok"}, once...)...))

		// What can't run uses up no slot of the fleet.
		script := filepath.Join(folder(t), "script")
		require.NoError(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700))
		for command, code := range map[string]int{"no-such-command-anywhere": 127,
			"/etc/passwd": 126, script: 127} {
			r = run("--name", "weekly", "--once-per", "1h", command)
			require.Equal(t, code, r.code, r)
		}
		require.Equal(t, result{}, run("--name", "weekly", "--once-per", "1h", "true"))
		require.Equal(t, exitNothing, call(t, "status", "--db", dsn).code, "it is given back")
	})
}

// A worker is a call of exec whose command runs.
type worker struct {
	t     testing.TB
	cmd   *exec.Cmd
	out   *os.File
	lines *bufio.Scanner
	err   logtest.Log
	ended chan struct{}
}

// startExec starts exec; the command must print a line when it runs.
func startExec(t testing.TB, dsn string, args ...string) *worker {
	t.Helper()
	return startExecTo(t, nil, dsn, args...)
}

// startExecTo is startExec with a stderr of the test's own; nil: it is kept.
func startExecTo(t testing.TB, stderr *os.File, dsn string, args ...string) *worker {
	t.Helper()
	w := &worker{t: t, cmd: execOf(t, dsn, args...), ended: make(chan struct{})}
	w.cmd.Stderr = &w.err
	if stderr != nil {
		w.cmd.Stderr = stderr
	}
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
	require.True(w.t, w.lines.Scan(), "the command has ended, or says nothing: %v %v", &w.err,
		w.lines.Err())
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

func childrenOf(parents ...int) (pids []int) {
	for _, parent := range parents {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			for _, f := range strings.Fields(string(text)) {
				if n, err := strconv.Atoi(f); err == nil {
					pids = append(pids, n)
				}
			}
		}
	}
	return pids
}

func TestExecSaysThatAnotherHoldsTheLock(t *testing.T) {
	missing.Long(t, "starts processes")
	inBoth(t, func(t *testing.T, dsn string) {
		w := startExec(t, dsn, "sh", "-c", "echo up; exec sleep 1000")
		w.line()
		for _, args := range [][]string{{"--no-wait"}, {"--timeout", "2s"}} {
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

// As under nohup: neither process of exec catches what its caller wants ignored, nor does the
// command.
func TestExecIgnoresWhatItsCallerIgnores(t *testing.T) {
	t.Parallel()
	cmd := execOf(t, filepath.Join(folder(t), "app.db"), "sh", "-c",
		`outer=$(awk '/^PPid/ { print $2 }' /proc/$PPID/status)
		grep -h SigIgn /proc/$outer/status /proc/$PPID/status /proc/$$/status`)
	cmd.Args = append([]string{"sh", "-c", `trap '' HUP INT; exec "$0" "$@"`, cmd.Path},
		cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	r := finish(t, cmd)
	require.Equal(t, 0, r.code, r.err)
	masks := regexp.MustCompile(`[0-9a-f]{16}`).FindAllString(r.out, -1)
	require.Len(t, masks, 3, r.out)
	for i, mask := range masks {
		ignored, err := strconv.ParseUint(mask, 16, 64)
		require.NoError(t, err)
		want := uint64(1<<(unix.SIGHUP-1) | 1<<(unix.SIGINT-1))
		assert.Equal(t, want, ignored&want, [...]string{"outer", "inner", "command"}[i])
	}
}

// SIGTERM at the moment in which exec begins to catch it, which the test closes in on:
// earlier ones end it at once, later ones with an exit code.
func TestExecEndsHoweverEarlyItIsTold(t *testing.T) {
	missing.Long(t, "starts many processes")
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	call(t, "migrate", "--db", dsn)
	delay, step := 8*time.Millisecond, 4*time.Millisecond
	times := 40
	if missing.Full() {
		times = 150
	}
	for range times {
		w := startExec(t, dsn, "sleep", "1000")
		time.Sleep(delay) // the moment is the test's input
		require.NoError(t, w.cmd.Process.Signal(unix.SIGTERM))
		w.wait()
		status := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if step = max(step*3/4, 50*time.Microsecond); status.Signaled() {
			delay += step
		} else {
			require.Equal(t, 128+15, status.ExitStatus(), &w.err)
			delay = max(delay-step, 0)
		}
	}
}

// An outer process that was stopped past the TTL acts on what inner knows by then.
func TestExecGoesOnAfterItWasStopped(t *testing.T) {
	missing.Long(t, "stops a process for its TTL")
	ttl := 5 * time.Second // on a starved machine, too, inner renews within it
	if missing.Full() {
		ttl = 20 * time.Second // also beside others that starve
	}
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	w := startExec(t, dsn, "--ttl", ttl.String(), "sh", "-c",
		`(trap '' USR1 USR2; exec sleep 1000) & trap 'echo told' USR1; `+
			`trap 'sleep 2; echo rested' USR2; echo up; while :; do wait; done`)
	w.line()
	require.NoError(t, w.cmd.Process.Signal(unix.SIGSTOP))
	time.Sleep(ttl + time.Second) // the fault: past the TTL
	require.NoError(t, w.cmd.Process.Signal(unix.SIGCONT))
	for range 5 {
		require.NoError(t, w.cmd.Process.Signal(unix.SIGUSR1))
		require.Equal(t, "told", w.line())
	}
	// A signal puts off the next look, which is due a second later.
	require.NoError(t, w.cmd.Process.Signal(unix.SIGUSR2))
	require.Equal(t, "rested", w.line())
}

func TestExecGivesTheCommandItsGrace(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	w := startExec(t, dsn, "sh", "-c", `trap 'sleep 0.3; echo told; exit 3' TERM; echo up; `+
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
}

func TestExecEndsWhatTheCommandLeavesBehind(t *testing.T) {
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	// A daemon that has left the group, and whose parents have ended.
	r := finish(t, execOf(t, dsn, "sh", "-c",
		`(setsid sh -c 'sleep 1000 & echo $!; exec sleep 1000' </dev/null &) ; sleep 0.1`))
	require.Zero(t, r.code, r.err)
	pid, err := strconv.Atoi(strings.TrimSpace(r.out))
	require.NoError(t, err)
	require.Equal(t, unix.ESRCH, unix.Kill(pid, 0))
}

func TestExecIsHandedOverByAnOperator(t *testing.T) {
	missing.Long(t, "takes seconds")
	inBoth(t, func(t *testing.T, dsn string) {
		script := []string{"-v", "--ttl", "6s", "sh", "-c", "echo $SCHEDLOCK_TERM; exec sleep 1000"}
		first := startExec(t, dsn, script...)
		term := first.line()
		second := startExec(t, dsn, script...)
		require.Eventually(t, func() bool { // else first is the only one that wants the lock
			return strings.Contains(second.err.String(), "standing by")
		}, time.Minute, 20*time.Millisecond)
		r := call(t, "release", "--force", "--yes", "--reason", "test", "--db", dsn)
		require.Zero(t, r.code, r.err)
		require.Greater(t, second.line(), term)
		require.NoError(t, second.cmd.Process.Signal(unix.SIGTERM))
		require.Greater(t, first.line(), term, "it has stood by again")
	})
}

func TestExecStartsTheCommandAgain(t *testing.T) {
	missing.Long(t, "takes seconds")
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

func TestNothingOutlivesWhoeverIsKilled(t *testing.T) {
	missing.Long(t, "kills processes")
	for name, target := range map[string]func(w *worker) int{
		"outer": (*worker).pid,
		"inner": (*worker).inner,
		"the command": func(w *worker) int {
			pids := childrenOf(w.inner())
			require.NotEmpty(w.t, pids)
			return pids[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(t *testing.T, dsn string) {
				w := startExec(t, dsn, "--ttl", "3s", "sh", "-c",
					"setsid sleep 1000 & echo $!; exec sleep 1000")
				daemon, err := strconv.Atoi(w.line())
				require.NoError(t, err)
				require.NoError(t, unix.Kill(target(w), unix.SIGKILL))
				awaitEnd(t, []int{daemon})
				require.NotZero(t, w.wait())
			})
		})
	}
}

// stopped reports whether SIGSTOP has stopped all threads of a process. They run on
// until one of them has come to see the signal.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	require.NoError(t, err)
	require.NotEmpty(t, stats)
	return !slices.ContainsFunc(stats, func(path string) bool {
		stat, err := os.ReadFile(path)
		return err == nil && !strings.Contains(string(stat), ") T ")
	})
}

// On SQLite what outlives both processes keeps the descriptor of the lease file, so that
// nothing proves a death: the TTL decides.
func TestTheTTLDecidesAboutWhatOutlivesBothProcesses(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	dsn := filepath.Join(folder(t), "app.db")
	w := startExec(t, dsn, "--ttl", "3s", "sh", "-c",
		"setsid sleep 1000 & echo $!; exec sleep 1000")
	daemon, err := strconv.Atoi(w.line())
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Kill(daemon, unix.SIGKILL) })
	both := []int{w.pid(), w.inner()}
	// So do both, for what closes the descriptors that it inherits.
	for _, pid := range both {
		eventually(t, "it holds the lease file", func() bool {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			return slices.ContainsFunc(fds, func(fd string) bool {
				file, _ := os.Readlink(fd)
				return strings.HasSuffix(file, "app.db-lease")
			})
		})
	}
	for _, pid := range both { // neither sees the other die
		require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
	}
	for _, pid := range both {
		eventually(t, "each of its threads has stopped", func() bool { return stopped(t, pid) })
	}
	for _, pid := range both {
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	next := startExec(t, dsn, "--ttl", "3s", "echo", "next")
	require.Equal(t, "next", next.line())
	require.Zero(t, next.wait())
	require.NoError(t, unix.Kill(daemon, 0), "it has outlived both")
	terms := call(t, "history", "--db", dsn, "--json").out
	require.Regexp(t, `"end_reason": *"`+driver.EndExpired+`"`, terms)
}

// The fence finds one row while the command's lock is held, and none afterwards.
func TestTheFenceOfACommandIsOpenWhileItHoldsItsLock(t *testing.T) {
	missing.Long(t, "starts processes")
	inAll(t, func(t *testing.T, dsn string) {
		for _, lock := range [][]string{nil, {"--name", "it's"},
			{"--name", "nightly", "--once-per", "1h"}} {
			w := startExec(t, dsn, append(lock, "sh", "-c",
				`"$0" fence --db "$1"; exec sleep 1000`, toolPath(t), dsn)...)
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
				if isMySQL(dsn) {
					return fenceMaria(t, dsn, statement)
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
		{"--ttl 0s", "--ttl 0s is not above 0"},
		{"--ttl -5s", "--ttl -5s is not above 0"},
		{"--ttl 25h", "--ttl 25h0m0s is above 24h0m0s"},
		{"--name x --ttl 25h", "--ttl 25h0m0s is above 24h0m0s"},
		{"--grace 15s", "--grace 15s does not fit"},
		{"--grace 14.751s", "at most 14.75s remain"},
		{"--grace -1s", "--grace -1s is below 0"},
		{"--restart often", `--restart "often" is neither`},
		{"--no-wait --timeout 3s", "--no-wait and --timeout 3s exclude each other"},
		{"--once-per 23h", "--once-per 23h0m0s needs --name"},
		{"--once-per 25h --name n", "--once-per 25h0m0s"},
		{"--once-per 23h --name n --timeout 3s", "exclude each other: it never waits"},
		{"--once-per 23h --name n --ttl 5s", "exclude each other: see --at-most"},
		{"--once-per 23h --name n --restart always", "exclude each other: it runs once"},
		{"--name=", "--name is empty"},
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
	path := filepath.Join(folder(t), "app.db")
	assert.Equal(t, 127, finish(t, execOf(t, path, "no-such-command-anywhere")).code)
	assert.NoFileExists(t, path)
}
