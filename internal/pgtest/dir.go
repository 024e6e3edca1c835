package pgtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TempDir is a folder for the test whose path is short. Like that of testing.T it
// is gone with the test, and its parent is the test's too.
func TempDir(t testing.TB) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "schedlock")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(parent)) })
	require.NoError(t, os.Chmod(parent, 0o755))
	dir := filepath.Join(parent, "001")
	require.NoError(t, os.Mkdir(dir, 0o755))
	return dir
}
