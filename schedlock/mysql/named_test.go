package mysql_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/mysql"
)

func TestConformanceOfNamedLocks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db := byHand(t, url)
	again := servertest.Reopened(t, func(t testing.TB) *mysql.Store { return open(t, url) })
	locktest.RunNamed(t, func(t testing.TB) locktest.NamedDatabase {
		exec(t, db, `DELETE FROM named_locks`)
		exec(t, db, `DELETE FROM named_locks_fence`)
		exec(t, db, `UPDATE named_locks_floor SET term = 0, since = NULL,
			server = (SELECT server FROM scheduler_lock_schema WHERE version = 1)`)
		return locktest.NamedDatabase{
			Open: func(t testing.TB) namedlock.Store { return again(t).Named() },
			Age: func(t testing.TB, d time.Duration) {
				exec(t, db, `UPDATE named_locks
					SET acquired_at = acquired_at - INTERVAL ? MICROSECOND,
					expires_at = expires_at - INTERVAL ? MICROSECOND,
					hold_until = hold_until - INTERVAL ? MICROSECOND`,
					d.Microseconds(), d.Microseconds(), d.Microseconds())
				exec(t, db, `UPDATE named_locks_floor SET since = since - INTERVAL ? MICROSECOND`,
					d.Microseconds())
			},
			Edit: func(t testing.TB, key namedlock.Key, term int64) {
				if term == 0 {
					exec(t, db, `DELETE FROM named_locks WHERE kind = ? AND name = ?`,
						string(key.Kind), key.Name)
					return
				}
				exec(t, db, `UPDATE named_locks SET term = ? WHERE kind = ? AND name = ?`,
					term, string(key.Kind), key.Name)
			},
			Begin:             func(t testing.TB) locktest.Tx { return begin(t, db, nil) },
			ExtendPassesFence: true,
			FailOver: func(t testing.TB) {
				exec(t, db, `UPDATE named_locks_floor SET server = 'another 1'`)
			},
		}
	})
}

var lockA = servertest.LockNamed("a")

func namedClaim() namedlock.Claim { return servertest.NamedClaim(lockA, time.Minute) }

func TestAFenceOfANamedLockHoldsAtEachLevel(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, n := byHand(t, url), open(t, url).Named()
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			c := namedClaim()
			term, _, err := n.Take(ctx, c)
			require.NoError(t, err)
			require.NotZero(t, term)
			ref := namedlock.Ref{Key: c.Key, Token: c.Token, Term: term}
			tx := begin(t, db, &sql.TxOptions{Isolation: level})
			value[int](t, tx.Tx.(*sql.Tx), `SELECT count(*) FROM scheduler_jobs`) // a snapshot
			held, err := n.Fence(ctx, tx.Tx, ref, time.Minute)
			require.NoError(t, err)
			require.True(t, held)
			ok, err := n.Extend(ctx, ref, time.Minute)
			require.NoError(t, err)
			require.True(t, ok)
			exec(t, db, `UPDATE named_locks SET expires_at = SYSDATE(6) - INTERVAL 1 SECOND`)
			got, holder, err := n.Take(ctx, namedClaim())
			require.NoError(t, err)
			require.Zero(t, got)
			require.Equal(t, ref.Token, holder.Token)
			require.NoError(t, tx.Commit())
			next, _, err := n.Take(ctx, namedClaim())
			require.NoError(t, err)
			require.Greater(t, next, term)
			tx = begin(t, db, &sql.TxOptions{Isolation: level})
			held, err = n.Fence(ctx, tx.Tx, ref, time.Minute)
			require.NoError(t, err)
			require.False(t, held)
			require.NoError(t, tx.Rollback())
			exec(t, db, `UPDATE named_locks SET expires_at = SYSDATE(6) - INTERVAL 1 SECOND`)
		})
	}
}

// The old holder wakes while its successor is in the middle of its acquisition.
func TestAFenceOfANamedLockHoldsWithoutForeignKeyChecks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	app, db := mytest.Shared(t).Open(t, url, "foreign_key_checks=0"), byHand(t, url)
	n, c := open(t, url).Named(), namedClaim()
	term, _, err := n.Take(ctx, c)
	require.NoError(t, err)
	over := begin(t, db, &sql.TxOptions{Isolation: sql.LevelReadCommitted}) // as Take
	_, err = over.Tx.(*sql.Tx).Exec(`DELETE FROM named_locks_fence`)
	require.NoError(t, err)
	tx := begin(t, app, nil)
	held, _ := n.Fence(ctx, tx.Tx, namedlock.Ref{Key: c.Key, Token: c.Token, Term: term},
		time.Minute)
	require.False(t, held)
}

func TestCleanPassesOverWhatAnAppHasFenced(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, db := open(t, url), byHand(t, url)
	ref := takeNamed(t, s, lockA)
	for _, name := range []string{"b", "without a fence"} {
		takeNamed(t, s, namedlock.Key{Kind: namedlock.KindLock, Name: name})
	}
	exec(t, db, `DELETE FROM named_locks_fence WHERE name = 'without a fence'`)
	tx := begin(t, db, nil)
	held, err := s.Named().Fence(ctx, tx.Tx, ref, time.Minute)
	require.NoError(t, err)
	require.True(t, held)
	exec(t, db, `UPDATE named_locks SET expires_at = expires_at - INTERVAL 2 DAY`)
	for _, want := range []int64{2, 0} {
		deleted, err := s.Named().Clean(ctx, 100)
		require.NoError(t, err)
		require.Equal(t, want, deleted)
	}
	require.NoError(t, tx.Commit())
	deleted, err := s.Named().Clean(ctx, 100)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted)
}

// takeNamed takes a named lock that is free.
func takeNamed(t testing.TB, s *mysql.Store, key namedlock.Key) namedlock.Ref {
	t.Helper()
	return servertest.TakeNamed(t, s.Named(), servertest.NamedClaim(key, time.Minute))
}
