package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/postgres"
)

// A failing primary has a replica that no longer follows it.
type failing struct {
	primary, replica *pgtest.Server
	database         string
	old              *postgres.Store // on the primary
}

// fail starts both, runs do on the primary, and cuts the replica off once it has
// what do has written.
func fail(t *testing.T, do func(*postgres.Store)) *failing {
	t.Helper()
	f := &failing{primary: pgtest.Start(t)}
	url := f.primary.Database(t)
	migrate(t, url)
	f.database = databaseName(t, url)
	f.old = open(t, url)
	f.replica = f.primary.Standby(t)
	do(f.old)
	conn := session(t, url)
	lsn := value[string](t, conn, `SELECT pg_current_wal_flush_lsn()::text`)
	standby := session(t, f.replica.URL(f.database))
	eventually(t, "the replica has it", func() bool {
		return value[bool](t, standby, `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, lsn)
	})
	exec(t, standby, `ALTER SYSTEM SET primary_conninfo = ''`)
	exec(t, standby, `SELECT pg_reload_conf()`)
	eventually(t, "the replica follows no more", func() bool {
		return value[int](t, conn, `SELECT count(*) FROM pg_stat_replication`) == 0
	})
	return f
}

// promote ends the primary, and returns the replica that takes its place, whose
// clock is wrong by step.
func (f *failing) promote(t *testing.T, step time.Duration) *postgres.Store {
	t.Helper()
	f.primary.Stop(t, "immediate")
	f.replica.Promote(t)
	url := f.replica.URL(f.database)
	setClock(t, session(t, url), step)
	return open(t, url)
}

// setClock makes the clock of the server wrong by step, for those who connect
// from now on; or for all, if it was called before.
func setClock(t *testing.T, conn *pgx.Conn, step time.Duration) {
	t.Helper()
	exec(t, conn, fmt.Sprintf(`
CREATE SCHEMA IF NOT EXISTS wrong;
CREATE OR REPLACE FUNCTION wrong.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + interval ''%d milliseconds''';
DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET search_path = wrong, public, pg_catalog',
    current_database()); END $$`, step.Milliseconds()))
}

func locksOf(t *testing.T, s *postgres.Store, ttl time.Duration) *named.Locks {
	t.Helper()
	locks, err := named.New(s.Named(), named.WithTTL(ttl), named.WithMaxPause(100*time.Millisecond))
	require.NoError(t, err)
	return locks
}

// takeAndRelease takes a lock and gives it back.
func takeAndRelease(t *testing.T, locks *named.Locks, name string) {
	t.Helper()
	lock, err := locks.TryLock(ctx, name)
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(ctx))
}

// To the promoted server a name is free, has expired, or was never taken, while
// somebody holds it who took it in the last moment of the old one. The clock of
// the promoted server may be wrong.
func TestNobodyTakesANamedLockWhileOneWhoseAcquisitionWasLostMayHoldIt(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for _, step := range missing.Some(0, -time.Hour, time.Hour) {
		t.Run("clock "+step.String(), func(t *testing.T) {
			t.Parallel()
			f := fail(t, func(s *postgres.Store) {
				takeAndRelease(t, locksOf(t, s, ttl), "released")
				expired := namedlock.Key{Kind: namedlock.KindLock, Name: "expired"}
				takeNamed(t, s.Named(), namedClaim(expired, 50*time.Millisecond))
			})
			old := locksOf(t, f.old, ttl)
			holders := map[string]*named.Lock{}
			for _, name := range []string{"released", "expired", "never taken"} {
				lock, err := old.Lock(ctx, name)
				require.NoError(t, err)
				lock.KeepAlive()
				holders[name] = lock
			}
			promoted := f.promote(t, step)
			next := locksOf(t, promoted, ttl)
			waiting, cancel := context.WithTimeout(ctx, ttl+3*patience)
			defer cancel()
			taken := make(chan error, len(holders))
			began := time.Now()
			for name, holder := range holders {
				_, err := next.TryLock(ctx, name)
				require.ErrorIs(t, err, schedlock.ErrHeld, "%s: it was taken at once", name)
				if name != "expired" || step >= 0 { // by a clock that is behind it has not
					require.ErrorContains(t, err, "failed over")
				}
				go func() {
					lock, err := next.Lock(waiting, name)
					switch {
					case err != nil:
					case holder.Err() == nil:
						err = fmt.Errorf("%s: two hold it after %v", name, time.Since(began))
					case time.Since(began) < ttl:
						err = fmt.Errorf("%s: taken after %v", name, time.Since(began))
					case lock.Term() <= holder.Term():
						err = fmt.Errorf("%s: term %d after %d", name, lock.Term(), holder.Term())
					}
					taken <- err
				}()
			}
			for range holders {
				require.NoError(t, <-taken)
			}
			// there is nothing to wait for any more
			takeAndRelease(t, next, "of which nobody has heard")
			takeAndRelease(t, next, "of which nobody has heard")
		})
	}
}

// The holder whose row the promoted server has goes on.
func TestAHolderGoesOnOverAFailOverAndItsReleaseDoesNotVouchForAnything(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	var ref namedlock.Ref
	f := fail(t, func(s *postgres.Store) {
		ref = takeNamed(t, s.Named(), namedClaim(lockA, time.Minute))
	})
	// It has given the lock back, and another has taken it, of which the promoted
	// server knows nothing: what it hears of the first once more is old.
	ours, err := f.old.Named().Release(ctx, ref, true)
	require.NoError(t, err)
	require.True(t, ours)
	lost, err := locksOf(t, f.old, ttl).TryLock(ctx, lockA.Name)
	require.NoError(t, err)

	promoted := f.promote(t, 0)
	n := promoted.Named()
	eventually(t, "a busy machine has connected to the promoted server", func() bool {
		ours, err = n.Extend(ctx, ref, ttl)
		return err == nil
	})
	require.True(t, ours)
	ours, err = n.Release(ctx, ref, true)
	require.NoError(t, err)
	require.True(t, ours)
	waiting, cancel := context.WithTimeout(ctx, 2*ttl+3*patience)
	defer cancel()
	next, err := locksOf(t, promoted, ttl).Lock(waiting, lockA.Name)
	require.NoError(t, err)
	require.ErrorIs(t, lost.Err(), driver.ErrLost, "two hold it")
	require.Greater(t, next.Term(), lost.Term())

	// Two fail-overs that are noticed together may each have lost terms.
	exec(t, session(t, f.replica.URL(f.database)),
		`UPDATE named_locks_floor SET timeline = '00000000'`)
	_, err = locksOf(t, promoted, ttl).TryLock(ctx, "b")
	require.ErrorIs(t, err, schedlock.ErrHeld)
	b, err := locksOf(t, promoted, ttl).Lock(waiting, "b")
	require.NoError(t, err)
	require.Greater(t, b.Term(), next.Term()+2<<36)
}

// Task locks are not waited for: nothing runs until it is certain that nobody
// does. A run that was lost with the primary may run again.
func TestATaskLockIsHeldByOneAfterAFailOver(t *testing.T) {
	t.Parallel()
	const atMost = 4 * time.Second
	f := fail(t, func(s *postgres.Store) {})
	lost, err := locksOf(t, f.old, time.Minute).TryTask(ctx, "report", time.Second, atMost)
	require.NoError(t, err)
	next := locksOf(t, f.promote(t, 0), time.Minute)
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		ran, err := next.WithTask(ctx, "report", time.Second, atMost,
			func(context.Context, *named.Lock) error {
				require.ErrorIs(t, lost.Err(), driver.ErrLost, "two hold it")
				return nil
			})
		require.NoError(t, err)
		if ran {
			break
		}
		require.Less(t, time.Since(began), atMost+patience, "it does not run again")
	}
}

// The server's clock is set back by an hour while a holder that has died is
// waited for, and while one lives.
func TestAServerWhoseClockIsSetBackKeepsNobodyOutForLonger(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	url := migrated(t)
	conn := session(t, url)
	setClock(t, conn, 0)
	a, b := locksOf(t, open(t, url), ttl), locksOf(t, open(t, url), ttl)
	dead, err := a.TryLock(ctx, "dead")
	require.NoError(t, err)
	alive, err := a.TryLock(ctx, "alive")
	require.NoError(t, err)
	alive.KeepAlive()
	waiting, cancel := context.WithTimeout(ctx, ttl+patience)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		lock, err := b.Lock(waiting, "dead")
		if err == nil && dead.Err() == nil {
			err = errors.New("two hold it")
		}
		if err == nil {
			err = lock.Unlock(ctx)
		}
		got <- err
	}()
	setClock(t, conn, -time.Hour)
	require.NoError(t, <-got)
	require.NoError(t, alive.Check())
	_, err = b.TryLock(ctx, "alive")
	require.ErrorIs(t, err, schedlock.ErrHeld)
	require.NoError(t, alive.Unlock(ctx))
}

// During a deploy code of the version before takes a lock: the TTL that is in
// its row is that of another.
func TestTheTTLThatOlderCodeLeavesInARowDoesNotCount(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	n, conn := open(t, url).Named(), session(t, url)
	takeNamed(t, n, namedClaim(lockA, 50*time.Millisecond))
	older := driver.NewToken().String()
	exec(t, conn, `UPDATE named_locks
		SET token = $1, term = term + 1, acquired_at = clock_timestamp(),
		expires_at = clock_timestamp() + interval '1 minute'`, older)
	for range 2 {
		term, holder, err := n.Take(ctx, namedClaim(lockA, time.Second))
		require.NoError(t, err)
		require.Zero(t, term)
		require.Equal(t, older, holder.Token.String())
		require.Greater(t, holder.Left, 30*time.Second)
	}
	exec(t, conn, `UPDATE named_locks SET token = NULL`)
	takeNamed(t, n, namedClaim(lockA, time.Second))
}

// One writes that the server has failed over; all others read it.
func TestAFailOverIsNoticedOnce(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	n, conn := open(t, url).Named(), session(t, url)
	ref := takeNamed(t, n, namedClaim(lockA, time.Minute))
	// the clock was ahead
	exec(t, conn, `UPDATE named_locks SET term = $1`, ref.Term+int64(time.Hour/time.Millisecond))
	ref.Term += int64(time.Hour / time.Millisecond)
	exec(t, conn, `UPDATE named_locks_floor
		SET timeline = lpad(to_hex(('x' || timeline)::bit(32)::int - 1), 8, '0')`)
	version := func() string {
		return value[string](t, conn,
			`SELECT concat_ws(' ', ctid, xmin, since, term) FROM named_locks_floor`)
	}
	row, err := n.Look(ctx, lockA)
	require.NoError(t, err)
	require.False(t, row.FailedOver, "its holder is known")
	unnoticed := version()
	_, err = n.Look(ctx, namedlock.Key{Kind: namedlock.KindLock, Name: "b"})
	require.NoError(t, err)
	require.Equal(t, unnoticed, version(), "Look writes nothing")
	var noticed string
	for range 3 {
		_, _, err := n.Take(ctx, namedClaim(namedlock.Key{Kind: namedlock.KindLock, Name: "b"},
			time.Minute))
		require.NoError(t, err)
		if noticed == "" {
			noticed = version()
		}
		require.Equal(t, noticed, version())
	}
	require.NotEqual(t, unnoticed, noticed)
	require.Equal(t, ref.Term+1<<36, value[int64](t, conn, `SELECT term FROM named_locks_floor`))

	// Its clock is set back: the wait begins anew, and the terms do not jump.
	exec(t, conn, `UPDATE named_locks_floor SET since = since + interval '1 hour'`)
	_, holder, err := n.Take(ctx, namedClaim(namedlock.Key{Kind: namedlock.KindLock, Name: "b"},
		time.Minute))
	require.NoError(t, err)
	require.LessOrEqual(t, holder.Left, time.Minute)
	require.Equal(t, ref.Term+1<<36, value[int64](t, conn, `SELECT term FROM named_locks_floor`))

	exec(t, conn, `UPDATE named_locks_floor SET timeline = NULL`) // by a hand
	_, holder, err = n.Take(ctx, namedClaim(namedlock.Key{Kind: namedlock.KindLock, Name: "b"},
		time.Minute))
	require.NoError(t, err)
	require.True(t, holder.FailedOver)
	exec(t, conn, `DELETE FROM named_locks_floor`)
	_, _, err = n.Take(ctx, namedClaim(namedlock.Key{Kind: namedlock.KindLock, Name: "b"},
		time.Minute))
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "INSERT INTO named_locks_floor")
}
