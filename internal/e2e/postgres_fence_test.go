//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
)

func TestTheFenceGuardsTheAppsTablesOnlyInTheDatabaseOfTheLock(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	for _, tc := range []struct {
		name   string
		urls   func(t *testing.T, f *fleet) (app, lock string)
		fenced bool
	}{
		{"one URL", func(t *testing.T, f *fleet) (string, string) {
			db := server.Database(t)
			return db, db
		}, true},
		{"two URLs of one database", func(t *testing.T, f *fleet) (string, string) {
			db := server.Database(t)
			return db + "&pool_max_conns=2&default_query_exec_mode=simple_protocol", db
		}, true},
		{"two databases", func(t *testing.T, f *fleet) (string, string) {
			return server.Database(t), server.Database(t)
		}, false},
		{"two databases that both have a lock", func(t *testing.T, f *fleet) (string, string) {
			app := server.Database(t)
			f.url = app
			other, _ := f.startLeader()
			other.stop()
			_, err := queryServer(app, `DELETE FROM bans`)
			require.NoError(t, err)
			return app, server.Database(t)
		}, false},
		{"the app on PostgreSQL", func(t *testing.T, f *fleet) (string, string) {
			return server.Database(t), "file:" + f.db
		}, false},
		{"the lock on PostgreSQL", func(t *testing.T, f *fleet) (string, string) {
			return "file:" + f.db, server.Database(t)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			app, lock := tc.urls(t, f)
			r, _ := f.startLeader("DATABASE_URL="+app, "LOCK_DATABASE_URL="+lock)
			r.awaitLine("block lists imported")
			eventually(t, "the page shows the bans", func() error {
				if page := r.get("/"); !page.contains("192.0.2.0/26") {
					return fmt.Errorf("%s", page.body)
				}
				return nil
			})
			want := 1
			if tc.fenced {
				want = 0
			}
			require.Len(t, r.log.with("the importer writes unfenced"), want)
			require.Equal(t, http.StatusOK, r.get("/readyz").status)
			r.stop()
			require.Empty(t, r.errorLines())
		})
	}
}
