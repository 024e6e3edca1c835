package leasefile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/inotify"
	"example.com/schedlock/internal/leasefile/leasefiletest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

func TestKilledHolderIsNoticed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		rounds int
		start  func(int) (int, error)
	}{
		{"by its event", 10, unix.InotifyInit1},
		{"by polling", 3, func(int) (int, error) { return -1, unix.EMFILE }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newLeaseFile(t)
			f.events.Start = tc.start
			var took []time.Duration
			rounds := tc.rounds
			if testing.Short() {
				rounds = 3
			}
			for range rounds {
				token := driver.NewToken()
				holder := child.Start(t, "lease hold", f.dbPath, token.String())
				require.Equal(t, mustID(t, f), holder.Line())
				seen := mustProbe(t, f, token)
				require.Equal(t, driver.SignAlive, seen.Sign(true, seen.ID), "%+v", seen)
				killed := make(chan time.Time, 1)
				// Killed while we wait, and not always at the same moment of it.
				time.AfterFunc(50*time.Millisecond+time.Duration(len(took))*7*time.Millisecond,
					func() {
						killed <- time.Now()
						holder.Cmd.Process.Kill()
					})
				awaitLong(t, f, token, seen)
				took = append(took, time.Since(<-killed))
				now := mustProbe(t, f, token)
				require.Equal(t, driver.SignDead, now.Sign(true, seen.ID), "%+v", now)
			}
			t.Log("from kill to woken:", describe(took))
		})
	}
}

// Not by luck of the polls: here there are none.
func TestAwaitIsWokenByEvents(t *testing.T) {
	missing.Long(t, "takes a second")
	defer func(b, w time.Duration) { pollBeside, pollWithout = b, w }(pollBeside, pollWithout)
	pollBeside, pollWithout = time.Hour, time.Hour
	f := newLeaseFile(t)
	for _, where := range []string{"the file", "another file in its place", "a duplicate"} {
		token := driver.NewToken()
		held := mustHold(t, f, token)
		if where == "a duplicate" { // in a process that outlives the lease
			open, err := held.Duplicate()
			require.NoError(t, err)
			defer open.Close()
		}
		seen := mustProbe(t, f, token)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		time.AfterFunc(700*time.Millisecond, held.Release) // when it looks no more
		f.Await(ctx, token, seen)
		assert.NoError(t, ctx.Err(), "%s: no event came", where)
		cancel()
		require.NoError(t, os.Rename(f.path, f.path+"2"))
	}
}

func TestStoppedHolderHolds(t *testing.T) {
	missing.Long(t, "waits for what does not happen")
	t.Parallel()
	f := newLeaseFile(t)
	token := driver.NewToken()
	holder := child.Start(t, "lease hold", f.dbPath, token.String())
	holder.Line()
	seen := mustProbe(t, f, token)
	require.NoError(t, holder.Cmd.Process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	f.Await(ctx, token, seen)
	assert.Error(t, ctx.Err(), "await returned although the holder was only stopped")
	assert.Equal(t, seen, mustProbe(t, f, token))
	_, err := f.Hold(token)
	assert.Error(t, err, "the byte of a stopped holder could be taken")
}

func TestChildOfAHolderDoesNotKeepItsByte(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	holder := child.Start(t, "lease hold", f.dbPath, token.String(), "with a child")
	var pid int
	_, err := fmt.Sscan(holder.Line(), &pid)
	require.NoError(t, err)
	seen := mustProbe(t, f, token)
	require.True(t, seen.Held)
	holder.Cmd.Process.Kill()
	awaitLong(t, f, token, seen)
	now := mustProbe(t, f, token)
	assert.False(t, now.Held || now.Others, "the byte outlived the holder: %+v", now)
	assert.NoError(t, syscall.Kill(pid, 0),
		"the holder's child should have outlived it, or this test shows nothing")
}

// A byte that nobody releases must not be given back by the garbage collector,
// nor by closing the lease file: a living holder would seem dead.
func TestForgottenByteStaysHeld(t *testing.T) {
	dbPath := leasefiletest.NewDatabase(t)
	f := openFor(t, dbPath)
	token := driver.NewToken()
	var fd int
	func() {
		g := openFor(t, dbPath)
		before := openFDs(t)
		_, err := g.Hold(token)
		require.NoError(t, err)
		for n := range openFDs(t) {
			if _, ok := before[n]; !ok {
				fd = n
			}
		}
		g.Close()
	}()
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	assert.True(t, mustProbe(t, f, token).Held, "the byte was given back without a release")
	unix.Close(fd)
}

func TestProbesDisturbNobody(t *testing.T) {
	missing.Long(t, "starts processes")
	f := newLeaseFile(t)
	token := driver.NewToken()
	probers := make([]*child.Process, 8)
	for i := range probers {
		probers[i] = child.Start(t, "lease probe", f.dbPath, token.String())
	}
	for _, p := range probers {
		p.Line()
	}
	for range 500 {
		held, err := f.Hold(token)
		if assert.NoError(t, err) {
			held.Release()
		}
	}
	for i, p := range probers {
		p.Stdin.Close()
		if n := p.Line(); n == "0" {
			t.Errorf("prober %d has probed nothing", i)
		} else if i == 0 {
			t.Logf("each prober looked some %s times", n)
		}
	}
}

func TestManyProcessesMakeOneLeaseFile(t *testing.T) {
	dbPath := leasefiletest.NewDatabase(t)
	children := make([]*child.Process, 20)
	for i := range children {
		children[i] = child.Start(t, "lease open", dbPath)
	}
	for _, c := range children {
		c.Line()
	}
	for _, c := range children {
		c.Say("go")
	}
	ids := map[string]int{}
	for _, c := range children {
		ids[c.Line()]++
	}
	assert.Equal(t, map[string]int{mustID(t, openFor(t, dbPath)): 20}, ids)
	wantFiles(t, filepath.Dir(dbPath), "app.db", "app.db-lease")
}

func wantFiles(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, want, names, "the files in the folder")
}

func TestByteHeldForAMomentIsForgiven(t *testing.T) {
	f := newLeaseFile(t)
	forgiven := 0
	for range 10 {
		losing := mustHold(t, f, driver.NewToken())
		timer := time.AfterFunc(blink/5, losing.Release)
		if s := mustProbe(t, f, driver.NewToken()); !s.Others {
			forgiven++
		}
		timer.Stop()
		losing.Release()
	}
	assert.NotZero(t, forgiven, "a byte that was held for a moment counted each time")
}

func TestByteIsTakenOnce(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	_, err := f.Hold(token)
	assert.ErrorContains(t, err, f.path, "held twice")
	held.Release()
	mustHold(t, f, token) // very likely on the same descriptor number
	held.Release()        // again
	assert.True(t, mustProbe(t, f, token).Held,
		"releasing the first again has released the second")
}

func TestByteThatNobodySeesIsNoProof(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	require.NoError(t, f.confirm(token, held.ID))
	assert.Error(t, f.confirm(token, "of a file that was replaced"))
	held.Release()
	assert.Error(t, f.confirm(token, held.ID), "not held")
}

// A process that was started while the byte is given back shares its
// descriptor until it runs another program.
func TestReleaseDoesNotWaitForADuplicate(t *testing.T) {
	f := newLeaseFile(t)
	before := openFDs(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	for fd := range openFDs(t) {
		if _, ok := before[fd]; ok {
			continue
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(dup)
	}
	held.Release()
	assert.False(t, mustProbe(t, f, token).Held, "released, but still held through a duplicate")
}

// Closing any descriptor of the database would drop the POSIX locks that
// another SQLite of this process has on it.
func TestDatabaseFileIsNeverOpened(t *testing.T) {
	dbPath := leasefiletest.NewDatabase(t)
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		missing.Skip(t, "inotify: %v", err)
	}
	defer unix.Close(events)
	_, err = unix.InotifyAddWatch(events, dbPath,
		unix.IN_OPEN|unix.IN_CLOSE|unix.IN_ACCESS|unix.IN_MODIFY)
	require.NoError(t, err)
	f := openFor(t, dbPath)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	seen := mustProbe(t, f, token)
	mustID(t, f)
	held.Release()
	awaitLong(t, f, token, seen)
	f.Close()
	_, err = unix.Read(events, make([]byte, 4096))
	assert.Equal(t, unix.EAGAIN, err, "something has opened the database file")
}

func TestNothingIsLeftBehind(t *testing.T) {
	missing.Long(t, "repeats it 40 times")
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dbPath, foreign := leasefiletest.NewDatabase(t), leasefiletest.NewDatabase(t)
	require.NoError(t, os.WriteFile(foreign+"-lease", nil, 0o644))
	cycle := func() {
		_, err := Open(foreign, nil)
		require.ErrorContains(t, err, "was not made by schedlock")
		events := &inotify.Watch{}
		f, err := Open(dbPath, events)
		require.NoError(t, err)
		token := driver.NewToken()
		held, err := f.Hold(token)
		require.NoError(t, err)
		_, err = f.Hold(token)
		require.Error(t, err, "held twice")
		seen, err := f.Probe(token)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		f.Await(ctx, token, seen)
		cancel()
		held.Release()
		f.Await(t.Context(), token, seen)
		f.Close()
		require.NoError(t, events.Close())
	}
	cycle() // the runtime's own descriptors come with the first
	fds := len(openFDs(t))
	for range 40 {
		cycle()
	}
	now := openFDs(t)
	assert.LessOrEqual(t, len(now), fds, "descriptors after 40 cycles: %v", now)
	wantFiles(t, filepath.Dir(dbPath), "app.db", "app.db-lease")
}

func openFDs(t testing.TB) map[int]string {
	t.Helper()
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		missing.Skip(t, "/proc: %v", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	require.NoError(t, err)
	fds := map[int]string{}
	for _, name := range names {
		var n int
		fmt.Sscan(name, &n)
		if n != int(dir.Fd()) {
			fds[n], _ = os.Readlink("/proc/self/fd/" + name)
		}
	}
	return fds
}
