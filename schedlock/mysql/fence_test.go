package mysql_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/driver"
)

var levels = []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted,
	sql.LevelRepeatableRead, sql.LevelSerializable}

func TestAFenceHoldsAtEachLevel(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s, other := byHand(t, url), open(t, url), open(t, url)
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			ref := acquire(t, s)
			one := begin(t, db, &sql.TxOptions{Isolation: level})
			two := begin(t, db, &sql.TxOptions{Isolation: level})
			for _, tx := range []any{one.Tx, two.Tx} {
				value[int](t, tx.(*sql.Tx), `SELECT count(*) FROM scheduler_jobs`) // a snapshot
				require.NoError(t, s.Fence(ctx, tx, ref))
				require.NoError(t, s.Fence(ctx, tx, ref), "again")
			}
			heartbeat(t, s, ref)
			_, err := other.Acquire(ctx, claim(look(t, other)))
			require.ErrorIs(t, err, driver.ErrBlocked)
			require.NoError(t, one.Commit())
			_, err = other.Acquire(ctx, claim(look(t, other)))
			require.ErrorIs(t, err, driver.ErrBlocked)
			require.NoError(t, two.Rollback())
			require.Zero(t, value[int](t, db, `SELECT count(*) FROM scheduler_fenced`))
			next := acquire(t, other)
			stale := begin(t, db, &sql.TxOptions{Isolation: level})
			require.ErrorIs(t, s.Fence(ctx, stale.Tx, ref), driver.ErrLost)
			require.NoError(t, stale.Rollback())
			fresh := begin(t, db, &sql.TxOptions{Isolation: level})
			require.NoError(t, other.Fence(ctx, fresh.Tx, next))
			require.NoError(t, fresh.Commit())
		})
	}
}

// What a transaction has read before the take-over does not count, and what it writes
// after a fence that has failed is not committed, whatever the server does with it.
func TestAFenceInAnOldSnapshotFails(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	for _, settings := range [][]string{nil, {"innodb_snapshot_isolation=1"}} {
		db := mytest.Shared(t).Open(t, url, settings...)
		for _, level := range levels[1:3] {
			ref := acquire(t, s)
			tx := begin(t, db, &sql.TxOptions{Isolation: level})
			own := tx.Tx.(*sql.Tx)
			value[int](t, own, `SELECT count(*) FROM scheduler_fence`)
			acquire(t, s)
			require.ErrorIs(t, s.Fence(ctx, own, ref), driver.ErrLost)
			_, _ = own.Exec("INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason) " +
				"VALUES ('x', now(), '', '')")
			_ = tx.Rollback()
			require.Zero(t, value[int](t, db, `SELECT count(*) FROM scheduler_pauses`))
		}
	}
}

// The old leader wakes while its successor is in the middle of the take-over.
func TestAFenceHoldsWithoutForeignKeyChecks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, other := open(t, url), open(t, url)
	app, db := mytest.Shared(t).Open(t, url, "foreign_key_checks=0"), byHand(t, url)
	ref := acquire(t, s)
	hold := begin(t, db, nil)
	value[int64](t, hold.Tx.(*sql.Tx),
		`SELECT term FROM scheduler_terms ORDER BY term DESC LIMIT 1 FOR UPDATE`)
	c, acquired := claim(look(t, other)), make(chan error, 1)
	go func() {
		_, err := other.Acquire(ctx, c)
		acquired <- err
	}()
	eventually(t, "the take-over has the fence", func() bool {
		return errors.Is(db.QueryRow(`SELECT term FROM scheduler_fence FOR UPDATE SKIP LOCKED`).
			Scan(new(int64)), sql.ErrNoRows)
	})
	tx, fenced := begin(t, app, nil), make(chan error, 1)
	go func() { fenced <- s.Fence(ctx, tx.Tx, ref) }()
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, hold.Rollback())
	if <-acquired == nil { // else it has waited for too long, on a slow machine
		require.Error(t, <-fenced)
	}
}

func TestAFenceOfATransactionElsewhereIsNone(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	ref := acquire(t, s)
	// another database of the server: the fence holds there, too
	beside := mytest.Shared(t).Open(t, mytest.Shared(t).Database(t))
	tx := begin(t, beside, nil)
	require.NoError(t, s.Fence(ctx, tx.Tx, ref))
	_, err := s.Acquire(ctx, claim(look(t, s)))
	require.ErrorIs(t, err, driver.ErrBlocked)
	require.NoError(t, tx.Rollback())
	// another server
	other := mytest.Start(t)
	tx = begin(t, other.Open(t, other.Database(t)), nil)
	require.ErrorIs(t, s.Fence(ctx, tx.Tx, ref), driver.ErrNoFence)
	require.ErrorIs(t, s.Fence(ctx, "tx", ref), driver.ErrNoFence)
}

func TestARowThatSomebodyHasLockedIsToldAsBlocked(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s := byHand(t, url), open(t, url)
	ref := acquire(t, s)
	tx := begin(t, db, nil)
	value[int](t, tx.Tx.(*sql.Tx), `SELECT beat FROM scheduler_lock FOR UPDATE`)
	_, err := s.Acquire(ctx, claim(look(t, s)))
	require.ErrorIs(t, err, driver.ErrBlocked)
	_, err = s.Heartbeat(ctx, ref, driver.StateLeading)
	require.ErrorContains(t, err, "a transaction of somebody else keeps a row locked")
	require.NoError(t, tx.Rollback())
	heartbeat(t, s, ref)
}

// A leader that is cut off in the middle of a start of a run must not keep others from the
// lock for longer than a short TTL.
func TestATransactionOfAStoreThatIsLeftAloneIsOverSoon(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url)
	ref := acquire(t, holder)
	tx, err := holder.DB().BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	require.NoError(t, holder.Fence(ctx, tx, ref))
	c := claim(look(t, standby))
	_, err = standby.Acquire(ctx, c)
	require.ErrorIs(t, err, driver.ErrBlocked)
	eventually(t, "it is over", func() bool {
		_, err = standby.Acquire(ctx, c)
		return err == nil
	})
}
