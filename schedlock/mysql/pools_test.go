package mysql_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/mysql"
)

// sqlRunning is how many sessions run a statement of a form.
const sqlRunning = `
SELECT count(*) FROM information_schema.processlist
WHERE db = database() AND id <> connection_id() AND command <> 'Sleep' AND info LIKE ?`

// What waits for a transaction of an app uses up no connection that a named lock needs.
func TestWhatWaitsForAnAppLeavesAConnection(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		inTheWay func(t *testing.T, s *mysql.Store, db *sql.DB, app *sql.Tx)
		wait     func(ctx context.Context, s *mysql.Store)
		waits    string // its statements that wait
	}{
		"Add": {
			func(t *testing.T, s *mysql.Store, _ *sql.DB, app *sql.Tx) {
				_, err := s.Queue().AddTx(ctx, app, "q", 0, []string{"same"})
				require.NoError(t, err)
			},
			func(ctx context.Context, s *mysql.Store) {
				_, _ = s.Queue().Add(ctx, "q", 0, []string{"same"})
			},
			"%INSERT IGNORE INTO%queue_tasks%",
		},
		"Take": {
			func(t *testing.T, s *mysql.Store, db *sql.DB, app *sql.Tx) {
				held, err := s.Named().Fence(ctx, app, takeNamed(t, s, lockA), time.Minute)
				require.NoError(t, err)
				require.True(t, held)
				exec(t, db, `UPDATE named_locks SET expires_at = SYSDATE(6) - INTERVAL 1 SECOND`)
			},
			func(ctx context.Context, s *mysql.Store) {
				_, _, _ = s.Named().Take(ctx, namedClaim())
			},
			"%FROM named_locks%",
		},
		"Pause": {
			func(t *testing.T, _ *mysql.Store, _ *sql.DB, app *sql.Tx) {
				value[int](t, app, `SELECT id FROM scheduler_gate FOR UPDATE`)
			},
			func(ctx context.Context, s *mysql.Store) {
				_, _ = s.Pause(ctx, ledger.Action{By: "ann"})
			},
			"%FROM scheduler_gate FOR UPDATE%",
		},
		"Trigger": {
			func(t *testing.T, s *mysql.Store, db *sql.DB, app *sql.Tx) {
				exec(t, db, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
					VALUES ('j', '', now(), now())`)
				value[int](t, app, `SELECT id FROM scheduler_gate FOR UPDATE`)
			},
			func(ctx context.Context, s *mysql.Store) {
				_, _ = s.Trigger(ctx, ledger.Action{Job: "j", By: "ann"})
			},
			"%INSERT INTO%scheduler_gated%",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			s, db := open(t, url), byHand(t, url)
			app := begin(t, db, nil).Tx.(*sql.Tx)
			tc.inTheWay(t, s, db, app)
			lock := takeNamed(t, s, namedlock.Key{Kind: namedlock.KindLock, Name: "b"})

			var all sync.WaitGroup
			defer all.Wait()
			waiting, cancel := context.WithTimeout(ctx, 10*patience)
			defer cancel()
			for range 3 * mysql.PoolSize {
				all.Go(func() {
					for waiting.Err() == nil {
						tc.wait(waiting, s)
					}
				})
			}
			eventually(t, "some wait", func() bool {
				return value[int](t, db, sqlRunning, tc.waits) > 0
			})
			most := 0
			for range 10 {
				held, err := s.Named().Extend(ctx, lock, time.Minute)
				require.NoError(t, err)
				require.True(t, held)
				most = max(most, value[int](t, db, sqlRunning, tc.waits))
			}
			require.Less(t, most, mysql.PoolSize, "all connections wait")
		})
	}
}
