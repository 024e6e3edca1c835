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
	accepts := func(t *testing.T, db *sql.DB, dialect Dialect, read func() (schema, error)) {
		t.Cleanup(func() { assert.NoError(t, db.Close()) })
		require.NoError(t, Up(t.Context(), db, dialect))
		s, err := read()
		require.NoError(t, err)
		require.Equal(t, Latest, s.version)
		nothingToDo, err := s.current(1)
		assert.NoError(t, err)
		assert.True(t, nothingToDo)
	}
	t.Run("SQLite", func(t *testing.T) {
		db, err := sql.Open("sqlite3", "file:"+filepath.Join(t.TempDir(), "app.db"))
		require.NoError(t, err)
		accepts(t, db, SQLite, func() (schema, error) { return readSQLite(t.Context(), db) })
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		db, err := sql.Open("pgx", pgtest.Shared(t).Database(t))
		require.NoError(t, err)
		accepts(t, db, PostgreSQL, func() (schema, error) {
			s, err := readPostgres(t.Context(), db, "")
			return s.schema, err
		})
	})
}
