package memory_test

import (
	"testing"
	"time"

	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
)

func TestConformanceOfNamedLocks(t *testing.T) {
	t.Parallel()
	locktest.RunNamed(t, func(t testing.TB) locktest.NamedDatabase {
		t.(*testing.T).Parallel()
		db := memory.New()
		return locktest.NamedDatabase{
			Open: func(testing.TB) namedlock.Store { return db.Named() },
			Age:  func(_ testing.TB, d time.Duration) { db.AgeNamed(d) },
			Edit: func(_ testing.TB, key namedlock.Key, term int64) {
				db.SetNamedTerm(key, term)
			},
			FailOver: func(testing.TB) { db.FailOverNamed() },
			Begin: func(testing.TB) locktest.Tx {
				tx := db.Begin()
				return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
			},
			ExtendPassesFence: true,
		}
	})
}
