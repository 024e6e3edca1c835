//go:build unix

package bans

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAFolderOpensNothingButRegularFilesInIt(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, "lists", name) }
	require.NoError(t, os.Mkdir(path(""), 0o700))
	require.NoError(t, os.WriteFile(path("a.txt"), []byte("192.0.2.1"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "outside"), []byte("192.0.2.2"), 0o600))
	require.NoError(t, os.Symlink("a.txt", path("inside.txt")))
	require.NoError(t, os.Symlink("../outside", path("out.txt")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "outside"), path("absolute.txt")))
	require.NoError(t, os.Symlink(os.DevNull, path("device.txt")))
	require.NoError(t, syscall.Mkfifo(path("pipe.txt"), 0o600))
	require.NoError(t, os.Mkdir(path("folder.txt"), 0o700))
	require.NoError(t, os.Symlink("lists", filepath.Join(dir, "link")))

	folder, err := OpenFolder(filepath.Join(dir, "link"))
	require.NoError(t, err)
	defer folder.Close()
	for _, name := range []string{"a.txt", "inside.txt"} {
		content, err := fs.ReadFile(folder, name)
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.1", string(content))
	}
	for name, want := range map[string]error{
		"out.txt": errLeadsOut, "absolute.txt": errLeadsOut, "device.txt": errLeadsOut,
		"pipe.txt": errNotRegular, "folder.txt": errNotRegular, "missing.txt": fs.ErrNotExist,
	} {
		_, err := folder.Open(name) // does not wait for a writer
		assert.ErrorIs(t, err, want, name)
	}
	for _, name := range []string{"../outside", "/etc/passwd", "folder.txt/../../outside"} {
		_, err := folder.Open(name)
		assert.Error(t, err, name)
	}
}
