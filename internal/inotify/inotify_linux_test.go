package inotify

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
)

// watches is how many the kernel has for w.
func watches(t *testing.T, w *Watch) int {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", w.raw))
	if err != nil {
		missing.Skip(t, "/proc: %v", err)
	}
	return strings.Count(string(info), "inotify wd:")
}

func awaitTold(t *testing.T, what string, told <-chan struct{}) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(20 * time.Second):
		t.Fatal(what + " was not told")
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
}

func TestEachChangeIsToldWhereItShallBe(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var w Watch
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	first, second := filepath.Join(folder, "first"), filepath.Join(folder, "second")
	write(t, first)
	write(t, second)
	channel := func() chan struct{} { return make(chan struct{}, 1) }
	writes, closes, moves := channel(), channel(), channel()
	fate := map[string]chan struct{}{first: channel(), second: channel()}
	require.True(t, w.Add(first, Writes, writes))
	require.True(t, w.Add(second, Closes, closes))
	require.True(t, w.Add(folder, Moves, moves))
	require.Equal(t, 3, watches(t, &w))

	f, err := os.OpenFile(second, os.O_WRONLY, 0)
	require.NoError(t, err)
	write(t, first)
	awaitTold(t, "the write", writes)
	require.Empty(t, closes)
	require.NoError(t, f.Close())
	awaitTold(t, "the closing", closes)

	for path, told := range fate {
		require.True(t, w.Add(path, Fate, told))
	}
	require.Equal(t, 3, watches(t, &w), "one for each file or folder")
	write(t, filepath.Join(folder, "third"))
	require.NoError(t, os.Remove(filepath.Join(folder, "third")))
	require.NoError(t, os.Rename(first, second)) // so neither name leads to what it led to
	for path, told := range fate {
		awaitTold(t, path, told)
	}
	require.Empty(t, moves, "it is where it was")
	require.NoError(t, os.Rename(folder, folder+"2"))
	awaitTold(t, "the folder", moves)

	require.NoError(t, w.Close())
	require.NoError(t, w.Close(), "again")
	require.False(t, w.Add(folder+"2", Moves, moves), "it is closed")
}

func TestWhatOthersDoInTheFolderIsNotTold(t *testing.T) {
	var w Watch
	defer w.Close()
	folder, told, other := t.TempDir(), make(chan struct{}, 1), make(chan struct{}, 1)
	file, last := filepath.Join(folder, "file"), filepath.Join(folder, "last")
	write(t, file)
	write(t, last)
	require.True(t, w.Add(folder, Moves, told))
	require.True(t, w.Add(file, Fate, told))
	require.True(t, w.Add(last, Fate, other))
	for i := range 10 {
		path := filepath.Join(folder, fmt.Sprint(i))
		write(t, path)
		require.NoError(t, os.Chmod(path, 0o400))
		require.NoError(t, os.Rename(path, path+"2"))
		require.NoError(t, os.Remove(path+"2"))
	}
	write(t, file) // a write is no fate either
	require.NoError(t, os.Remove(last))
	awaitTold(t, "the removal, which came last,", other)
	require.Empty(t, told)
}

func TestAPathIsWatchedAnewWhenItLeadsElsewhere(t *testing.T) {
	var w Watch
	defer w.Close()
	file, link := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "link")
	told := make(chan struct{}, 1)
	for range 3 {
		write(t, file)
		require.True(t, w.Add(file, Closes, told))
		require.Equal(t, 1, watches(t, &w), "what it led to before is watched no more")
		write(t, file)
		awaitTold(t, "the closing", told)
		require.NoError(t, os.Rename(file, file+"2"))
		require.False(t, w.Add(file, Closes, told), "there is nothing")
		write(t, file+"2")
		awaitTold(t, "the closing of what was there before", told)
	}
	for range 3 { // the link itself, and not what it leads to
		require.NoError(t, os.Symlink("nowhere", link))
		require.True(t, w.Add(link, Fate, told))
		require.NoError(t, os.Rename(link, link+"2"))
		awaitTold(t, "the link", told)
	}
}

// Two paths, or two kinds of change, may lead to one file. It is watched as long as one of them
// does.
func TestAFileIsWatchedForWhoeverAsks(t *testing.T) {
	var w Watch
	defer w.Close()
	folder, other := t.TempDir(), make(chan struct{}, 1)
	told := make(chan struct{}, 1)
	file, second := filepath.Join(folder, "file"), filepath.Join(folder, "second")
	write(t, file)
	require.NoError(t, os.Link(file, second))
	require.True(t, w.Add(second, Closes, other))
	require.True(t, w.Add(file, Closes, told))
	require.NoError(t, os.Remove(file))
	write(t, file)
	require.True(t, w.Add(file, Closes, told))
	require.Equal(t, 2, watches(t, &w))
	write(t, second)
	awaitTold(t, "the closing of what has another name", other)
}

func TestWithoutAnInstanceNothingIsTold(t *testing.T) {
	n := 0
	w := Watch{Start: func(flags int) (int, error) {
		if n++; n == 1 {
			return -1, unix.EMFILE
		}
		return unix.InotifyInit1(flags)
	}}
	defer w.Close()
	told := make(chan struct{}, 1)
	require.False(t, w.Add(t.TempDir(), Moves, told))
	require.True(t, w.Add(t.TempDir(), Moves, told), "another has ended meanwhile")
	require.False(t, (*Watch)(nil).Add(t.TempDir(), Moves, told))
}
