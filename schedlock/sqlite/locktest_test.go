package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/locktest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t testing.TB) locktest.Database {
		first := newStore(t)
		conn := foreign(t, first)
		run(t, conn, `PRAGMA busy_timeout = 5000`)
		db := locktest.Database{
			Open: func(t testing.TB) schedlock.Store { return mustOpen(t, first.Path()) },
			Begin: func(t testing.TB) locktest.Tx {
				tx, err := first.DB().BeginTx(bg, nil)
				require.NoError(t, err)
				return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
			},
			Edit: func(t testing.TB, e locktest.Edit) {
				run(t, conn, `UPDATE scheduler_lock SET token = coalesce(nullif(?, ''), token), term = coalesce(nullif(?, 0), term),
					beat = coalesce(nullif(?, 0), beat), state = coalesce(nullif(?, ''), state)`, e.Token, e.Term, e.Beat, string(e.State))
				if e.DeleteRow {
					run(t, conn, `DELETE FROM scheduler_lock`)
				}
				if e.EmptyTerms {
					run(t, conn, `DELETE FROM scheduler_terms`)
				}
			},
			Backup: func(t testing.TB) func() {
				tables := []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs", "scheduler_runs", "scheduler_requests", "scheduler_pauses"}
				for _, table := range tables {
					run(t, conn, `CREATE TEMP TABLE kept_`+table+` AS SELECT * FROM `+table)
				}
				return func() {
					run(t, conn, `BEGIN IMMEDIATE`)
					for _, table := range tables {
						run(t, conn, `DELETE FROM `+table)
						run(t, conn, `INSERT INTO `+table+` SELECT * FROM kept_`+table)
					}
					run(t, conn, `COMMIT`)
				}
			},
		}
		if first.ProofOfDeath() != nil {
			db.Without = []locktest.Feature{locktest.Hints}
		}
		return db
	})
}
