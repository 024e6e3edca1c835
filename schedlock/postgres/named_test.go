package postgres_test

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/postgres"
)

// named is the database that the suite of named locks asks for.
func (s suite) named(t testing.TB) locktest.NamedDatabase {
	conn := s.admin
	exec(t, conn, `DELETE FROM named_locks; UPDATE named_locks_floor SET term = 0, since = NULL`)
	return locktest.NamedDatabase{
		Open: func(t testing.TB) namedlock.Store { return s.open(t).Named() },
		Age: func(t testing.TB, d time.Duration) {
			exec(t, conn, `UPDATE named_locks SET acquired_at = acquired_at - $1::interval,
				expires_at = expires_at - $1::interval, hold_until = hold_until - $1::interval`, d)
			exec(t, conn, `UPDATE named_locks_floor SET since = since - $1::interval`, d)
		},
		Edit: func(t testing.TB, key namedlock.Key, term int64) {
			if term == 0 {
				exec(t, conn, `DELETE FROM named_locks WHERE kind = $1 AND name = $2`,
					string(key.Kind), key.Name)
				return
			}
			exec(t, conn, `UPDATE named_locks SET term = $3 WHERE kind = $1 AND name = $2`,
				string(key.Kind), key.Name, term)
		},
		Begin: s.begin,
		FailOver: func(t testing.TB) {
			exec(t, conn, `UPDATE named_locks_floor SET timeline =
				lpad(to_hex(('x' || coalesce(timeline, '00000001'))::bit(32)::int - 1), 8, '0')`)
		},
		ExtendPassesFence: true,
	}
}

func TestConformanceOfNamedLocks(t *testing.T) {
	t.Parallel()
	locktest.RunNamed(t, asApp(t).named)
}

func expire(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `UPDATE named_locks SET expires_at = clock_timestamp() - interval '1 second'`)
}

func fenceNamed(t testing.TB, n namedlock.Store, tx any, ref namedlock.Ref, want bool) {
	t.Helper()
	ours, err := n.Fence(ctx, tx, ref, time.Minute)
	require.NoError(t, err)
	require.Equal(t, want, ours)
}

// A take-over is an UPDATE, which by itself would slip under FOR KEY SHARE.
func TestATakeOverOfANamedLockWaitsForAFence(t *testing.T) {
	t.Parallel()
	for kind, start := range kinds {
		for _, level := range missing.Some(sql.LevelReadCommitted, sql.LevelRepeatableRead,
			sql.LevelSerializable) {
			t.Run(fmt.Sprint(kind, " ", level), func(t *testing.T) {
				t.Parallel()
				url := migrated(t)
				n, conn := open(t, url).Named(), session(t, url)
				ref := takeNamed(t, n, namedClaim(lockA, time.Minute))

				tx := start(t, url, level)
				// takes the snapshot
				require.NoError(t, tx.exec(`SELECT count(*) FROM named_locks`))
				extend := func(want bool) {
					t.Helper()
					ours, err := n.Extend(ctx, ref, time.Minute)
					require.NoError(t, err)
					require.Equal(t, want, ours)
				}
				extend(true)
				fenceNamed(t, n, tx.tx, ref, true)
				extend(true) // passes
				expire(t, conn)
				term, holder, err := n.Take(ctx, namedClaim(lockA, time.Minute))
				require.NoError(t, err)
				require.Zero(t, term)
				require.NotNil(t, holder, "who is in the way")
				require.Equal(t, ref.Token, holder.Token)

				// It waits, and goes on when the transaction has ended.
				long := session(t, url)
				got := make(chan error, 1)
				go func() {
					_, err := long.Exec(ctx,
						`UPDATE named_locks SET token = 'x', term = term + 1
							WHERE name = 'a' AND expires_at <= clock_timestamp()`)
					got <- err
				}()
				eventually(t, "the take-over waits", func() bool {
					return value[int](t, conn,
						`SELECT count(*) FROM pg_stat_activity
							WHERE datname = current_database()
								AND cardinality(pg_blocking_pids(pid)) > 0`) == 1
				})
				require.NoError(t, tx.exec(`CREATE TABLE work ()`))
				require.NoError(t, tx.commit())
				require.NoError(t, <-got)

				late := start(t, url, level)
				require.NoError(t, late.exec(`SELECT count(*) FROM named_locks`))
				expire(t, conn)
				next := takeNamed(t, n, namedClaim(lockA, time.Minute))
				require.Greater(t, next.Term, ref.Term+1)
				fenceNamed(t, n, late.tx, ref, false) // taken since the snapshot
				fenceNamed(t, n, start(t, url, level).tx, ref, false)
				extend(false)
			})
		}
	}
}

// A lock that is released while its own transaction is guarded still is nobody
// else's before that ends.
func TestAReleaseDoesNotUndoAFence(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	n := open(t, url).Named()
	ref := takeNamed(t, n, namedClaim(lockA, time.Minute))
	tx := begin(t, url, pgx.TxOptions{})
	fenceNamed(t, n, tx, ref, true)
	ours, err := n.Release(ctx, ref, true)
	require.NoError(t, err)
	require.True(t, ours)
	term, _, err := n.Take(ctx, namedClaim(lockA, time.Minute))
	require.NoError(t, err)
	require.Zero(t, term)
	locks, err := named.New(n)
	require.NoError(t, err)
	_, err = locks.TryLock(ctx, lockA.Name)
	require.ErrorContains(t, err, "a transaction that its holder has guarded by Fence has not")
	require.NoError(t, tx.Commit(ctx))
	takeNamed(t, n, namedClaim(lockA, time.Minute))
}

// What is held is not even locked, which would be a write: whoever asks does
// not get into the way of those who extend.
func TestAskingForWhatIsHeldWritesNothing(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	n, conn := open(t, url).Named(), session(t, url)
	takeNamed(t, n, namedClaim(lockA, time.Hour))
	version := func() string {
		return value[string](t, conn, `SELECT concat_ws(' ', ctid, xmin, xmax) FROM named_locks`)
	}
	before := version()
	for range 3 {
		term, holder, err := n.Take(ctx, namedClaim(lockA, time.Minute))
		require.NoError(t, err)
		require.Zero(t, term)
		require.NotNil(t, holder)
		require.Equal(t, before, version())
	}
	exec(t, conn, `BEGIN; SELECT FROM named_locks FOR UPDATE; ROLLBACK`)
	require.NotEqual(t, before, version(), "the test sees a lock")
}

// everyNamedCall calls each method of a store in which the key is free.
func everyNamedCall(t testing.TB, n namedlock.Store, one func(what string, f func() error)) {
	t.Helper()
	var ref namedlock.Ref
	one("take", func() error { ref = takeNamed(t, n, namedClaim(lockA, time.Minute)); return nil })
	one("take what is held", func() error {
		_, _, err := n.Take(ctx, namedClaim(lockA, time.Minute))
		return err
	})
	one("look", func() error { _, err := n.Look(ctx, lockA); return err })
	one("extend", func() error { _, err := n.Extend(ctx, ref, time.Minute); return err })
	one("list", func() error { _, err := n.List(ctx, 10); return err })
	one("release", func() error { _, err := n.Release(ctx, ref, true); return err })
	one("look at what is free", func() error { _, err := n.Look(ctx, lockA); return err })
	one("clean", func() error { _, err := n.Clean(ctx, 10); return err })
}

// Names that come and go, while the table is cleaned up all the time: no term
// is granted twice, and none goes back.
func TestTermsGrowBesideACleanUp(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	n, conn := open(t, url).Named(), session(t, url)
	// A server whose clock was an hour ahead once: the clock is no help.
	ahead := time.Now().Add(time.Hour).UnixMilli()
	exec(t, conn, `UPDATE named_locks_floor SET term = $1`, ahead)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := n.Clean(ctx, 10); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	cleaned := int64(0)
	last := ahead
	for range 200 {
		var term int64
		for began := time.Now(); term == 0; { // a clean-up may have its row for a while
			var err error
			term, _, err = n.Take(ctx, namedClaim(lockA, time.Minute))
			require.NoError(t, err)
			require.Less(t, time.Since(began), patience)
		}
		require.Greater(t, term, last)
		last = term
		before := value[int64](t, conn, `SELECT term FROM named_locks_floor`)
		exec(t, conn, `UPDATE named_locks SET expires_at = clock_timestamp() - interval '25 hours'`)
		if value[int64](t, conn, `SELECT term FROM named_locks_floor`) > before {
			cleaned++
		}
	}
	t.Logf("cleaned up at once after %d of 200", cleaned)
}

// Neither a lock nor a clean-up reads all rows.
func TestNothingReadsAllNamedLocks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	exec(t, conn, `
INSERT INTO named_locks (kind, name, term, pid, hostname, acquired_at, expires_at)
SELECT 'lock', 'name ' || n, n, 1, 'h', now() - interval '3 days',
    now() - interval '2 days' + n * interval '1 second'
FROM generate_series(1, 50000) AS n`)
	exec(t, conn, `ANALYZE named_locks`)
	const sqlScans = `SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables
		WHERE relname = 'named_locks'`
	scans := func(f func(s *postgres.Store)) int {
		before := value[int](t, conn, sqlScans)
		s, err := postgres.Open(ctx, url, silent)
		require.NoError(t, err)
		f(s)
		require.NoError(t, s.Close()) // a session's last statistics are flushed at its end
		eventually(t, "the session's end", func() bool {
			return value[int](t, conn, sqlBackends) == 0
		})
		exec(t, conn, `SELECT pg_stat_clear_snapshot()`)
		return value[int](t, conn, sqlScans) - before
	}
	require.Zero(t, scans(func(s *postgres.Store) {
		n := s.Named()
		for range 8 { // a prepared statement may get a generic plan after five
			ref := takeNamed(t, n, namedClaim(lockA, time.Minute))
			_, err := n.Look(ctx, lockA)
			require.NoError(t, err)
			_, err = n.Extend(ctx, ref, time.Minute)
			require.NoError(t, err)
			_, err = n.Release(ctx, ref, true)
			require.NoError(t, err)
			deleted, err := n.Clean(ctx, 100)
			require.NoError(t, err)
			require.EqualValues(t, 100, deleted)
		}
	}))
	require.NotZero(t, scans(func(s *postgres.Store) {
		_, err := s.Pool().Exec(ctx, `SELECT count(*) FROM named_locks WHERE pid = 2`)
		require.NoError(t, err)
	}), "the test sees a scan")
}
