package sqlite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

func TestTheTermIsTheHighestOfAllThatIsKnown(t *testing.T) {
	t.Parallel()
	now := newClock().now().UnixMilli()
	for name, tc := range map[string]struct {
		inHistory, inRow, min int64
		want                  int64
	}{
		"a new database: the clock":                {0, 0, 0, now},
		"the history is ahead of the clock":        {now + 500, 0, 0, now + 501},
		"the row is ahead of the history":          {now + 500, now + 700, 0, now + 701},
		"the history is ahead of the row":          {now + 500, now + 300, 0, now + 501},
		"a restored backup: this replica saw more": {now - 500, 0, now + 900, now + 900},
		"all is old: the clock":                    {now - 500, now - 500, now - 400, now},
		"the clock was set back": {now + 3600_000, now + 3600_000, 1,
			now + 3600_001},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, WithClock(newClock().now))
			other := foreign(t, s)
			if tc.inHistory > 0 {
				run(t, other, `INSERT INTO scheduler_terms (term, token, pid, hostname,
					acquired_at, ended_at, end_reason, next_term, ttl_ms, file_id)
					VALUES (?, 'x', 1, 'h', '2026-03-01T00:00:00.000000Z',
					'2026-03-01T00:00:00.000000Z', 'released', NULL, 60000, NULL)`, tc.inHistory)
			}
			if tc.inRow > 0 {
				run(t, other, `INSERT INTO scheduler_lock
					VALUES (1, 1, 'h', '2026-03-01T00:00:00.000000Z', '2026-03-01T00:00:00.000000Z',
					'x', ?, 3, 'leading', 60000, 45000, 10000, NULL, NULL, NULL, NULL, NULL)`,
					tc.inRow)
			}
			c := claimOf(look(t, s), nobody)
			c.MinTerm = tc.min
			g, err := s.Acquire(bg, c)
			require.NoError(t, err)
			assert.Equal(t, tc.want, g.Term)
			assert.Equal(t, tc.want, look(t, s).Row.Term)
			assert.Equal(t, tc.want, look(t, s).Newest.Term)
		})
	}
}

// What else has happened since a lock was judged is rules 9 and 10 of locktest.
func TestAFreeLockThatAHandHasChangedSinceIsNotTaken(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"another came, and its row was deleted": `DELETE FROM scheduler_lock`,
		"the history was emptied": `DELETE FROM scheduler_lock;
			DELETE FROM scheduler_terms`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			other := foreign(t, s)
			_, err := s.Release(bg, acquire(t, s, nobody), driver.EndReleased)
			require.NoError(t, err)
			c := claimOf(look(t, s), nobody)
			acquire(t, s, nobody)
			run(t, other, change)
			before := dump(t, other)
			_, err = s.Acquire(bg, c)
			require.ErrorIs(t, err, driver.ErrConflict)
			assert.Equal(t, before, dump(t, other), "nothing was written")
		})
	}
}

// A deferred transaction that has read before would fail under our own
// heartbeats; one whose first statement is the fence does not.
func TestAFenceMayBeTheFirstStatementOfADeferredTransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s, nobody)
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
			ref := acquire(t, s, nobody)
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
