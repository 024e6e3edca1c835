package mysql_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/mysql"
)

// inTheirs is a use of a transaction of the app's own.
type inTheirs struct {
	name string
	none error // what a transaction that is none gets
	use  func(tx *sql.Tx) error
}

// allInTheirs are all of them; each succeeds in a transaction that is one. suffix ends the
// names and ids.
func allInTheirs(t *testing.T, s *mysql.Store, lease driver.Ref, suffix string) []inTheirs {
	t.Helper()
	q, n, token := s.Queue(), s.Named(), driver.NewToken()
	_, err := q.Add(ctx, "q"+suffix, 1, []string{"done" + suffix})
	require.NoError(t, err)
	tasks, err := q.Capture(ctx, "q"+suffix, token, time.Minute, 1)
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	c := namedClaim()
	c.Name += suffix
	lock := servertest.TakeNamed(t, n, c)
	one := func(list []string, err error) error {
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("%q is not one task", list)
		}
		return err
	}
	return []inTheirs{
		{"Fence", driver.ErrNoFence, func(tx *sql.Tx) error { return s.Fence(ctx, tx, lease) }},
		{"Fence of a named lock", driver.ErrNoFence, func(tx *sql.Tx) error {
			held, err := n.Fence(ctx, tx, lock, time.Minute)
			if err == nil && !held {
				err = driver.ErrLost
			}
			return err
		}},
		{"AddTx", taskqueue.ErrTx, func(tx *sql.Tx) error {
			return one(q.AddTx(ctx, tx, "q"+suffix, 1, []string{"added" + suffix}))
		}},
		{"AddAfter", taskqueue.ErrTx, func(tx *sql.Tx) error {
			return one(q.AddAfter(ctx, tx, "q"+suffix, 1, time.Second,
				[]string{"later" + suffix}))
		}},
		{"DoneTx", taskqueue.ErrTx, func(tx *sql.Tx) error {
			return one(q.DoneTx(ctx, tx, "q"+suffix, token, time.Minute,
				[]string{"done" + suffix}))
		}},
	}
}

// DDL commits a transaction. What the app takes for a part of it would be committed at once.
func TestATransactionThatTheServerHasEndedIsNone(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s := byHand(t, url), open(t, url)
	for i, of := range allInTheirs(t, s, acquire(t, s), "") {
		t.Run(of.name, func(t *testing.T) {
			tx := begin(t, db, nil).Tx.(*sql.Tx)
			_, err := tx.Exec(fmt.Sprintf(`CREATE TABLE theirs%d (id bigint)`, i))
			require.NoError(t, err)
			require.ErrorIs(t, of.use(tx), of.none)
			_, err = tx.Exec(fmt.Sprintf(`INSERT INTO theirs%d VALUES (1)`, i))
			require.ErrorIs(t, err, sql.ErrTxDone)
			for _, table := range []string{"scheduler_fenced", "named_locks_fenced"} {
				require.Zero(t, value[int](t, db, `SELECT count(*) FROM `+table))
			}
			tx = begin(t, db, nil).Tx.(*sql.Tx)
			require.NoError(t, of.use(tx), "in one that it has not")
			require.NoError(t, tx.Rollback())
		})
	}
}

// A server that has undone the transaction after a wait says no more than that it was too long.
func TestAFenceThatWaitsForTooLongEndsItsTransaction(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s := byHand(t, url), open(t, url)
	ref := acquire(t, s)
	value[int64](t, begin(t, db, nil).Tx.(*sql.Tx), `SELECT term FROM scheduler_fence FOR UPDATE`)
	tx := begin(t, db, nil).Tx.(*sql.Tx)
	require.ErrorContains(t, s.Fence(ctx, tx, ref), "keeps a row locked")
	_, err := tx.Exec(`DELETE FROM scheduler_pauses`)
	require.ErrorIs(t, err, sql.ErrTxDone)
}

func TestAReadOnlyTransactionDoesNotEndTheSession(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s := byHand(t, url), open(t, url)
	ref, session := acquireWatched(t, s)
	require.True(t, session.Alive())
	for _, of := range allInTheirs(t, s, ref, "") {
		tx := begin(t, db, &sql.TxOptions{ReadOnly: true}).Tx.(*sql.Tx)
		require.ErrorContains(t, of.use(tx), "the caller's transaction is read-only", of.name)
		require.True(t, session.Alive(), of.name)
	}
}

// A session of another character set would send other names than those that were given.
func TestATransactionInAnotherCharacterSetSendsNoOtherNames(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	ref := acquire(t, s)
	for _, suffix := range []string{"", "é😀"} {
		all := allInTheirs(t, s, ref, suffix)
		for _, set := range []string{"charset=latin1", "charset=utf8mb3", "charset=utf8mb4"} {
			db := mytest.Shared(t).Open(t, url, set)
			for _, of := range all {
				tx := begin(t, db, nil).Tx.(*sql.Tx)
				err := of.use(tx)
				if suffix == "" || set == "charset=utf8mb4" || of.name == "Fence" {
					require.NoError(t, err, "%s %s %q", of.name, set, suffix)
				} else {
					require.ErrorContains(t, err, "character set utf8mb4", of.name)
					require.ErrorContains(t, err, suffix, of.name)
				}
				require.NoError(t, tx.Rollback())
			}
		}
	}
}
