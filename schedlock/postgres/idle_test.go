package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/postgres"
)

func TestAnIdleStandbyLooksOnceASecondAndCannotWrite(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	acquire(t, open(t, direct), time.Hour)
	// The server would refuse a write, and the lock would say so.
	trips, url := countTrips(t, as(t, direct, "postgres", "default_transaction_read_only", "on"))
	lock, _ := servertest.Waiting(t, open(t, url), time.Minute)
	began := time.Now()
	n := trips.during(func() { time.Sleep(3500 * time.Millisecond) })
	most := int(time.Since(began)/time.Second) + 1
	require.NoError(t, lock.Status().Err)
	const prepared = 2 // once: the server refuses the first statement that would write
	require.LessOrEqual(t, n, most+prepared)
	require.Positive(t, n)
}

// What a standby needs in the moment of a take-over it has prepared before.
func TestAStandbyTakesOverInOneRoundTrip(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	other := open(t, direct)
	for name, free := range map[string]bool{"a lock that is free": true,
		"from a dead holder": false} {
		ref := acquire(t, other, time.Hour)
		trips, url := countTrips(t, direct)
		s := open(t, url)
		view := look(t, s)
		waiting, cancel := context.WithCancel(ctx)
		begun := trips.count()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.AwaitHint(waiting, view)
		}()
		eventually(t, "it has prepared and tried nine statements", func() bool {
			return trips.count() == begun+18
		})
		if free {
			release(t, other, ref) // the hint
		} else {
			look(t, s) // in its turn, after the last answer
			cancel()
		}
		ends(t, done)
		cancel()
		view = look(t, s)
		n := trips.during(func() {
			_, err := s.Acquire(ctx, claim(view, time.Hour))
			require.NoError(t, err)
		})
		require.Equal(t, 1, n, name)
	}
}

// primer is in a statement that is prepared, and in none of the first acquisition ever.
const primer = "AND NOT EXISTS (SELECT FROM scheduler_lock)\n    FOR UPDATE OF t"

// A standby prepares its statements while it waits. If the server falls silent
// just then, the next look must still come to its turn.
func TestASilentServerDoesNotKeepALookFromItsTurn(t *testing.T) {
	t.Parallel()
	databaseURL := migrated(t)
	acquire(t, open(t, databaseURL), time.Hour)
	line, through := servertest.Through(t, databaseURL)
	standby := open(t, through)
	standby.PrimeFor(postgres.PrimeFor)
	view := look(t, standby)
	line.CutAt(primer)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	awaiting(ctx, standby, view)
	ends(t, line.Silent)
	_, err := standby.Look(ctx)
	require.NoError(t, err)
}

// A leader prepares nothing: if the server was slow, that would end the session by which
// others judge.
func TestALeaderPreparesNothing(t *testing.T) {
	t.Parallel()
	line, through := servertest.Through(t, migrated(t))
	leader := open(t, through, postgres.WithDirectConnection())
	line.CutAt(primer)
	ref, s := acquireWatched(t, leader, time.Minute)
	require.NotNil(t, s)
	stays(t, line.Silent)
	require.False(t, servertest.HasEnded(s))
	release(t, leader, ref)
}
