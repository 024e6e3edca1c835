package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/postgres"
)

// setClock makes the clock of the server wrong by step, for those who connect from now on.
func setClock(t *testing.T, conn *pgx.Conn, step time.Duration) {
	t.Helper()
	exec(t, conn, fmt.Sprintf(`
CREATE SCHEMA wrong;
CREATE FUNCTION wrong.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
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
			primary := pgtest.Start(t)
			url := primary.Database(t)
			migrate(t, url)
			store := open(t, url)
			old := locksOf(t, store, ttl)
			takeAndRelease(t, old, "released")
			expired := lockNamed("expired")
			takeNamed(t, store.Named(), namedClaim(expired, 50*time.Millisecond))
			replica := cutOff(t, primary)
			holders := map[string]*named.Lock{}
			for _, name := range []string{"released", "expired", "never taken"} {
				lock, err := old.Lock(ctx, name)
				require.NoError(t, err)
				lock.KeepAlive()
				holders[name] = lock
			}
			primary.Stop(t, "immediate")
			replica.Promote(t)
			admin := session(t, replica.URL(databaseName(t, url)))
			setClock(t, admin, step)
			next := locksOf(t, open(t, admin.Config().ConnString()), ttl)
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

			// Two fail-overs that are noticed together may each have lost terms.
			exec(t, admin, `UPDATE named_locks_floor SET timeline = '00000000'`)
			_, err := next.TryLock(ctx, "b")
			require.ErrorIs(t, err, schedlock.ErrHeld)
			b, err := next.Lock(waiting, "b")
			require.NoError(t, err)
			require.Greater(t, b.Term(), holders["expired"].Term()+2<<36)
		})
	}
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
	b := lockNamed("b")
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
	_, err = n.Look(ctx, b)
	require.NoError(t, err)
	require.Equal(t, unnoticed, version(), "Look writes nothing")
	var noticed string
	for range 3 {
		_, _, err := n.Take(ctx, namedClaim(b, time.Minute))
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
	_, holder, err := n.Take(ctx, namedClaim(b, time.Minute))
	require.NoError(t, err)
	require.LessOrEqual(t, holder.Left, time.Minute)
	require.Equal(t, ref.Term+1<<36, value[int64](t, conn, `SELECT term FROM named_locks_floor`))

	exec(t, conn, `UPDATE named_locks_floor SET timeline = NULL`) // by a hand
	_, holder, err = n.Take(ctx, namedClaim(b, time.Minute))
	require.NoError(t, err)
	require.True(t, holder.FailedOver)
	exec(t, conn, `DELETE FROM named_locks_floor`)
	_, _, err = n.Take(ctx, namedClaim(b, time.Minute))
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "INSERT INTO named_locks_floor")
}
