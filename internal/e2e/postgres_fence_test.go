//go:build unix

package e2e

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
)

func TestTheFenceGuardsTheAppsTablesOnlyInTheDatabaseOfTheLock(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		urls   func(t *testing.T, f *fleet) (app, lock string)
		fenced bool
	}{
		{"two URLs of one database", func(t *testing.T, f *fleet) (string, string) {
			db := pgtest.Shared(t).Database(t)
			return db + "&pool_max_conns=2&default_query_exec_mode=simple_protocol", db
		}, true},
		{"two databases that both have a lock", func(t *testing.T, f *fleet) (string, string) {
			app := pgtest.Shared(t).Database(t)
			f.url = app
			other, _ := f.startLeader()
			other.stop()
			_, err := queryServer(app, `DELETE FROM bans`)
			require.NoError(t, err)
			return app, pgtest.Shared(t).Database(t)
		}, false},
		{"the app on PostgreSQL", func(t *testing.T, f *fleet) (string, string) {
			return pgtest.Shared(t).Database(t), "file:" + f.db
		}, false},
		{"two files", func(t *testing.T, f *fleet) (string, string) {
			return "file:" + f.db, "file:" + filepath.Join(f.dir, "lock.db")
		}, false},
		{"the lock on PostgreSQL", func(t *testing.T, f *fleet) (string, string) {
			return "file:" + f.db, pgtest.Shared(t).Database(t)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			app, lock := tc.urls(t, f)
			r, _ := f.startLeader("DATABASE_URL="+app, "LOCK_DATABASE_URL="+lock)
			r.awaitLine("block lists imported")
			r.awaitBans()
			want := 1
			if tc.fenced {
				want = 0
			}
			require.Len(t, r.log.with("the importer writes unfenced"), want)
			require.Equal(t, http.StatusOK, r.get("/readyz").status)
			r.stop()
			require.Empty(t, r.errorLines())
			if app == "file:"+f.db {
				require.Equal(t, "0", f.sql(`SELECT count(*) FROM sqlite_schema
					WHERE name LIKE 'scheduler_%'`), "the lock has a database of its own")
			}
		})
	}
}
