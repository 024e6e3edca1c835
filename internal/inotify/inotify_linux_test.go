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
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	write(t, file)
	names, writes, closes := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	second := filepath.Join(folder, "second")
	write(t, second)
	require.True(t, w.Add(folder, Names, names))
	require.True(t, w.Add(file, Writes, writes))
	require.True(t, w.Add(second, Closes, closes))
	require.Equal(t, 3, watches(t, &w))

	f, err := os.OpenFile(second, os.O_WRONLY, 0)
	require.NoError(t, err)
	write(t, file)
	awaitTold(t, "the write", writes)
	require.Empty(t, closes)
	require.Empty(t, names)
	require.NoError(t, f.Close())
	awaitTold(t, "the closing", closes)
	require.NoError(t, os.Remove(second))
	awaitTold(t, "the removal", names)

	require.NoError(t, w.Close())
	require.NoError(t, w.Close(), "again")
	require.False(t, w.Add(folder, Names, names), "it is closed")
}

func TestAPathIsWatchedAnewWhenItLeadsElsewhere(t *testing.T) {
	var w Watch
	defer w.Close()
	folder := t.TempDir()
	file, link := filepath.Join(folder, "file"), filepath.Join(folder, "link")
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
	// Two paths to one folder: it is watched as long as one of them leads there.
	other := t.TempDir()
	require.NoError(t, os.Symlink(folder, link))
	require.True(t, w.Add(folder, Names, told))
	require.True(t, w.Add(link, Names, told))
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(other, link))
	awaitTold(t, "the link", told)
	require.True(t, w.Add(link, Names, told))
	select {
	case <-told: // of the link's two changes
	default:
	}
	write(t, filepath.Join(folder, "new"))
	awaitTold(t, "the new name", told)
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
	require.False(t, w.Add(t.TempDir(), Names, told))
	require.True(t, w.Add(t.TempDir(), Names, told), "another has ended meanwhile")
	require.False(t, (*Watch)(nil).Add(t.TempDir(), Names, told))
}
