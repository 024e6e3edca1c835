//go:build linux

package faults

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process that starts while the database is moved away must not make another:
// SQLite would delete the -wal file, with all that is not in the database yet.
func TestNoDatabaseIsMadeBesideTheWALOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path+"-wal", []byte("frames"), 0o600))
	assert.ErrorIs(t, makeFile(path), os.ErrNotExist)
	assert.NoFileExists(t, path)

	require.NoError(t, os.Remove(path+"-wal"))
	assert.NoError(t, makeFile(path))
	assert.FileExists(t, path)
	assert.NoError(t, makeFile(path), "it is there")
}
