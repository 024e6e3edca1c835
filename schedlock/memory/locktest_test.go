package memory_test

import (
	"cmp"
	"testing"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
)

func TestConformance(t *testing.T) {
	locktest.Run(t, func(testing.TB) locktest.Database {
		db := memory.New()
		empty := db.Backup()
		return locktest.Database{
			Open:    func(testing.TB) schedlock.Store { return db },
			Backup:  func(testing.TB) func() { return db.Backup() },
			Without: []locktest.Feature{locktest.Fences, locktest.Hints},
			Edit: func(_ testing.TB, e locktest.Edit) {
				db.Edit(func(r *schedlock.Row) {
					r.Term, r.Beat, r.State = cmp.Or(e.Term, r.Term), cmp.Or(e.Beat, r.Beat), cmp.Or(e.State, r.State)
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
