package leasefile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/filesystem"
	"example.com/schedlock/internal/leasefile/leasefiletest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

func init() {
	child.Modes["lease hold"] = childHold
	child.Modes["lease linger"] = func() { io.Copy(io.Discard, os.Stdin) }
	child.Modes["lease probe"] = childProbe
	child.Modes["lease open"] = childOpen
	child.Modes["lease nobody"] = childNobody
}

// childHold holds the byte of a token; with a third argument it starts a
// process that outlives it.
func childHold() {
	f, err := Open(os.Args[1])
	child.Check(err)
	token, err := driver.ParseToken(os.Args[2])
	child.Check(err)
	held, err := f.Hold(token)
	child.Check(err)
	if len(os.Args) > 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child.Env+"=lease linger")
		cmd.Stdin = os.Stdin
		child.Check(cmd.Start())
		fmt.Println(cmd.Process.Pid)
		for { // leaves stdin to the other
			time.Sleep(time.Hour)
		}
	}
	fmt.Println(held.ID)
	io.Copy(io.Discard, os.Stdin)
}

// childProbe probes all the time until its stdin ends.
func childProbe() {
	f, err := Open(os.Args[1])
	child.Check(err)
	token, err := driver.ParseToken(os.Args[2])
	child.Check(err)
	ended := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(ended) }()
	fmt.Println("ready")
	for n := 0; ; n++ {
		select {
		case <-ended:
			fmt.Println(n)
			return
		default:
		}
		_, err := f.read(token)
		child.Check(err)
	}
}

// childOpen waits for a word and opens, or makes, a lease file.
func childOpen() {
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	f, err := Open(os.Args[1])
	child.Check(err)
	id, err := f.id()
	child.Check(err)
	fmt.Println(id)
}

// childNobody does as a user who may do little.
func childNobody() {
	child.Check(syscall.Setgroups(nil))
	child.Check(syscall.Setgid(65534))
	child.Check(syscall.Setuid(65534))
	f, err := Open(os.Args[1])
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	if _, err := f.Probe(tokenAt(0)); err != nil {
		fmt.Println("probe:", err)
		return
	}
	if _, err := f.Hold(tokenAt(0)); err != nil {
		fmt.Println("hold:", err)
		return
	}
	fmt.Println("ok")
}

func newLeaseFile(t testing.TB) *File {
	t.Helper()
	return openFor(t, leasefiletest.NewDatabase(t))
}

func openFor(t testing.TB, dbPath string) *File {
	t.Helper()
	f, err := Open(dbPath)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mustHold(t testing.TB, f *File, token driver.Token) Byte {
	t.Helper()
	held, err := f.Hold(token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Release() })
	return held
}

func mustProbe(t testing.TB, f *File, token driver.Token, except ...driver.Token) State {
	t.Helper()
	s, err := f.Probe(token, except...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// id names the file that the path leads to now.
func (f *File) id() (string, error) {
	fd, id, err := f.open(unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	unix.Close(fd)
	return id, nil
}

func mustID(t testing.TB, f *File) string {
	t.Helper()
	id, err := f.id()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// awaitLong awaits as a standby does, a second at a time, and fails after 2 s.
func awaitLong(t testing.TB, f *File, token driver.Token, seen State) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		f.Await(ctx, token, seen)
		ended := ctx.Err() != nil
		cancel()
		if !ended {
			return
		}
		if time.Now().After(end) {
			t.Fatal("not woken within 2 s")
		}
	}
}

func describe(d []time.Duration) string {
	slices.Sort(d)
	return fmt.Sprintf("min %v, median %v, max %v of %d", d[0], d[len(d)/2], d[len(d)-1], len(d))
}

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

func TestAnotherLeaseFileHasAnotherID(t *testing.T) {
	replace := map[string]func(t *testing.T, path string, content []byte){
		"deleted and made anew": func(t *testing.T, path string, _ []byte) {
			os.Remove(path)
			openFor(t, strings.TrimSuffix(path, "-lease"))
		},
		"deleted and a copy put there": func(t *testing.T, path string, content []byte) {
			os.Remove(path) // the inode may be used again at once
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"a copy moved over it": func(t *testing.T, path string, content []byte) {
			if err := os.WriteFile(path+"2", content, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+"2", path); err != nil {
				t.Fatal(err)
			}
		},
		"a copy with all attributes": func(t *testing.T, path string, _ []byte) {
			if out, err := exec.Command("cp", "-a", path, path+"2").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := os.Rename(path+"2", path); err != nil {
				t.Fatal(err)
			}
		},
		"the content of another written into it": func(t *testing.T, path string, content []byte) {
			content = bytes.Clone(content)
			if digit := &content[len(head)]; *digit == '0' {
				*digit = '1'
			} else {
				*digit = '0'
			}
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, do := range replace {
		t.Run(name, func(t *testing.T) {
			f := newLeaseFile(t)
			token := driver.NewToken()
			held := mustHold(t, f, token)
			if id := mustID(t, f); id == "" || id != held.ID {
				t.Fatalf("the id is %q, that of the held byte %q", id, held.ID)
			}
			content, err := os.ReadFile(f.path)
			if err != nil {
				t.Fatal(err)
			}
			seen := mustProbe(t, f, token)
			do(t, f.path, content)
			now := mustProbe(t, f, token)
			if now.ID == held.ID || now.ID != mustID(t, f) {
				t.Errorf("the id is %q, before it was %q", now.ID, held.ID)
			}
			if sign := now.Sign(true, held.ID); sign == driver.SignDead {
				t.Errorf("a living holder is taken for dead: %+v", now)
			}
			awaitLong(t, f, token, seen)
			if again := mustHold(t, f, driver.NewToken()); again.ID != now.ID {
				t.Errorf("a new byte is in the file %q, the path leads to %q", again.ID, now.ID)
			}
		})
	}
}

// While nobody has the old file open its inode is used again, by the very next
// file on ext4: only the birth time tells a copy from it.
func TestInodeMayBeUsedAgain(t *testing.T) {
	f := newLeaseFile(t)
	content, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	ids, inodes := map[string]bool{}, map[uint64]bool{}
	const rounds = 20
	for range rounds {
		info, err := os.Stat(f.path)
		if err != nil {
			t.Fatal(err)
		}
		ids[mustID(t, f)], inodes[info.Sys().(*syscall.Stat_t).Ino] = true, true
		time.Sleep(10 * time.Millisecond) // the kernel's clock may tick at 100 Hz
		os.Remove(f.path)
		if err := os.WriteFile(f.path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if len(ids) != rounds {
		t.Errorf("%d files had %d ids", rounds, len(ids))
	}
	if len(inodes) == rounds {
		t.Log("no inode was used again, so this has shown nothing")
	}
}

func TestDeletedLeaseFileProvesNothing(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	if id, err := f.id(); id != "" || !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), f.path) {
		t.Errorf("id: %q, %v", id, err)
	}
	if s, err := f.Probe(token); s != (State{}) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("probe: %+v, %v", s, err)
	}
	if _, err := os.Stat(f.path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a look has made a new file")
	}
	// Nor does one that is deleted in the middle of a look.
	other := openFor(t, leasefiletest.NewDatabase(t))
	fd, _, err := other.open(unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	os.Remove(other.path)
	if id, err := other.identify(fd); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted, but identified as %q, %v", id, err)
	}
	// The next acquisition makes a new one, in which the old proves nothing.
	if next := mustHold(t, f, driver.NewToken()); next.ID == held.ID || next.ID == "" {
		t.Errorf("the new file has the id %q, the old one had %q", next.ID, held.ID)
	}
}

func TestForeignLeaseFileIsLeftAlone(t *testing.T) {
	content := func(s string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(s), 0o644) }
	}
	id := strings.Repeat("ab", randomSize)
	for name, put := range map[string]func(path string) error{
		"empty":                 content(""),
		"short":                 content(head + id),
		"of the same size":      content(strings.Repeat("x", fileSize)),
		"no hexadecimal digits": content(head + strings.Repeat("xy", randomSize) + tail),
		"another head":          content("S" + head[1:] + id + tail),
		"another tail":          content(head + id + tail[:len(tail)-1] + " "),
		"longer":                content(head + id + tail + "\n"),
		"a directory":           func(path string) error { return os.Mkdir(path, 0o755) },
		"a pipe":                func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"a dangling link":       func(path string) error { return os.Symlink(path+"2", path) },
		"a link": func(path string) error {
			other := path + "2"
			if err := os.WriteFile(other, []byte(head+id+tail), 0o644); err != nil {
				return err
			}
			return os.Symlink(other, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dbPath := leasefiletest.NewDatabase(t)
			path := dbPath + "-lease"
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dbPath); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("Open: %v, want an error that names the file", err)
			}
			// And if it comes to lie there later:
			f := newLeaseFile(t)
			f.path, f.dbPath = path, dbPath
			if id, err := f.id(); id != "" || err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("id: %q, %v", id, err)
			}
			if held, err := f.Hold(tokenAt(0)); err == nil {
				t.Errorf("hold: %+v", held)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || after.Size() != before.Size() ||
				after.Mode() != before.Mode() || !after.ModTime().Equal(before.ModTime()) {
				t.Errorf("the file was changed: %v, %v", after, err)
			}
		})
	}
	// What the others differ from is fine.
	dbPath := leasefiletest.NewDatabase(t)
	if err := os.WriteFile(dbPath+"-lease", []byte(head+id+tail), 0o644); err != nil {
		t.Fatal(err)
	}
	openFor(t, dbPath)
}

func TestOtherBytesAreReported(t *testing.T) {
	dbPath := leasefiletest.NewDatabase(t)
	mine, theirs := openFor(t, dbPath), openFor(t, dbPath)
	const middle = 1 << 60
	for _, tc := range []struct {
		token  uint64
		held   []uint64
		except []uint64
		want   State
	}{
		{token: middle},
		{token: middle, held: []uint64{middle}, want: State{Held: true}},
		{token: middle, held: []uint64{middle - 1}, want: State{Others: true}},
		{token: middle, held: []uint64{middle + 1}, want: State{Others: true}},
		{token: middle, held: []uint64{0}, want: State{Others: true}},
		{token: middle, held: []uint64{maxTokenBits}, want: State{Others: true}},
		{token: middle, held: []uint64{middle, maxTokenBits}, want: State{Held: true}},
		{token: 0, held: []uint64{0}, want: State{Held: true}},
		{token: 0, held: []uint64{1}, want: State{Others: true}},
		{token: maxTokenBits, held: []uint64{maxTokenBits}, want: State{Held: true}},
		{token: maxTokenBits, held: []uint64{maxTokenBits - 1}, want: State{Others: true}},
		{token: middle, held: []uint64{7}, except: []uint64{7}},
		{token: middle, held: []uint64{7, 8, 9}, except: []uint64{9, 7},
			want: State{Others: true}},
		{token: middle, held: []uint64{7, 8, 9}, except: []uint64{9, 7, 8}},
		{token: middle, held: []uint64{middle, 7}, except: []uint64{7},
			want: State{Held: true}},
		// Of a lease that is over for certain, the byte does not count either.
		{token: middle, held: []uint64{middle}, except: []uint64{middle}},
		{token: middle, held: []uint64{middle, 7}, except: []uint64{middle},
			want: State{Others: true}},
	} {
		tc.want.ID = mustID(t, mine)
		var except []driver.Token
		for _, bits := range tc.except {
			except = append(except, tokenAt(bits))
		}
		var bytes []Byte
		for _, bits := range tc.held {
			bytes = append(bytes, mustHold(t, theirs, tokenAt(bits)))
		}
		if got := mustProbe(t, mine, tokenAt(tc.token), except...); got != tc.want {
			t.Errorf("%+v: %+v", tc, got)
		}
		for _, b := range bytes {
			b.Release()
		}
	}
}

func TestWhatTheLeaseFileShowsOfManyThatHang(t *testing.T) {
	f := newLeaseFile(t)
	row := driver.NewToken()
	hung := map[int64]driver.Token{}
	for range 5 {
		token := driver.NewToken()
		mustHold(t, f, token)
		hung[Offset(token)] = token
	}
	asked := 0
	disregard := func(id string, held Span) (driver.Token, bool) {
		asked++
		token, ok := hung[held.Start]
		return token, ok && held.Length == 1
	}
	state, without, err := f.ProbeWithout(row, disregard, nil)
	require.NoError(t, err)
	assert.False(t, state.Held || state.Others, "%+v", state)
	assert.Len(t, without, 5)
	assert.Equal(t, 5, asked)

	mustHold(t, f, driver.NewToken())
	state, without, err = f.ProbeWithout(row, disregard, nil)
	require.NoError(t, err)
	assert.True(t, state.Others, "of one it is not known")
	assert.Equal(t, state, mustProbe(t, f, row, without...), fmt.Sprint(len(without)))
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

func TestNetworkFileSystemGetsNoLeaseFile(t *testing.T) {
	dbPath := leasefiletest.NewDatabase(t)
	kind, err := filesystem.Type(dbPath)
	if err != nil {
		t.Fatal(err)
	}
	f := openFor(t, leasefiletest.NewDatabase(t))
	defer func(name string) { filesystem.Local[kind] = name }(filesystem.Local[kind])
	delete(filesystem.Local, kind)
	if _, err := Open(dbPath); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Open: %v, want ErrUnsupported", err)
	}
	wantFiles(t, filepath.Dir(dbPath), "app.db")
	if _, err := f.id(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("id: %v, want ErrUnsupported", err)
	}
	if _, err := f.Hold(tokenAt(0)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("hold: %v, want ErrUnsupported", err)
	}
}

func TestLeaseFileIsUsableByTheDatabasesUsers(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, mode := range []fs.FileMode{0o600, 0o640, 0o660, 0o666, 0o444} {
		dbPath := leasefiletest.NewDatabase(t)
		if err := os.Chmod(dbPath, mode); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(dbPath, 1234, 2345); err != nil {
				t.Fatal(err)
			}
		}
		openFor(t, dbPath)
		info, err := os.Stat(dbPath + "-lease")
		if err != nil {
			t.Fatal(err)
		}
		// Who may not write it may not lock it.
		if want := mode&0o222 | mode&0o222<<1 | 0o600; info.Mode() != want {
			t.Errorf("database %v: the lease file is %v", mode, info.Mode())
		}
		if st := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 &&
			(st.Uid != 1234 || st.Gid != 2345) {
			t.Errorf("the lease file belongs to %d:%d, not to the database's owner", st.Uid, st.Gid)
		}
	}
}

func TestALeaseFileOfAnEarlierReleaseIsClosedToThoseWhoMayNotWrite(t *testing.T) {
	for _, tc := range []struct{ db, lease, want fs.FileMode }{
		{0o644, 0o644, 0o600},
		{0o664, 0o644, 0o660}, // and opened to those who may
		{0o666, 0o600, 0o666},
		{0o640, 0o666, 0o600},
	} {
		path := leasefiletest.NewDatabase(t)
		openFor(t, path)
		require.NoError(t, os.Chmod(path, tc.db))
		require.NoError(t, os.Chmod(path+"-lease", tc.lease))
		id := mustID(t, openFor(t, path))
		info, err := os.Stat(path + "-lease")
		require.NoError(t, err)
		assert.Equal(t, tc.want, info.Mode(), "database %v, lease file %v", tc.db, tc.lease)
		assert.Equal(t, id, mustID(t, openFor(t, path)), "it is the same still")
	}
}

func TestOthersMayProveNothing(t *testing.T) {
	missing.Root(t)
	for _, tc := range []struct {
		name       string
		mode       fs.FileMode // of the database and its lease file; 0: there is none
		want, deny string
	}{
		{"may write", 0o666, "ok", ""},
		{"may read", 0o644, "open:", "permission denied"},
		{"may not read", 0o600, "open:", "permission denied"},
		{"folder is read-only", 0, "open:", "permission denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dbPath := leasefiletest.NewDatabase(t)
			leasefiletest.LetIn(t, filepath.Dir(dbPath))
			if tc.mode != 0 {
				if err := os.Chmod(dbPath, tc.mode); err != nil {
					t.Fatal(err)
				}
				openFor(t, dbPath)
			}
			got := child.Start(t, "lease nobody", dbPath).Line()
			if !strings.HasPrefix(got, tc.want) || !strings.Contains(got, tc.deny) ||
				tc.deny != "" && !strings.Contains(got, dbPath+"-lease") {
				t.Errorf("%q, want %s … %s", got, tc.want, tc.deny)
			}
			if tc.mode == 0 {
				wantFiles(t, filepath.Dir(dbPath), "app.db")
			}
		})
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

func TestAwaitWaitsOutWhatWasSeen(t *testing.T) {
	t.Parallel()
	f := newLeaseFile(t)
	token, other := driver.NewToken(), driver.NewToken()
	bounded := func(d time.Duration, seen State) (returned bool, took time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		start := time.Now()
		f.Await(ctx, token, seen)
		return ctx.Err() == nil, time.Since(start)
	}
	free := mustProbe(t, f, token)
	if returned, _ := bounded(200*time.Millisecond, free); returned {
		t.Error("free, as it was seen: await returned")
	}
	if returned, _ := bounded(200*time.Millisecond, State{}); !returned {
		t.Error("it can be told again: await did not return")
	}
	held := mustHold(t, f, other)
	if returned, took := bounded(10*time.Second, free); !returned || took > 5*time.Second {
		t.Errorf("another byte is held now: await did not return (%v)", took)
	}
	if returned, _ := bounded(200*time.Millisecond, mustProbe(t, f, token)); returned {
		t.Error("another byte is held, as it was seen: await returned")
	}
	held.Release()
	os.Remove(f.path)
	if returned, _ := bounded(200*time.Millisecond, free); !returned {
		t.Error("the file is gone: await did not return")
	}
	if returned, _ := bounded(200*time.Millisecond, State{}); returned {
		t.Error("the file is gone, as it was seen: await returned")
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	for name, start := range map[string]func(int) (int, error){
		"events":  unix.InotifyInit1,
		"polling": func(int) (int, error) { return -1, unix.EMFILE },
	} {
		t.Run(name, func(t *testing.T) {
			f := newLeaseFile(t)
			f.watch.start = start
			token := driver.NewToken()
			mustHold(t, f, token)
			seen := mustProbe(t, f, token)
			var late []time.Duration
			for i := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan time.Time, 1)
				time.AfterFunc(time.Duration(i)*3*time.Millisecond, func() {
					ended <- time.Now()
					cancel()
				})
				f.Await(ctx, token, seen)
				late = append(late, time.Since(<-ended))
				if ctx.Err() == nil {
					t.Error("await returned although nothing has changed")
				}
				cancel()
			}
			slices.Sort(late)
			// Half of the time a poll would last: it was not the poll that ended it.
			if late[len(late)/2] > pollWithout/2 {
				t.Errorf("await ends late: %s", describe(late))
			}
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			f.Await(cancelled, token, seen)
		})
	}
}

func TestAwaitNeedsNextToNoProcessor(t *testing.T) {
	for name, start := range map[string]func(int) (int, error){
		"events":  unix.InotifyInit1,
		"polling": func(int) (int, error) { return -1, unix.EMFILE },
	} {
		t.Run(name, func(t *testing.T) {
			f := newLeaseFile(t)
			f.watch.start = start
			token := driver.NewToken()
			mustHold(t, f, token)
			seen := mustProbe(t, f, token)
			used := func() time.Duration {
				var u unix.Rusage
				if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
					t.Fatal(err)
				}
				return time.Duration(u.Utime.Nano() + u.Stime.Nano())
			}
			before, begin := used(), time.Now()
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				f.Await(ctx, token, seen)
				cancel()
			}
			share := float64(used()-before) / float64(time.Since(begin))
			t.Logf("%.2f %% of a core", 100*share)
			if share > 0.10 {
				t.Errorf("await uses %.0f %% of a core", 100*share)
			}
		})
	}
}

// A process that opens and closes the file for writing all the time must not
// make us spin, nor keep us from seeing the end of the holder.
func TestAwaitSurvivesAStormOfEvents(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	seen := mustProbe(t, f, token)
	stop := make(chan struct{})
	var storm sync.WaitGroup
	storm.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if file, err := os.OpenFile(f.path, os.O_WRONLY, 0); err == nil {
					file.Close()
				}
			}
		}
	})
	defer storm.Wait()
	defer close(stop)
	probes := countOpens(t, f.path, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		f.Await(ctx, token, seen)
		if ctx.Err() == nil {
			t.Error("await returned although nothing has changed")
		}
	})
	t.Logf("%d probes in 500 ms", probes)
	if probes > 1100 {
		t.Errorf("%d probes in 500 ms of storm", probes)
	}
	time.AfterFunc(20*time.Millisecond, func() { held.Release() })
	awaitLong(t, f, token, seen)
}

// countOpens counts how often the file is closed that was open for reading.
func countOpens(t *testing.T, path string, during func()) (n int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		missing.Skip(t, "inotify: %v", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_CLOSE); err != nil {
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for buf := make([]byte, 64<<10); ; {
			size, err := events.Read(buf)
			if err != nil {
				return
			}
			for at := 0; at+unix.SizeofInotifyEvent <= size; at += unix.SizeofInotifyEvent {
				if mask := uint32(buf[at+4]) | uint32(buf[at+
					5])<<8; mask&unix.IN_CLOSE_NOWRITE != 0 {
					n++
				}
			}
		}
	})
	during()
	events.Close()
	reader.Wait()
	return n
}

func TestManyMayAwaitAtOnce(t *testing.T) {
	t.Parallel()
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	seen := mustProbe(t, f, token)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() { f.Await(ctx, token, seen) })
	}
	time.Sleep(100 * time.Millisecond)
	held.Release()
	waiting.Wait()
	if ctx.Err() != nil {
		t.Error("not all of them were woken")
	}
}

func TestCloseEndsAwait(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(int) (int, error){
		"events":  unix.InotifyInit1,
		"polling": func(int) (int, error) { return -1, unix.EMFILE },
	} {
		t.Run(name, func(t *testing.T) {
			f := newLeaseFile(t)
			f.watch.start = start
			token := driver.NewToken()
			mustHold(t, f, token)
			seen := mustProbe(t, f, token)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			time.AfterFunc(60*time.Millisecond, func() { f.Close() })
			f.Await(ctx, token, seen)
			if ctx.Err() != nil {
				t.Error("await outlasted close")
			}
			if err := f.Close(); err != nil {
				t.Errorf("closed again: %v", err)
			}
			if now := mustProbe(t, f, token); !now.Held {
				t.Error("close has released a byte")
			}
			// A caller in a loop must not spin on what is closed.
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			f.Await(short, token, State{})
			if short.Err() == nil {
				t.Error("await returned at once after close")
			}
		})
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
