package sqlite

import (
	"testing"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/sqlitetest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/locktest"
)

func TestMain(m *testing.M) { child.Main(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t testing.TB) locktest.Database {
		t.(*testing.T).Parallel()
		first := newStore(t)
		conn := foreign(t, first)
		run(t, conn, `PRAGMA busy_timeout = 5000`)
		db := sqlitetest.Database{DB: first.DB(), Conn: conn}.Lock()
		db.Open = func(t testing.TB) driver.Store { return mustOpen(t, first.Path()) }
		if first.ProofOfDeath() != nil {
			db.Without = []locktest.Feature{locktest.Hints}
		}
		return db
	})
}
