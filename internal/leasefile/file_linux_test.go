package leasefile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
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
			f := newLeaseFile(t)
			f.watch.start = tc.start
			var took []time.Duration
			for range tc.rounds {
				token := driver.NewToken()
				holder := child.Start(t, "lease hold", f.dbPath, token.String())
				if id := holder.Line(); id != mustID(t, f) {
					t.Fatalf("the holder's id is %s, ours %s", id, mustID(t, f))
				}
				seen := mustProbe(t, f, token)
				if seen.Sign(true, seen.ID) != driver.SignAlive {
					t.Fatalf("a living holder shows as %+v", seen)
				}
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
				if now.Sign(true, seen.ID) != driver.SignDead {
					t.Fatalf("a dead holder shows as %+v", now)
				}
			}
			t.Log("from kill to woken:", describe(took))
		})
	}
}

func TestReleaseIsNoticed(t *testing.T) {
	t.Parallel()
	f := newLeaseFile(t)
	var took []time.Duration
	for range 20 {
		token := driver.NewToken()
		held := mustHold(t, f, token)
		seen := mustProbe(t, f, token)
		released := make(chan time.Time, 1)
		time.AfterFunc(30*time.Millisecond+time.Duration(len(took))*time.Millisecond, func() {
			released <- time.Now()
			held.Release()
		})
		awaitLong(t, f, token, seen)
		took = append(took, time.Since(<-released))
	}
	t.Log("from release to woken:", describe(took))
}

// Not by luck of the polls: here there are none.
func TestAwaitIsWokenByEvents(t *testing.T) {
	defer func(d time.Duration) { pollBeside = d }(pollBeside)
	pollBeside = time.Hour
	f := newLeaseFile(t)
	for _, where := range []string{"the file", "another file in its place"} {
		token := driver.NewToken()
		held := mustHold(t, f, token)
		seen := mustProbe(t, f, token)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		time.AfterFunc(300*time.Millisecond, func() { held.Release() }) // when it looks no more
		f.Await(ctx, token, seen)
		if ctx.Err() != nil {
			t.Errorf("%s: no event came", where)
		}
		cancel()
		if n := watches(t, f); n != 1 {
			t.Errorf("%s: %d files are watched", where, n)
		}
		if err := os.Rename(f.path, f.path+"2"); err != nil {
			t.Fatal(err)
		}
	}
	// And what is gone can be watched no more, but nothing breaks.
	if events := f.watch.add(f.path); events != nil || watches(t, f) != 0 {
		t.Errorf("%d files are watched after all are gone", watches(t, f))
	}
}

func watches(t *testing.T, f *File) int {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.watch.raw))
	if err != nil {
		missing.Skip(t, "/proc: %v", err)
	}
	return strings.Count(string(info), "inotify wd:")
}

func TestStoppedHolderHolds(t *testing.T) {
	t.Parallel()
	f := newLeaseFile(t)
	token := driver.NewToken()
	holder := child.Start(t, "lease hold", f.dbPath, token.String())
	holder.Line()
	seen := mustProbe(t, f, token)
	if err := holder.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	f.Await(ctx, token, seen)
	if ctx.Err() == nil {
		t.Error("await returned although the holder was only stopped")
	}
	if now := mustProbe(t, f, token); !now.Held || now.Others {
		t.Errorf("a stopped holder shows as %+v", now)
	}
	if _, err := f.Hold(token); err == nil {
		t.Error("the byte of a stopped holder could be taken")
	}
}

func TestChildOfAHolderDoesNotKeepItsByte(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	holder := child.Start(t, "lease hold", f.dbPath, token.String(), "with a child")
	var pid int
	if _, err := fmt.Sscan(holder.Line(), &pid); err != nil {
		t.Fatal(err)
	}
	seen := mustProbe(t, f, token)
	if !seen.Held {
		t.Fatal("the holder does not hold its byte")
	}
	holder.Cmd.Process.Kill()
	awaitLong(t, f, token, seen)
	if now := mustProbe(t, f, token); now.Held || now.Others {
		t.Errorf("the byte outlived the holder: %+v", now)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the holder's child should have outlived it, or this test shows nothing: %v", err)
	}
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
		if _, err := g.Hold(token); err != nil {
			t.Fatal(err)
		}
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
	if now := mustProbe(t, f, token); !now.Held {
		t.Error("the byte was given back without a release")
	}
	unix.Close(fd)
}

func TestProbesDisturbNobody(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	probers := make([]*child.Process, 8)
	for i := range probers {
		probers[i] = child.Start(t, "lease probe", f.dbPath, token.String())
	}
	for _, p := range probers {
		p.Line()
	}
	failures := 0
	for range 500 {
		held, err := f.Hold(token)
		if err != nil {
			failures++
			t.Log(err)
			continue
		}
		held.Release()
	}
	if failures > 0 {
		t.Errorf("%d of 500 acquisitions failed beside probes", failures)
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
	if len(ids) != 1 {
		t.Errorf("20 processes found %d ids: %v", len(ids), ids)
	}
	if id := mustID(t, openFor(t, dbPath)); ids[id] == 0 {
		t.Errorf("and later the id is %s", id)
	}
	wantFiles(t, filepath.Dir(dbPath), "app.db", "app.db-lease")
}

func wantFiles(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, want) {
		t.Errorf("the folder has %v, want %v", names, want)
	}
}

func TestByteHeldForAMomentIsForgiven(t *testing.T) {
	f := newLeaseFile(t)
	forgiven := 0
	for range 10 {
		losing := mustHold(t, f, driver.NewToken())
		timer := time.AfterFunc(blink/5, func() { losing.Release() })
		if s := mustProbe(t, f, driver.NewToken()); !s.Others {
			forgiven++
		}
		timer.Stop()
		losing.Release()
	}
	if forgiven == 0 {
		t.Error("a byte that was held for a moment counted each time")
	}
}

func TestByteIsTakenOnce(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	if _, err := f.Hold(token); err == nil || !strings.Contains(err.Error(), f.path) {
		t.Errorf("held twice: %v", err)
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
	again := mustHold(t, f, token) // very likely on the same descriptor number
	if err := held.Release(); err != nil {
		t.Errorf("released again: %v", err)
	}
	if now := mustProbe(t, f, token); !now.Held {
		t.Error("releasing the first again has released the second")
	}
	again.Release()
}

func TestByteThatNobodySeesIsNoProof(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	if err := f.confirm(token, held.ID); err != nil {
		t.Error(err)
	}
	if err := f.confirm(token, "of a file that was replaced"); err == nil {
		t.Error("held in another file than the path leads to, and confirmed")
	}
	held.Release()
	if err := f.confirm(token, held.ID); err == nil {
		t.Error("not held, and confirmed")
	}
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
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(dup)
	}
	held.Release()
	if now := mustProbe(t, f, token); now.Held {
		t.Error("released, but still held through a duplicate")
	}
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
	if _, err := unix.InotifyAddWatch(events, dbPath,
		unix.IN_OPEN|unix.IN_CLOSE|unix.IN_ACCESS|unix.IN_MODIFY); err != nil {
		t.Fatal(err)
	}
	f := openFor(t, dbPath)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	seen := mustProbe(t, f, token)
	mustID(t, f)
	held.Release()
	awaitLong(t, f, token, seen)
	f.Close()
	if n, err := unix.Read(events, make([]byte, 4096)); err != unix.EAGAIN {
		t.Errorf("something has opened the database file: %d bytes of events, %v", n, err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dbPath := leasefiletest.NewDatabase(t)
	cycle := func() {
		f, err := Open(dbPath)
		if err != nil {
			t.Fatal(err)
		}
		token := driver.NewToken()
		held, err := f.Hold(token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Hold(token); err == nil {
			t.Fatal("held twice")
		}
		seen, err := f.Probe(token)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		f.Await(ctx, token, seen)
		cancel()
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		f.Await(t.Context(), token, seen)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cycle() // the runtime's own descriptors come with the first
	fds := len(openFDs(t))
	for range 40 {
		cycle()
	}
	if now := openFDs(t); len(now) > fds {
		t.Errorf("%d descriptors before, %d after 40 cycles: %v", fds, len(now), now)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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

func BenchmarkLeaseProbe(b *testing.B) {
	f := newLeaseFile(b)
	token := driver.NewToken()
	mustHold(b, f, token)
	for b.Loop() {
		if _, err := f.read(token); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLeaseHold(b *testing.B) {
	f := newLeaseFile(b)
	token := driver.NewToken()
	for b.Loop() {
		held, err := f.Hold(token)
		if err != nil {
			b.Fatal(err)
		}
		held.Release()
	}
}
