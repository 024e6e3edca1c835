package leasefile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/leasefile/leasefiletest"
	"example.com/schedlock/schedlock/driver"
)

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
