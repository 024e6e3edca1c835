package memory_test

import (
	"cmp"
	"testing"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t testing.TB) locktest.Database {
		t.(*testing.T).Parallel()
		db := memory.New()
		empty := db.Backup()
		return locktest.Database{
			Open:   func(testing.TB) driver.Store { return db },
			Backup: func(testing.TB) func() { return db.Backup() },
			Begin: func(testing.TB) locktest.Tx {
				tx := db.Begin()
				return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
			},
			HeartbeatsPassFence: true,
			Without:             []locktest.Feature{locktest.Hints},
			Edit: func(_ testing.TB, e locktest.Edit) {
				if e.CursorOf != "" {
					raw := "edited"
					if e.CursorAt.IsZero() {
						raw = "yesterday"
					}
					db.EditCursor(e.CursorOf, e.CursorAt, raw)
					return
				}
				db.Edit(func(r *driver.Row) {
					r.Term, r.Beat, r.State = cmp.Or(e.Term, r.Term), cmp.Or(e.Beat,
						r.Beat), cmp.Or(e.State, r.State)
					r.RawToken = cmp.Or(e.Token, r.RawToken)
				})
				if e.DeleteRow {
					db.DeleteRow()
				}
				if e.EmptyTerms {
					empty()
				}
			},
		}
	})
}
