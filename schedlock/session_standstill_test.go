package schedlock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
)

// standstills are the ways in which no time passes for a process.
var standstills = map[string]func(a *replica, conn *client, d time.Duration){
	"the machine was suspended": func(a *replica, _ *client, d time.Duration) {
		a.clock.Suspend(d)
	},
	"the process was stopped": func(_ *replica, conn *client, d time.Duration) {
		conn.stop()
		time.Sleep(d)
	},
}

func TestTheFirstQuestionAfterAStandstillIsAnsweredNo(t *testing.T) {
	for name, standStill := range standstills {
		serve(t, name, func(t *testing.T, db *server) {
			a, conn := newHeld(t, db)
			start := time.Now()
			lease := a.lead()
			defer beat(lease)()
			sleepUntil(start, every+4*lookEvery) // here it looks
			x := conn.endUnseen()
			standStill(a, conn, grace/2-time.Nanosecond)
			require.True(t, a.leads(), "half the grace has not passed")
			standStill(a, conn, time.Nanosecond)
			// Nothing else of the process has run yet.
			require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
			require.NoError(t, lease.Err())

			x.notice()
			conn.goOn()
			woke := time.Now()
			<-lease.Done()
			require.LessOrEqual(t, time.Since(woke), lookEvery)
			require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
			synctest.Wait() // the observer is told after the fact
			require.Equal(t, schedlock.LossSession, a.seen.last(schedlock.EventLost).Loss)
		})
	}
}

func TestAStandstillOfALeaderWhoseSessionLastsCostsAnInstant(t *testing.T) {
	for name, standStill := range standstills {
		serve(t, name, func(t *testing.T, db *server) {
			a, conn := newHeld(t, db)
			start := time.Now()
			lease := a.lead()
			defer beat(lease)()
			sleepUntil(start, every+4*lookEvery)
			standStill(a, conn, grace)
			require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
			conn.goOn()
			time.Sleep(lookEvery)
			synctest.Wait()
			require.True(t, a.leads())
			require.NoError(t, lease.Err())
			require.Equal(t, lease.Term(), a.lock.Status().Term)
			require.Equal(t, []schedlock.EventKind{schedlock.EventElected}, a.seen.kinds())
			time.Sleep(renew)
			synctest.Wait()
			require.True(t, a.leads())
		})
	}
}

// Something that waits to be read, such as a notice, hides the session from a
// look until the one who reads it has done so.
func TestUnreadDataEndsALeaseOnlyIfItStaysUnread(t *testing.T) {
	const reading = 50 * time.Millisecond // the moment that it is given
	for _, tc := range []struct {
		name   string
		unread time.Duration
		lost   bool
	}{
		{"for less than half the grace", grace/2 - lookEvery, false},
		{"a moment longer", grace/2 + reading/2, false},
		{"until that moment is over", grace/2 + reading + time.Millisecond, true},
	} {
		serve(t, tc.name, func(t *testing.T, db *server) {
			a, conn := newHeld(t, db)
			start := time.Now()
			lease := a.lead()
			defer beat(lease)()
			last := every + 4*lookEvery
			sleepUntil(start, last)
			conn.session.unread.Store(true)
			sleepUntil(start, last+min(tc.unread, grace/2)-time.Nanosecond)
			require.True(t, a.leads())
			if tc.unread > grace/2 {
				sleepUntil(start, last+grace/2)
				require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrSuspended)
				require.NoError(t, lease.Err())
			}
			sleepUntil(start, last+tc.unread)
			require.Equal(t, tc.lost, lease.Err() != nil)
			if tc.lost {
				require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
				require.Equal(t, schedlock.LossSession, a.seen.last(schedlock.EventLost).Loss)
				return
			}
			conn.session.unread.Store(false)
			sleepUntil(start, last+tc.unread+lookEvery)
			require.True(t, a.leads())
			require.Equal(t, []schedlock.EventKind{schedlock.EventElected}, a.seen.kinds())
		})
	}
}

// Of a short grace that moment is a small part too, so that jobs have time to
// stop.
func TestTheMomentToReadIsASmallPartOfTheGrace(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		const g = 100 * time.Millisecond
		a, conn := newHeld(t, db, schedlock.WithSessionGrace(g))
		start := time.Now()
		lease := a.lead()
		sleepUntil(start, g)
		conn.session.unread.Store(true)
		<-lease.Done()
		require.GreaterOrEqual(t, time.Since(start), g+g/2)
		require.LessOrEqual(t, time.Since(start), g+g/2+g/20)
	})
}
