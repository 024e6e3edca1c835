// Package leasefiletest makes what tests of the lease file need beside it.
package leasefiletest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/filesystem"
	"example.com/schedlock/internal/missing"
)

// NewDatabase makes what stands for a database file: only its name, owner and
// mode matter.
func NewDatabase(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	if kind, err := filesystem.Type(dir); err != nil || filesystem.Local[kind] == "" {
		missing.Skip(t, "a local file system that is known: %s is %#x (%v)", dir, kind, err)
	}
	path := filepath.Join(dir, "app.db")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	return path
}

// LetIn opens the test's own folders to others.
func LetIn(t *testing.T, dir string) {
	t.Helper()
	ours, err := filepath.EvalSymlinks(os.TempDir())
	require.NoError(t, err)
	for ; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.HasPrefix(dir, ours+"/"):
			require.NoError(t, os.Chmod(dir, 0o755))
		case info.Mode().Perm()&0o001 == 0:
			missing.Skip(t, "a folder for temporary files that others may enter: %s", dir)
		}
	}
}
