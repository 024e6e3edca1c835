package leasefile

import (
	"bytes"
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
			require.NoError(t, os.WriteFile(path, content, 0o644))
		},
		"a copy moved over it": func(t *testing.T, path string, content []byte) {
			require.NoError(t, os.WriteFile(path+"2", content, 0o644))
			require.NoError(t, os.Rename(path+"2", path))
		},
		"a copy with all attributes": func(t *testing.T, path string, _ []byte) {
			out, err := exec.Command("cp", "-a", path, path+"2").CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.NoError(t, os.Rename(path+"2", path))
		},
		"the content of another written into it": func(t *testing.T, path string, content []byte) {
			content = bytes.Clone(content)
			if digit := &content[len(head)]; *digit == '0' {
				*digit = '1'
			} else {
				*digit = '0'
			}
			require.NoError(t, os.WriteFile(path, content, 0o644))
		},
	}
	for name, do := range replace {
		t.Run(name, func(t *testing.T) {
			f := newLeaseFile(t)
			token := driver.NewToken()
			held := mustHold(t, f, token)
			require.NotEmpty(t, held.ID)
			require.Equal(t, held.ID, mustID(t, f))
			content, err := os.ReadFile(f.path)
			require.NoError(t, err)
			seen := mustProbe(t, f, token)
			do(t, f.path, content)
			now := mustProbe(t, f, token)
			assert.NotEqual(t, held.ID, now.ID)
			assert.Equal(t, mustID(t, f), now.ID)
			assert.NotEqual(t, driver.SignDead, now.Sign(true, held.ID), "of a living holder")
			awaitLong(t, f, token, seen)
			assert.Equal(t, now.ID, mustHold(t, f, driver.NewToken()).ID, "of a new byte")
		})
	}
}

// While nobody has the old file open its inode is used again, by the very next
// file on ext4: only the birth time tells a copy from it.
func TestInodeMayBeUsedAgain(t *testing.T) {
	f := newLeaseFile(t)
	content, err := os.ReadFile(f.path)
	require.NoError(t, err)
	ids, inodes := map[string]bool{}, map[uint64]bool{}
	const rounds = 20
	for range rounds {
		info, err := os.Stat(f.path)
		require.NoError(t, err)
		ids[mustID(t, f)], inodes[info.Sys().(*syscall.Stat_t).Ino] = true, true
		time.Sleep(10 * time.Millisecond) // the kernel's clock may tick at 100 Hz
		os.Remove(f.path)
		require.NoError(t, os.WriteFile(f.path, content, 0o644))
	}
	assert.Len(t, ids, rounds)
	if len(inodes) == rounds {
		t.Log("no inode was used again, so this has shown nothing")
	}
}

func TestDeletedLeaseFileProvesNothing(t *testing.T) {
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	require.NoError(t, os.Remove(f.path))
	_, err := f.id()
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, f.path)
	s, err := f.Probe(token)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.Zero(t, s)
	assert.NoFileExists(t, f.path, "a look has made a new file")
	// Nor does one that is deleted in the middle of a look.
	other := openFor(t, leasefiletest.NewDatabase(t))
	fd, _, err := other.open(unix.O_RDONLY)
	require.NoError(t, err)
	defer unix.Close(fd)
	os.Remove(other.path)
	_, err = other.identify(fd)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	// The next acquisition makes a new one, in which the old proves nothing.
	next := mustHold(t, f, driver.NewToken())
	assert.NotEmpty(t, next.ID)
	assert.NotEqual(t, held.ID, next.ID)
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
			require.NoError(t, put(path))
			before, err := os.Lstat(path)
			require.NoError(t, err)
			_, err = Open(dbPath, nil)
			assert.ErrorContains(t, err, path)
			// And if it comes to lie there later:
			f := newLeaseFile(t)
			f.path, f.dbPath = path, dbPath
			_, err = f.id()
			assert.ErrorContains(t, err, path)
			_, err = f.Hold(tokenAt(0))
			assert.Error(t, err)
			after, err := os.Lstat(path)
			require.NoError(t, err)
			assert.True(t, os.SameFile(before, after))
			assert.Equal(t, fs.FormatFileInfo(before), fs.FormatFileInfo(after))
		})
	}
	// What the others differ from is fine.
	dbPath := leasefiletest.NewDatabase(t)
	require.NoError(t, os.WriteFile(dbPath+"-lease", []byte(head+id+tail), 0o644))
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
		assert.Equal(t, tc.want, mustProbe(t, mine, tokenAt(tc.token), except...), "%+v", tc)
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

func TestAProbeLeavesOutOnlySoMany(t *testing.T) {
	f := newLeaseFile(t)
	hung := map[int64]driver.Token{}
	for range maxDisregarded + 1 {
		token := driver.NewToken()
		mustHold(t, f, token)
		hung[Offset(token)] = token
	}
	state, without, err := f.ProbeWithout(driver.NewToken(),
		func(_ string, held Span) (driver.Token, bool) { return hung[held.Start], true }, nil)
	require.NoError(t, err)
	assert.True(t, state.Others, "%+v", state)
	assert.Equal(t, maxDisregarded, len(without))
}

// A byte that hangs in one file says nothing about the same byte of another.
func TestWhatWasLeftOutCountsAgainInAnotherFile(t *testing.T) {
	f := newLeaseFile(t)
	hung := driver.NewToken()
	mustHold(t, f, hung)
	var ids []string
	disregard := func(id string, _ Span) (driver.Token, bool) {
		if ids = append(ids, id); len(ids) > 1 {
			return driver.Token{}, false
		}
		require.NoError(t, os.Remove(f.path))
		mustHold(t, f, hung)
		return hung, true
	}
	state, without, err := f.ProbeWithout(driver.NewToken(), disregard, nil)
	require.NoError(t, err)
	assert.True(t, state.Others, "%+v", state)
	assert.Empty(t, without)
	require.GreaterOrEqual(t, len(ids), 2)
	assert.NotEqual(t, ids[0], ids[1])
}

// An inode and a birth time may be the same on two machines, such as on clones of one disk.
func TestTwoLeaseFilesHaveNotTheSameContent(t *testing.T) {
	one, err := os.ReadFile(newLeaseFile(t).path)
	require.NoError(t, err)
	other, err := os.ReadFile(newLeaseFile(t).path)
	require.NoError(t, err)
	assert.NotEqual(t, string(one), string(other))
}
