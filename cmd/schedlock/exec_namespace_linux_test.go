package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
)

// namespaces skips the test where exec may not make a PID namespace.
func namespaces(t testing.TB) {
	t.Helper()
	cmd := exec.Command("true")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
	}
	if err := cmd.Run(); err != nil {
		missing.Skip(t, "PID namespaces: %v", err)
	}
}

// descendants are the processes below one, with those that have left its group.
func descendants(pid int) (pids []int) {
	for _, child := range childrenOf(pid) {
		pids = append(append(pids, child), descendants(child)...)
	}
	return pids
}

func awaitEnd(t testing.TB, pids []int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool {
			return unix.Kill(pid, 0) == unix.ESRCH
		}, time.Minute, time.Millisecond, "process %d", pid)
	}
}

// The command starts a daemon, and tells which pids it sees.
const daemonAndPIDs = `setsid sleep 1000 & echo $$ $PPID; exec sleep 1000`

func TestNothingOutlivesBothProcessesInANamespace(t *testing.T) {
	missing.Long(t, "kills processes")
	namespaces(t)
	for name, hurt := range map[string]func(outer, inner int){
		"both killed": func(outer, inner int) {
			_ = unix.Kill(outer, unix.SIGKILL)
			_ = unix.Kill(inner, unix.SIGKILL)
		},
		"both stopped, then inner killed": func(outer, inner int) {
			_ = unix.Kill(outer, unix.SIGSTOP)
			_ = unix.Kill(inner, unix.SIGSTOP)
			_ = unix.Kill(inner, unix.SIGKILL)
		},
		"both stopped, then outer killed": func(outer, inner int) {
			_ = unix.Kill(outer, unix.SIGSTOP)
			_ = unix.Kill(inner, unix.SIGSTOP)
			_ = unix.Kill(outer, unix.SIGKILL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(t *testing.T, dsn string) {
				w := startExec(t, dsn, "--ttl", "3s", "--pid-namespace", "sh", "-c", daemonAndPIDs)
				require.Regexp(t, `^\d+ 1$`, w.line())
				inner := w.inner()
				var pids []int
				require.Eventually(t, func() bool {
					pids = descendants(inner)
					return len(pids) == 2
				}, time.Minute, time.Millisecond, "the command and its daemon")
				begun := time.Now()
				hurt(w.pid(), inner)
				awaitEnd(t, pids)
				t.Logf("the tree is gone after %v", time.Since(begun))
				_ = unix.Kill(w.pid(), unix.SIGKILL)
				w.wait()
			})
		})
	}
}

// The command sees a /proc of its own; who looks from outside sees the pid of exec.
func TestANamespaceHasItsOwnProcAndTheLockThePIDOfOutside(t *testing.T) {
	missing.Long(t, "starts processes")
	namespaces(t)
	inBoth(t, func(t *testing.T, dsn string) {
		w := startExec(t, dsn, "--pid-namespace", "sh", "-c",
			`echo $SCHEDLOCK_HOLDER; echo $$ $(sh -c 'echo $PPID') $(ls /proc | grep -c '^[0-9]'); `+
				`exec sleep 1000`)
		require.Equal(t, strconv.Itoa(w.pid()), strings.Fields(w.line())[0])
		pids := strings.Fields(w.line())
		require.Equal(t, pids[0], pids[1], "of the command")
		seen, err := strconv.Atoi(pids[2])
		require.NoError(t, err)
		require.LessOrEqual(t, seen, 6, "processes in /proc")
		var s statusJSON
		strict(t, call(t, "status", "--json", "--db", dsn).out, &s)
		require.Equal(t, w.pid(), s.Lock.PID)
		require.NoError(t, w.cmd.Process.Signal(unix.SIGTERM))
		require.Equal(t, 128+15, w.wait(), &w.err)
		require.Equal(t, exitNothing, call(t, "status", "--db", dsn).code, "it is given back")
	})
}

func TestANamespaceOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	cmd := execOf(t, filepath.Join(dir, "app.db"), "--pid-namespace", "sh", "-c",
		`id -u; grep CapEff /proc/self/status; exit 7`)
	asNobody(cmd)
	r := finish(t, cmd)
	if strings.Contains(r.err, "--pid-namespace is not permitted here") {
		missing.Skip(t, "user namespaces: %s", r.err)
	}
	require.Equal(t, 7, r.code, r.err)
	uid := os.Getuid()
	if uid == 0 {
		uid = 65534
	}
	require.Equal(t, fmt.Sprintf("%d\nCapEff:\t%016x\n", uid, 0), r.out)
}

func TestANamespaceThatIsNotPermittedIsRefused(t *testing.T) {
	t.Parallel()
	cmd := execOf(t, filepath.Join(folder(t), "app.db"), "--pid-namespace", "echo", "it ran")
	if err := exec.Command("unshare", "--user", "--map-root-user", "true").Run(); err != nil {
		missing.Skip(t, "unshare of user namespaces: %v", err)
	}
	forbidden := exec.Command("unshare", append([]string{"--user", "--map-root-user", "sh", "-c",
		`echo 0 > /proc/sys/user/max_pid_namespaces; exec "$@"`, "sh"}, cmd.Args...)...)
	forbidden.Dir, forbidden.Env = cmd.Dir, cmd.Env
	r := finish(t, forbidden)
	require.Equal(t, 125, r.code, r)
	require.Contains(t, r.err, "schedlock: exec: --pid-namespace is not permitted here")
	require.Empty(t, r.out)
}

// With the /proc of another PID namespace exec would look for its children among strangers, and a
// daemon would outlive the lease.
func TestExecRefusesTheProcOfAnotherNamespace(t *testing.T) {
	missing.Root(t)
	namespaces(t)
	for _, flags := range [][]string{nil, {"--pid-namespace"}} {
		cmd := execOf(t, filepath.Join(folder(t), "app.db"), append(flags, "echo", "it ran")...)
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		r := finish(t, cmd)
		require.Equal(t, 125, r.code, r)
		require.Contains(t, r.err, "/proc does not show this PID namespace")
		require.Empty(t, r.out)
	}
}
