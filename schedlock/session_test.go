package schedlock_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// How often a holder looks at its session.
const lookEvery = grace / 20

func TestWithSessionGrace(t *testing.T) {
	for _, d := range []time.Duration{-1, 1, 99 * time.Millisecond,
		100*time.Millisecond + 500*time.Microsecond, -5 * time.Second} {
		lock, err := schedlock.New(memory.New(), schedlock.WithSessionGrace(d))
		assert.ErrorContains(t, err, "session grace "+d.String()+
			" is neither 0 nor a whole number of milliseconds from 100ms on")
		assert.Nil(t, lock)
	}
	for set, want := range map[time.Duration]time.Duration{
		0:                      0,
		100 * time.Millisecond: 100 * time.Millisecond,
		grace:                  grace,
		ttl - time.Millisecond: ttl - time.Millisecond,
		ttl:                    0,
		ttl + time.Second:      0,
		(math.MaxInt64 / time.Millisecond) * time.Millisecond: 0,
	} {
		for _, opts := range [][]schedlock.Option{
			{schedlock.WithSessionGrace(set)},
			{schedlock.WithSessionGrace(set), schedlock.WithTTL(ttl)},
			{schedlock.WithSessionGrace(time.Second), schedlock.WithSessionGrace(set)},
		} {
			lock, err := schedlock.New(memory.New(), opts...)
			require.NoError(t, err)
			assert.Equal(t, want, lock.SessionGrace(), "%v", set)
		}
	}
	lock, err := schedlock.New(memory.New(), schedlock.WithLogger(quiet))
	require.NoError(t, err)
	assert.Zero(t, lock.SessionGrace(), "off by default")
}

func TestTheEndOfItsSessionSuspendsALeaderUntilAHeartbeatOnANewOne(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		var (
			a    *replica
			told []error // what the leader check said when each event came
		)
		a, conn := newHeld(t, db,
			schedlock.WithObserver(func(e schedlock.Event) {
				if e.Kind == schedlock.EventSuspended || e.Kind == schedlock.EventResumed {
					told = append(told, a.lock.IsLeader(ctx))
				}
			}))
		start := time.Now()
		lease := a.lead()
		sleepUntil(start, every/2)
		conn.cut()
		synctest.Wait()
		for range 3 { // at once, and for as long as there is no other session
			err := a.lock.IsLeader(ctx)
			require.ErrorIs(t, err, schedlock.ErrSuspended)
			require.ErrorIs(t, err, schedlock.ErrNotLeader)
			require.NoError(t, lease.Context().Err())
			require.Same(t, lease, a.lock.Lease())
			s := a.lock.Status()
			require.Equal(t, schedlock.SelfSuspended, s.State)
			require.False(t, s.Leader)
			require.Equal(t, lease.Term(), s.Term)
			require.Equal(t, "its database session has ended; "+
				"starts nothing until a heartbeat on a new one succeeds, "+
				"and gives up 2.5s after the end", s.Reason)
			require.Equal(t, 1, a.seen.count(schedlock.EventSuspended))
			require.Equal(t, lease.Term(), a.seen.last(schedlock.EventSuspended).Term)
			time.Sleep(grace / 10)
			synctest.Wait()
		}
		require.Greater(t, a.db.count("heartbeat"), 10, "it tries all the time")
		require.Zero(t, a.seen.count(schedlock.EventResumed))

		conn.refuse(false)
		suspended := time.Since(start) - every/2
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		require.True(t, a.leads())
		require.NoError(t, lease.Err())
		require.Equal(t, lease.Term(), a.lock.Status().Term)
		require.Equal(t, lease.Term(), rowOf(t, db).Term)
		require.Equal(t, 1, a.seen.count(schedlock.EventResumed))
		resumed := a.seen.last(schedlock.EventResumed)
		require.Equal(t, lease.Term(), resumed.Term)
		require.InDelta(t, suspended, resumed.Took, float64(50*time.Millisecond))

		require.Len(t, told, 2)
		require.ErrorIs(t, told[0], schedlock.ErrSuspended)
		require.NoError(t, told[1])

		// And so it goes on: heartbeats as before, and the next end is seen too.
		sent := a.db.count("heartbeat")
		sleepUntil(start, every)
		require.Equal(t, sent, a.db.count("heartbeat"), "what sent them has ended")
		require.NoError(t, lease.Heartbeat(ctx))
		conn.cut()
		synctest.Wait()
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
		require.Equal(t, 2, a.seen.count(schedlock.EventSuspended))
		require.Zero(t, a.seen.count(schedlock.EventLost))
	})
}

func TestALeaseOnAnEndedSessionIsLostAfterHalfTheGraceAndTakenOverAfterAWholeOne(t *testing.T) {
	for name, g := range map[string]time.Duration{"by default": grace,
		"the shortest grace": 100 * time.Millisecond, "a long one": 40 * time.Second} {
		serve(t, name, func(t *testing.T, db *server) {
			a, conn := newHeld(t, db, schedlock.WithSessionGrace(g))
			b, _ := newHeld(t, db, schedlock.WithSessionGrace(g))
			var found time.Time // the first answer that told b
			b.db.onView = func(v driver.Snapshot) driver.Snapshot {
				if v.Sign == driver.SignEnded && found.IsZero() {
					found = time.Now()
				}
				return v
			}
			start := time.Now()
			lease := a.lead()
			require.Equal(t, g, rowOf(t, db).Grace)
			waiter := b.stand(t.Context())

			looked := min(g/20, time.Second) * 3 // the last look that sees it alive
			sleepUntil(start, looked+time.Millisecond)
			conn.cut()
			sleepUntil(start, looked+g/2-time.Nanosecond)
			require.NoError(t, lease.Err())
			require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
			sleepUntil(start, looked+g/2)
			require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
			require.ErrorIs(t, context.Cause(lease.Context()), schedlock.ErrLost)
			require.NotErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
			require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrNotLeader)
			require.Nil(t, a.lock.Lease())
			require.Equal(t, 1, a.seen.count(schedlock.EventLost))
			require.Equal(t, schedlock.LossSession, a.seen.last(schedlock.EventLost).Loss)
			require.ErrorIs(t, a.seen.last(schedlock.EventLost).Err, schedlock.ErrLost)

			got := wins(t, waiter)
			assert.GreaterOrEqual(t, got.at.Sub(found), g)
			assert.LessOrEqual(t, got.at.Sub(found), g+time.Millisecond)
			assert.LessOrEqual(t, got.at.Sub(start), looked+retry+g+time.Millisecond,
				"and not a TTL")
			assert.Equal(t, driver.EndSessionEnded, b.seen.last(schedlock.EventElected).Reason)
			terms := termsOf(t, db, 2)
			assert.Equal(t, lease.Term(), terms[1].Term)
			assert.Equal(t, driver.EndSessionEnded, terms[1].EndReason)

			conn.refuse(false)
			assert.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost, "it does not come back")
			assert.Zero(t, a.seen.count(schedlock.EventResumed))
			requireOneLeader(t, a, b)
		})
	}
}

func TestASessionThatLastsDoesNotProlongTheRenewDeadline(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, _ := newHeld(t, db)
		start := time.Now()
		lease := a.lead()
		defer beat(lease)()
		a.db.set(fault{kind: broken}, "heartbeat")
		sleepUntil(start, renew-time.Nanosecond)
		require.True(t, a.leads())
		a.clock.Suspend(time.Nanosecond) // so that the leader check alone can tell
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrNotLeader)
		require.NotErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
		require.Equal(t, schedlock.LossDeadline, a.seen.last(schedlock.EventLost).Loss)
		require.Zero(t, a.seen.count(schedlock.EventSuspended))
	})
}

func TestARenewDeadlineWithinHalfTheGraceCountsAllTheSame(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		const short = 30 * time.Second
		a, conn := newHeld(t, db, schedlock.WithRenewDeadline(short),
			schedlock.WithSessionGrace(ttl-time.Second))
		start := time.Now()
		lease := a.lead()
		conn.cut()
		sleepUntil(start, short)
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
		require.NotErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
	})
}

// When the answer comes the session may have ended long ago.
func TestASessionIsTrustedFromTheSendingOfWhatBeganIt(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, conn := newHeld(t, db)
		conn.slow = grace / 5
		start := time.Now()
		time.AfterFunc(conn.slow*3/2, func() {
			conn.set(func() { conn.session.unread.Store(true) })
		}) // while the acquisition is under way
		lease := a.lead()
		require.Equal(t, 2*grace/5, time.Since(start), "a look, and the acquisition")
		sent := start.Add(grace / 5)
		sleepUntil(sent, grace/2-time.Nanosecond)
		require.True(t, a.leads())
		sleepUntil(sent, grace/2)
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
		<-lease.Done()
		conn.set(func() { conn.slow = 0 })
	})
}

// A heartbeat that was sent before the session ended says nothing of a new one.
func TestOnlyAHeartbeatOnANewSessionResumes(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, conn := newHeld(t, db)
		lease := a.lead()
		a.db.next(fault{kind: late, after: grace / 10}, "heartbeat")
		answered := make(chan error, 1)
		go func() { answered <- lease.Heartbeat(ctx) }()
		synctest.Wait()
		conn.cut()
		require.NoError(t, <-answered)
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
		require.Zero(t, a.seen.count(schedlock.EventResumed))
		conn.refuse(false)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		require.True(t, a.leads())
		require.Equal(t, 1, a.seen.count(schedlock.EventResumed))
	})
}

// One try to resume that hangs leaves time for another.
func TestAHeartbeatThatHangsDoesNotUseUpTheGrace(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, conn := newHeld(t, db)
		lease := a.lead()
		time.Sleep(lookEvery)
		synctest.Wait()
		a.db.next(fault{kind: hang}, "heartbeat")
		conn.end()
		time.Sleep(grace/2 - time.Millisecond)
		synctest.Wait()
		require.True(t, a.leads())
		require.NoError(t, lease.Err())
		require.Equal(t, 1, a.seen.count(schedlock.EventResumed))
	})
}

func TestDrainAndReleaseOfASuspendedLeader(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, conn := newHeld(t, db)
		lease := a.lead()
		conn.cut()
		synctest.Wait()
		lease.Drain()
		require.Equal(t, 1, a.seen.count(schedlock.EventDraining))
		require.NoError(t, lease.Err(), "what runs goes on")
		conn.refuse(false)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining,
			"resumed, and about to leave")
		require.Equal(t, driver.StateDraining, rowOf(t, db).State)
		require.Equal(t, schedlock.SelfDraining, a.lock.Status().State)

		conn.cut()
		synctest.Wait()
		require.ErrorIs(t, lease.Release(ctx), errBroken)
		require.ErrorIs(t, lease.Err(), schedlock.ErrReleased)
		conn.refuse(false)
		require.NoError(t, lease.Release(ctx))
		require.Nil(t, rowOf(t, db))
		require.Equal(t, driver.EndReleased, a.seen.last(schedlock.EventReleased).Reason)
		require.Zero(t, a.seen.count(schedlock.EventLost))
		sent := a.db.count("heartbeat")
		time.Sleep(time.Minute)
		require.Equal(t, sent, a.db.count("heartbeat"), "nothing goes on trying")
	})
}

func TestALeaseLostWithItsSessionIsReleasedSoThatNobodyWaits(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, conn := newHeld(t, db)
		lease := a.lead()
		conn.cut()
		<-lease.Done()
		conn.refuse(false)
		require.NoError(t, lease.Release(ctx))
		terms, err := db.Terms(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, driver.EndLost, terms[0].EndReason)
		require.Greater(t, a.lead().Term(), lease.Term())
	})
}

// The session on which such a row was written has ended, or soon will: to
// others its holder seems dead.
func TestAnAcquisitionWhoseAnswerWasLostIsGivenBackIfItsSessionCounts(t *testing.T) {
	serve(t, "Wait tries again", func(t *testing.T, db *server) {
		a, _ := newHeld(t, db)
		a.db.next(fault{kind: lost}, "acquire")
		lease, err := a.lock.Wait(ctx)
		require.NoError(t, err)
		require.True(t, a.leads())
		require.Equal(t, 2, a.db.count("acquire"))
		require.Equal(t, 1, a.seen.count(schedlock.EventElected))
		terms := termsOf(t, db, 2)
		require.Equal(t, lease.Term(), terms[0].Term)
		require.Equal(t, driver.EndReleased, terms[1].EndReason)
	})
	serve(t, "also if giving it back fails at first", func(t *testing.T, db *server) {
		a, _ := newHeld(t, db)
		calls := map[string]int{}
		a.db.planned(func(op string) fault {
			calls[op]++
			switch {
			case op == "acquire" && calls[op] == 1:
				return fault{kind: lost}
			case op == "release" && calls[op] == 1:
				return fault{kind: broken}
			}
			return fault{}
		})
		start := time.Now()
		_, err := a.lock.Wait(ctx)
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 2*retry, "not after its own grace or TTL")
		require.Equal(t, 2, a.db.count("acquire"))
	})
	serve(t, "Acquire says so", func(t *testing.T, db *server) {
		a, _ := newHeld(t, db)
		a.db.next(fault{kind: lost}, "acquire")
		lease, err := a.lock.Acquire(ctx)
		require.ErrorIs(t, err, errBroken)
		require.Nil(t, lease)
		require.False(t, a.leads())
		require.Nil(t, rowOf(t, db))
		a.lead()
	})
}

func TestALeaderWithoutASessionThatCountsGoesByTheRenewDeadlineAlone(t *testing.T) {
	for name, join := range map[string]func(*testing.T, *server) *replica{
		"the option is off": func(t *testing.T, db *server) *replica {
			a, _ := newHeld(t, db, schedlock.WithSessionGrace(0))
			return a
		},
		"the store has no sessions": func(t *testing.T, db *server) *replica {
			return newReplica(t, db, schedlock.WithSessionGrace(grace))
		},
	} {
		serve(t, name, func(t *testing.T, db *server) {
			a := join(t, db)
			start := time.Now()
			lease := a.lead()
			require.Zero(t, rowOf(t, db).Grace)
			a.crash()
			sleepUntil(start, renew-time.Nanosecond)
			require.True(t, a.leads())
			sleepUntil(start, renew)
			require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
			require.Equal(t, schedlock.LossDeadline, a.seen.last(schedlock.EventLost).Loss)
		})
	}
}
