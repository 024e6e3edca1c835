package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A deferred transaction that has read before would fail under our own
// heartbeats; one whose first statement is the fence does not.
func TestAFenceMayBeTheFirstStatementOfADeferredTransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	db := appPool(t, "file:"+s.Path()+"?_pragma=busy_timeout(5000)")
	for range 20 {
		tx := begin(t, db)
		beat(t, s, ref)
		require.NoError(t, s.Fence(bg, tx, ref))
		require.NoError(t, tx.Commit())
	}
}

// SQLite keeps the write lock, and with it the fence, until the transaction
// ends, although the UPDATE is undone.
func TestAFenceOutlivesTheRollBackToASavepoint(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"immediate", "deferred"} {
		t.Run(mode, func(t *testing.T) {
			s := newStore(t)
			ref := acquire(t, s)
			tx := begin(t, appPool(t, "file:"+s.Path()+"?_txlock="+mode))
			_, err := tx.ExecContext(bg, `SAVEPOINT a`)
			require.NoError(t, err)
			require.NoError(t, s.Fence(bg, tx, ref))
			_, err = tx.ExecContext(bg, `ROLLBACK TO a; RELEASE a`)
			require.NoError(t, err)
			_, err = foreign(t, s).ExecContext(bg, `DELETE FROM scheduler_lock`)
			require.Error(t, err, "nobody can take over until the transaction ends")
			_, err = tx.ExecContext(bg, `CREATE TABLE work (id INTEGER)`)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			_, err = foreign(t, s).ExecContext(bg, `DELETE FROM scheduler_lock`)
			require.NoError(t, err)
		})
	}
}
