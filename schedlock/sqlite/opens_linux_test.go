package sqlite

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pieces is how many pieces of memory this process has. It may have 65,530.
func pieces(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return bytes.Count(raw, []byte("\n"))
}

func TestAnOpeningThatFailsLeavesNoMemoryBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("no database"), 100), 0o600))
	files, err := findFiles(path)
	require.NoError(t, err)
	files.readOnly = true // asks nobody else
	src, err := parseDSN(path)
	require.NoError(t, err)
	connector, err := newConnector(src.dsn)
	require.NoError(t, err)

	const opens = 200
	before := pieces(t)
	for range opens {
		db := sql.OpenDB(&pool{databaseFiles: files, Connector: connector}) // in no pause
		require.ErrorIs(t, db.PingContext(bg), sqlite3.NOTADB)
		require.NoError(t, db.Close())
	}
	assert.Less(t, pieces(t)-before, opens/2)
}
