package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
)

var execFaults = flag.Int("exec.faults", 4, "how many faults TestExecUnderFaults injects")

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
		fmt.Fprintf(file, "%d %d %s\n", clock.System.Boot(), os.Getpid(),
			os.Getenv("SCHEDLOCK_TERM"))
		time.Sleep(5 * time.Millisecond)
	}
}

// The lifetime of a term is from its first beat to its last.
type lifetime struct{ first, last time.Duration }

// beats is what beacons have written into a file, as far as it was read.
type beats struct {
	path string
	read int64
	span map[int64]lifetime
	pids map[int]bool
}

func (b *beats) look(t testing.TB) {
	t.Helper()
	if b.span == nil {
		b.span, b.pids = map[int64]lifetime{}, map[int]bool{}
	}
	file, err := os.Open(b.path)
	if os.IsNotExist(err) {
		return
	}
	require.NoError(t, err)
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, b.read, 1<<40))
	require.NoError(t, err)
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	b.read += int64(len(text))
	for line := range strings.Lines(string(text)) {
		var numbers [3]int64
		fields := strings.Fields(line)
		require.Len(t, fields, 3, line)
		for i, f := range fields {
			numbers[i], err = strconv.ParseInt(f, 10, 64)
			require.NoError(t, err, line)
		}
		at, term := time.Duration(numbers[0]), numbers[2]
		s, ok := b.span[term]
		if !ok {
			s.first = at
		}
		b.span[term] = lifetime{min(s.first, at), max(s.last, at)}
		b.pids[int(numbers[1])] = true
	}
}

// requireOneTermAtATime fails if a term goes on after a later one has begun.
func (b *beats) requireOneTermAtATime(t testing.TB) {
	t.Helper()
	for term, s := range b.span {
		for later, l := range b.span {
			require.False(t, later > term && s.last > l.first,
				"a command of term %d was alive %v after term %d had begun", term,
				s.last-l.first, later)
		}
	}
}

// execFleet keeps some calls of exec running.
type execFleet struct {
	t     *testing.T
	dsn   string // past the networks
	links []link // of each call, to PostgreSQL
	own   *pgtest.Server
	beats beats
	calls []*exec.Cmd
	ended []chan struct{}
}

// A link is the network between one call and the server.
type link struct {
	wire *servertest.Wire
	dsn  string // through it
}

func (f *execFleet) start(i int) {
	f.t.Helper()
	dsn := f.dsn
	if f.links != nil {
		dsn = f.links[i].dsn
	}
	cmd := execOf(f.t, dsn, "--ttl", faultsTTL.String(), "--restart", "always", "--", "env",
		childEnv+"=beacon", toolPath(f.t), f.beats.path)
	cmd.Stderr = os.Stderr
	require.NoError(f.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	f.calls[i], f.ended[i] = cmd, ended
}

// awaitTerm waits until a beacon of a term above one is alive. As a supervisor does, it
// starts calls again that have ended: one that has yet to open its database does not
// outlive a fault of that.
func (f *execFleet) awaitTerm(above int64) (term int64) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		for i, ended := range f.ended {
			select {
			case <-ended:
				f.start(i)
			default:
			}
		}
		f.beats.look(f.t)
		for t := range f.beats.span {
			term = max(term, t)
		}
		return term > above && clock.System.Boot()-f.beats.span[term].last < time.Second
	}, time.Minute, 20*time.Millisecond, "a command in a term above %d", above)
	return term
}

// A led call is the one whose command runs.
type led struct{ call, outer, inner, command int }

// leading is the call whose command is alive in a term.
func (f *execFleet) leading(term int64) (l led, ok bool) {
	for i, cmd := range f.calls {
		for _, inner := range childrenOf(cmd.Process.Pid) {
			for _, command := range childrenOf(inner) {
				env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", command))
				if bytes.Contains(env, fmt.Appendf(nil, "SCHEDLOCK_TERM=%d\x00", term)) {
					return led{i, cmd.Process.Pid, inner, command}, true
				}
			}
		}
	}
	return led{}, false
}

// past is how long the faults last that are to outlast the TTL.
const (
	faultsTTL = 2 * time.Second
	past      = faultsTTL + time.Second
)

// A fault makes the term of a call end.
type execFault struct {
	name     string
	postgres bool // it needs a server
	do       func(f *execFleet, l led)
}

var faultsOfExec = []execFault{
	{"kill -9 of outer", false, func(_ *execFleet, l led) { _ = unix.Kill(l.outer, unix.SIGKILL) }},
	{"kill -9 of inner", false, func(_ *execFleet, l led) { _ = unix.Kill(l.inner, unix.SIGKILL) }},
	{"kill -9 of the command", false, func(_ *execFleet, l led) {
		_ = unix.Kill(l.command, unix.SIGKILL)
	}},
	{"SIGTERM", false, func(_ *execFleet, l led) { _ = unix.Kill(l.outer, unix.SIGTERM) }},
	{"outer stopped", false, func(_ *execFleet, l led) {
		stopFor(l.outer)
		_ = unix.Kill(l.outer, unix.SIGTERM) // the lock stays held: only inner must be awake
	}},
	{"inner stopped", false, func(_ *execFleet, l led) { stopFor(l.inner) }},
	{"command stopped", false, func(_ *execFleet, l led) {
		stopFor(l.command)
		_ = unix.Kill(l.outer, unix.SIGTERM)
	}},
	{"revoked", false, func(f *execFleet, _ led) {
		r := call(f.t, "release", "--force", "--yes", "--reason", "a test", "--db", f.dsn)
		require.Zero(f.t, r.code, r.err)
	}},
	{"database locked", false, (*execFleet).lockDatabase},
	{"database stopped", true, (*execFleet).stopDatabase},
	{"partitioned", true, func(f *execFleet, l led) {
		f.links[l.call].wire.Become(servertest.Network{Hole: true})
		time.Sleep(past)
		f.links[l.call].wire.Become(servertest.Network{})
	}},
}

func stopFor(pid int) {
	_ = unix.Kill(pid, unix.SIGSTOP)
	time.Sleep(past) // the fault itself
	_ = unix.Kill(pid, unix.SIGCONT)
}

func (f *execFleet) lockDatabase(led) {
	if f.own == nil {
		db, err := sqlitedriver.Open("file:" + f.dsn +
			"?_txlock=immediate&_pragma=busy_timeout(60000)")
		require.NoError(f.t, err)
		defer db.Close()
		tx, err := db.Begin()
		require.NoError(f.t, err)
		time.Sleep(past)
		require.NoError(f.t, tx.Rollback())
		return
	}
	conn, err := pgx.Connect(bg, f.dsn)
	require.NoError(f.t, err)
	defer conn.Close(bg)
	tx, err := conn.Begin(bg)
	require.NoError(f.t, err)
	_, err = tx.Exec(bg, "LOCK TABLE scheduler_lock IN ACCESS EXCLUSIVE MODE")
	require.NoError(f.t, err)
	time.Sleep(past)
	require.NoError(f.t, tx.Rollback(bg))
}

// stopDatabase stops all processes of the server.
func (f *execFleet) stopDatabase(led) {
	pids := append(childrenOf(f.own.PID()), f.own.PID())
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGSTOP)
	}
	time.Sleep(past)
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// TestExecUnderFaults injects each fault once with -exec.faults=11, and then random ones.
func TestExecUnderFaults(t *testing.T) {
	missing.Long(t, "kills and stops processes")
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		underFaults(&execFleet{t: t, dsn: filepath.Join(folder(t), "app.db")})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		f := &execFleet{t: t, own: pgtest.Start(t)}
		f.dsn = f.own.URL("postgres")
		for range 3 {
			wire, dsn := servertest.Through(t, f.dsn)
			f.links = append(f.links, link{wire, dsn})
		}
		underFaults(f)
	})
}

func underFaults(f *execFleet) {
	t := f.t
	f.beats.path = filepath.Join(folder(t), "beats")
	f.calls, f.ended = make([]*exec.Cmd, 3), make([]chan struct{}, 3)
	for i := range f.calls {
		f.start(i)
	}
	stop := func() {
		for i, cmd := range f.calls {
			_ = cmd.Process.Signal(unix.SIGCONT)
			_ = cmd.Process.Signal(unix.SIGTERM)
			select {
			case <-f.ended[i]:
			case <-time.After(time.Minute):
				t.Errorf("call %d does not end: inner %v, its children %v; their stacks follow", i,
					childrenOf(cmd.Process.Pid), childrenOf(childrenOf(cmd.Process.Pid)...))
				for _, pid := range append(childrenOf(cmd.Process.Pid), cmd.Process.Pid) {
					_ = unix.Kill(pid, unix.SIGABRT)
					time.Sleep(time.Second) // one after the other
				}
				_ = cmd.Process.Kill()
			}
		}
	}
	t.Cleanup(stop)
	faults := slices.Clone(faultsOfExec)
	if f.own == nil {
		faults = slices.DeleteFunc(faults, func(x execFault) bool { return x.postgres })
	}
	rand.Shuffle(len(faults), func(i, k int) { faults[i], faults[k] = faults[k], faults[i] })
	longest, count := map[string]time.Duration{}, map[string]int{}
	term := f.awaitTerm(0)
	for round := range *execFaults {
		fault := faults[rand.IntN(len(faults))]
		if round < len(faults) {
			fault = faults[round]
		}
		var l led
		eventually(t, "the command of the term is found", func() (ok bool) {
			term = f.awaitTerm(term - 1)
			l, ok = f.leading(term)
			return ok
		})
		begun := clock.System.Boot()
		fault.do(f, l)
		next := f.awaitTerm(term)
		took := f.beats.span[next].first - begun
		t.Logf("%d: %s in term %d: the next command after %v", round, fault.name, term,
			took.Round(time.Millisecond))
		longest[fault.name] = max(longest[fault.name], took)
		count[fault.name]++
		term = next
	}
	for name, d := range longest {
		t.Logf("%d times %s: the next command after %v at most", count[name], name,
			d.Round(time.Millisecond))
	}
	stop()
	f.beats.look(t)
	f.beats.requireOneTermAtATime(t)
	for pid := range f.beats.pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		assert.False(t, err == nil && bytes.Contains(text, []byte(f.beats.path)),
			"process %d was left behind", pid)
	}
}
