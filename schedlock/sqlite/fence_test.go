package sqlite

import (
	"testing"

	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

func TestFence(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	before := dump(t, foreign(t, s))
	tx, err := s.DB().BeginTx(bg, nil)
	require.NoError(t, err)
	require.NoError(t, s.Fence(bg, tx, ref))
	_, err = foreign(t, s).ExecContext(bg, `DELETE FROM scheduler_lock`)
	require.Error(t, err, "nobody can take over until the transaction ends")
	require.NoError(t, tx.Commit())
	assert.Equal(t, before, dump(t, foreign(t, s)), "it changes nothing")

	for name, spoil := range map[string]func(*driver.Ref){
		"another token": func(r *driver.Ref) { r.Token = driver.NewToken() },
		"another term":  func(r *driver.Ref) { r.Term-- },
	} {
		r := ref
		spoil(&r)
		tx, err := s.DB().BeginTx(bg, nil)
		require.NoError(t, err)
		assert.ErrorIs(t, s.Fence(bg, tx, r), driver.ErrLost, name)
		require.NoError(t, tx.Rollback())
	}
}

// A deferred transaction that has read before would fail under our own
// heartbeats; one whose first statement is the fence does not.
func TestAFenceMayBeTheFirstStatementOfADeferredTransaction(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	db, err := sqlite3driver.Open("file:" + s.Path() + "?_pragma=busy_timeout(5000)")
	require.NoError(t, err)
	defer db.Close()
	for range 20 {
		tx, err := db.BeginTx(bg, nil)
		require.NoError(t, err)
		beat(t, s, ref)
		require.NoError(t, s.Fence(bg, tx, ref))
		require.NoError(t, tx.Commit())
	}
}

func TestNoFence(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	err := s.Fence(bg, "a transaction of another driver", ref)
	require.ErrorIs(t, err, driver.ErrNoFence)
	assert.ErrorContains(t, err, "it is a string, not a *sql.Tx")

	elsewhere := mustOpen(t, t.TempDir()+"/other.db")
	tx, err := elsewhere.DB().BeginTx(bg, nil)
	require.NoError(t, err)
	defer tx.Rollback()
	assert.ErrorIs(t, s.Fence(bg, tx, ref), driver.ErrNoFence, "a database without the lock")
}

// SQLite keeps the write lock, and with it the fence, until the transaction
// ends, although the UPDATE is undone.
func TestAFenceOutlivesTheRollBackToASavepoint(t *testing.T) {
	for name, begin := range map[string]string{"immediate": "immediate", "deferred": "deferred"} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			ref := acquire(t, s, nobody)
			db, err := sqlite3driver.Open("file:" + s.Path() + "?_txlock=" + begin)
			require.NoError(t, err)
			defer db.Close()
			tx, err := db.BeginTx(bg, nil)
			require.NoError(t, err)
			defer tx.Rollback()
			_, err = tx.ExecContext(bg, `SAVEPOINT a`)
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
