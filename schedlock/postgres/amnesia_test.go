package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// A fail-over that loses what the old server has acknowledged: the replica has
// what was there when the fail-over was begun, and nothing that comes later.

// cutOff makes a replica of a server, and cuts it off.
func cutOff(t *testing.T, server *pgtest.Server) *pgtest.Server {
	t.Helper()
	replica := server.Standby(t)
	conn := session(t, replica.URL("postgres"))
	receivers := func(n int) func() bool {
		return func() bool {
			return n == value[int](t, conn, `SELECT count(*) FROM pg_stat_wal_receiver`)
		}
	}
	// A replica that could not connect at first tries again every 5 s.
	require.Eventually(t, receivers(1), 3*patience, 10*time.Millisecond, "the replica follows")
	exec(t, conn, `ALTER SYSTEM SET primary_conninfo = ''`)
	exec(t, conn, `SELECT pg_reload_conf()`)
	eventually(t, "the replica follows no more", receivers(0))
	return replica
}

// unwatched is a claim of what the look found free.
func unwatched(view driver.Snapshot) driver.Claim {
	c := claim(view, time.Minute)
	c.Watched = false
	return c
}

// leads takes the lock as an app does.
func leads(t *testing.T, ctx context.Context, store *postgres.Store,
	ttl time.Duration) (*schedlock.Lock, error) {
	t.Helper()
	lock := newLock(t, store, ttl)
	_, err := lock.Acquire(ctx)
	for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // the machine is busy
		_, err = lock.Acquire(ctx)
	}
	return lock, err
}

// A history is how a fleet can leave a database, from never used to held.
type history struct {
	name string
	make func(t *testing.T, store *postgres.Store)
}

var histories = []history{
	{"the lock was never held", func(*testing.T, *postgres.Store) {}},
	{"the newest term was released", func(t *testing.T, store *postgres.Store) {
		release(t, store, acquire(t, store, time.Second))
	}},
	{"the newest term has no end", func(t *testing.T, store *postgres.Store) {
		acquire(t, store, time.Second)
	}},
}

var held = []history{{"the lock is held", func(t *testing.T, store *postgres.Store) {
	acquire(t, store, time.Minute)
}}}

// A loss is what a fail-over may take away: later adds it to a database that has one of the
// histories, and returns what must hold on the promoted server, at the URL.
type loss struct {
	name  string
	of    []history
	later func(t *testing.T, store *postgres.Store) (check func(t *testing.T, promoted string))
}

// One fail-over is for all: it costs more than they do.
func TestAFailOverThatLosesWhatWasAcknowledged(t *testing.T) {
	missing.Costly(t, "fails over a cluster of its own")
	t.Parallel()
	server := pgtest.Start(t)
	type database struct {
		name, in string
		store    *postgres.Store
		later    func(t *testing.T, store *postgres.Store) func(*testing.T, string)
		check    func(t *testing.T, promoted string)
	}
	var all []*database
	for _, l := range losses {
		for _, h := range l.of {
			url := server.Filled(t, func(url string) { migrate(t, url) })
			d := &database{l.name + "/" + h.name, databaseName(t, url), open(t, url), l.later, nil}
			h.make(t, d.store)
			all = append(all, d)
		}
	}
	replica := cutOff(t, server)
	for _, d := range all {
		d.check = d.later(t, d.store)
	}
	replica.Promote(t)
	for _, d := range all {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			d.check(t, replica.URL(d.in))
		})
	}
}

var losses = []loss{
	{"nobody leads while the leader of a lost term does", histories[:2], leadsOn},
	{"a claim does not travel", histories, claimsWhatItSaw},
	{"a free lock is free on the timeline of its newest term only", histories[:2], isFree},
	{"a late release vouches for no timeline", held, releases(false)},
	{"a late heartbeat vouches for no timeline", held, releases(true)},
	{"terms grow whatever the clocks say", histories, growsOn},
}

// A renewed lock is one whose lease is renewed until stop.
type renewed struct {
	lock *schedlock.Lock
	end  context.CancelFunc
	done chan struct{}
}

func renew(t *testing.T, lock *schedlock.Lock) *renewed {
	require.NoError(t, lock.Lease().TakeRenewal())
	going, end := context.WithCancel(ctx)
	r := &renewed{lock, end, make(chan struct{})}
	t.Cleanup(end)
	go func() {
		defer close(r.done)
		for lease := lock.Lease(); going.Err() == nil && lease.Err() == nil; {
			_ = lease.Heartbeat(going) // one that fails is repeated
			select {
			case <-going.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return r
}

// stop returns the term of a lease that was renewed a moment ago.
func (r *renewed) stop(t *testing.T) int64 {
	t.Helper()
	r.end()
	<-r.done
	lease := r.lock.Lease()
	require.NotNil(t, lease, "the machine was too busy to renew a lease for 9 s")
	return lease.Term()
}

func leadsOn(t *testing.T, store *postgres.Store) func(*testing.T, string) {
	const ttl = 12 * time.Second
	lock, err := leads(t, ctx, store, ttl)
	require.NoError(t, err)
	lost := renew(t, lock)
	return func(t *testing.T, url string) {
		promoted := open(t, url)
		require.True(t, look(t, promoted).FailedOver)
		term := lost.stop(t) // until now its server went on, and it with it
		next, err := leads(t, ctx, promoted, ttl)
		require.NoError(t, err)
		require.ErrorIs(t, lock.IsLeader(ctx), schedlock.ErrNotLeader, "two leaders")
		require.Greater(t, next.Lease().Term(), term)
	}
}

// What a replica has read before the fail-over is no judgement of the server
// that comes after it.
func claimsWhatItSaw(t *testing.T, store *postgres.Store) func(*testing.T, string) {
	view := look(t, store)
	return func(t *testing.T, url string) {
		promoted := open(t, url)
		for _, c := range []driver.Claim{unwatched(view), claim(view, time.Minute)} {
			_, err := promoted.Acquire(ctx, c)
			require.ErrorIs(t, err, driver.ErrConflict)
		}
		require.Equal(t, view.Row == nil, look(t, promoted).Row == nil)
	}
}

// The statement asks on which timeline the newest term was acquired, whatever
// the claimant has made of its look.
func isFree(t *testing.T, store *postgres.Store) func(*testing.T, string) {
	before := look(t, store).Incarnation
	return func(t *testing.T, url string) {
		promoted := open(t, url)
		view := look(t, promoted)
		require.True(t, view.FailedOver)
		require.NotEqual(t, before, view.Incarnation)
		_, err := promoted.Acquire(ctx, unwatched(view))
		require.ErrorIs(t, err, driver.ErrConflict)
		_, err = promoted.Acquire(ctx, claim(view, time.Minute)) // it was watched for a TTL
		require.NoError(t, err)
		require.False(t, look(t, promoted).FailedOver, "the newest term is of this timeline")
	}
}

// The release and the term that followed it are lost. Then the release comes
// once more, after a heartbeat that was on its way for long, or without one.
func releases(beats bool) func(*testing.T, *postgres.Store) func(*testing.T, string) {
	return func(t *testing.T, store *postgres.Store) func(*testing.T, string) {
		ref := look(t, store).Row.Ref
		release(t, store, ref)
		lost, err := leads(t, ctx, store, 10*time.Minute)
		require.NoError(t, err)
		return func(t *testing.T, url string) {
			promoted := open(t, url)
			if beats {
				heartbeat(t, promoted, ref)
			}
			require.True(t, look(t, promoted).FailedOver)
			release(t, promoted, ref)
			require.True(t, look(t, promoted).FailedOver)
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := leads(t, short, promoted, time.Minute)
			require.NoError(t, lost.IsLeader(ctx))
			require.ErrorIs(t, err, context.DeadlineExceeded, "two leaders")
		}
	}
}

func growsOn(t *testing.T, store *postgres.Store) func(*testing.T, string) {
	acquire(t, store, time.Second)
	lost := acquire(t, store, time.Second)
	return func(t *testing.T, url string) {
		promoted := open(t, lags(t, url))
		require.Greater(t, time.Since(look(t, promoted).Now), 59*time.Minute)
		ref := acquire(t, promoted, time.Minute)
		require.Greater(t, ref.Term, lost.Term)
		require.Less(t, ref.Term, int64(1)<<53, "a number for JavaScript")
		next := acquire(t, promoted, time.Minute)
		require.Equal(t, ref.Term+1, next.Term, "on one timeline they grow as ever")
	}
}

// shadow makes the server's clock_timestamp() for those who look in schema
// first, and returns a URL for them. What its body waits for is no lock of
// the statement, so the statement's lock_timeout does not end it.
func shadow(t *testing.T, url, schema, body string) string {
	t.Helper()
	conn := session(t, url)
	exec(t, conn, `CREATE SCHEMA `+schema)
	exec(t, conn, fmt.Sprintf(`
		CREATE FUNCTION %s.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE
		SET lock_timeout = 0 AS $$
		DECLARE now timestamptz := pg_catalog.clock_timestamp();
		BEGIN %s RETURN now; END $$`, schema, body))
	return as(t, url, "postgres", "search_path", schema+",public,pg_catalog")
}

// lags makes the server's clock an hour late, for those who use the URL.
func lags(t *testing.T, url string) string {
	return shadow(t, url, "late", `now := now - interval '1 hour';`)
}

func TestTermsGrowOverTwoFailOversThatHaveEachLostTheNewest(t *testing.T) {
	missing.OnlyFull(t, "starts two replicas")
	t.Parallel()
	server := pgtest.Start(t)
	url := server.Database(t)
	migrate(t, url)
	store, database := open(t, url), databaseName(t, url)
	acquire(t, store, time.Second)
	first := cutOff(t, server)
	acquire(t, store, time.Second)

	first.Promote(t)
	second := cutOff(t, first)
	lost := acquire(t, open(t, first.URL(database)), time.Second)

	second.Promote(t)
	ref := acquire(t, open(t, lags(t, second.URL(database))), time.Minute)
	require.Greater(t, ref.Term, lost.Term)
	require.Less(t, ref.Term, int64(1)<<53)
}

// A claimant stalls in the middle of its statement, after the statement's
// snapshot and with the time, and so the term, that it has read. Meanwhile
// another has the lock and gives it back: to the stalled one it looks free yet.
func TestAClaimantThatStallsGetsNoTermThatIsLowerThanAnothers(t *testing.T) {
	t.Parallel()
	for _, tc := range histories[:2] {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			store := open(t, url)
			tc.make(t, store)
			stalls := open(t, shadow(t, url, "stalls", `PERFORM pg_advisory_xact_lock(7);`))

			gate := session(t, url)
			exec(t, gate, `SELECT pg_advisory_lock(7)`)
			stalled := make(chan error, 1)
			c := unwatched(look(t, store))
			go func() {
				_, err := stalls.Acquire(ctx, c)
				stalled <- err
			}()
			eventually(t, "the claimant stalls", func() bool {
				return value[int](t, gate,
					`SELECT count(*) FROM pg_locks
						WHERE locktype = 'advisory' AND NOT granted AND database =
						(SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
			})
			ref := acquire(t, store, time.Minute)
			release(t, store, ref)
			exec(t, gate, `SELECT pg_advisory_unlock(7)`)
			select {
			case err := <-stalled:
				require.ErrorIs(t, err, driver.ErrConflict)
			case <-time.After(patience):
				t.Fatal("the claimant stalls for ever")
			}
			terms, err := store.Terms(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, ref.Term, terms[0].Term)
		})
	}
}
