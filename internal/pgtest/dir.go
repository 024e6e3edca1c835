package pgtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TempDir is a folder for the test, in memory where there is room: on a busy disk
// a flush may take longer than a replica has time to start. Like that of
// testing.T it is gone with the test, and its parent is the test's too. Whoever
// sets TMPDIR gets it there.
func TempDir(t testing.TB) string {
	t.Helper()
	memory := Memory()
	if memory == "" || os.Getenv("TMPDIR") != "" {
		return t.TempDir()
	}
	parent, err := os.MkdirTemp(memory, "schedlock")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(parent)) })
	require.NoError(t, os.Chmod(parent, 0o755))
	dir := filepath.Join(parent, "001")
	require.NoError(t, os.Mkdir(dir, 0o755))
	return dir
}
