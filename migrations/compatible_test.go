package migrations

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
)

// During a deploy, and after a roll-back, code of version 1 starts on these tables.
func TestCodeOfVersion1AcceptsTheseTables(t *testing.T) {
	accepts := func(t *testing.T, driver, dsn string, dialect Dialect) {
		db, err := sql.Open(driver, dsn)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, db.Close()) })
		require.NoError(t, Up(t.Context(), db, dialect))
		s, err := engines[dialect].read(t.Context(), db, "")
		require.NoError(t, err)
		require.Equal(t, Latest, s.version)
		nothingToDo, err := s.current(1)
		assert.NoError(t, err)
		assert.True(t, nothingToDo)
	}
	t.Run("SQLite", func(t *testing.T) {
		accepts(t, "sqlite3", "file:"+filepath.Join(t.TempDir(), "app.db"), SQLite)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		accepts(t, "pgx", pgtest.Shared(t).Database(t), PostgreSQL)
	})
}
