package schedlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

func TestALeaseRenewsItselfUntilItIsReleased(t *testing.T) {
	for name, campaign := range campaigns {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, b := newRenewing(t, db), newRenewing(t, db)
			start := time.Now()
			lease, err := campaign(a.lock)
			require.NoError(t, err)
			stop, cancel := context.WithCancel(ctx)
			waiter := b.stand(stop)
			sleepUntil(start, time.Hour)
			require.True(t, a.leads())
			require.NoError(t, lease.Err())
			require.Equal(t, int(time.Hour/every), a.db.count("heartbeat"),
				"one in each interval")
			require.Empty(t, waiter)
			cancel()
			<-waiter
			require.NoError(t, lease.Release(ctx))
			time.Sleep(time.Hour)
			require.Equal(t, int(time.Hour/every), a.db.count("heartbeat"),
				"none after the end")
		})
	}
}

func TestARenewalThatFailsIsRepeatedEveryRetryInterval(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		start := time.Now()
		lease := a.lead()
		a.db.set(fault{kind: broken})
		sleepUntil(start, every+20*retry)
		require.Equal(t, 21, a.db.count("heartbeat"))
		err := lease.Heartbeat(ctx)
		require.ErrorIs(t, err, errBroken)
		require.NotErrorIs(t, err, schedlock.ErrLost)
		require.True(t, a.leads())
		a.db.heal()
		sleepUntil(start, 3*renew)
		require.NoError(t, lease.Err(), "the same lease")
		require.True(t, a.leads())
	})
}

// A heartbeat that is under way when the lease ends is not cut short, and the
// release comes after it.
func TestAReleaseWaitsForARenewalThatIsUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		start := time.Now()
		lease := a.lead()
		a.db.set(fault{kind: late, after: time.Second}, "heartbeat")
		sleepUntil(start, every)
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, every+time.Second, time.Since(start))
		require.Equal(t, []schedlock.EventKind{schedlock.EventElected, schedlock.EventReleased},
			a.seen.kinds())
		require.Nil(t, rowOf(t, db))
	})
}

func TestARenewalThatHangsDoesNotHoldUpTheReleaseForLong(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		start := time.Now()
		lease := a.lead()
		a.db.set(fault{kind: hang}, "heartbeat")
		sleepUntil(start, every+retry/2)
		released := time.Now()
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, time.Second, time.Since(released), "nor is it cut short at once")
		require.Nil(t, rowOf(t, db))
		require.Zero(t, a.seen.count(schedlock.EventHeartbeatFailed), "nor is that an outage")
	})
}

func TestTheRenewalOfALeaseIsTakenOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		start := time.Now()
		lease := a.lead()
		sleepUntil(start, 2*every+every/2)
		require.Equal(t, 2, a.db.count("heartbeat"))
		require.NoError(t, lease.TakeRenewal())
		require.ErrorContains(t, lease.TakeRenewal(), "was taken before")
		sleepUntil(start, 4*every)
		require.Equal(t, 2, a.db.count("heartbeat"), "it is the caller's now")
		require.NoError(t, lease.Heartbeat(ctx))
		sleepUntil(start, 4*every+renew-time.Millisecond)
		require.True(t, a.leads())
		sleepUntil(start, 4*every+renew)
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost, "who has not sent another")

		_, err := schedlock.Revoke(ctx, db, lease.Term(), "alice", "")
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
	})
}

// It can be taken from the moment in which others see the lease, which is before it renews itself.
func TestTheRenewalOfALeaseIsTakenBeforeItBegins(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		start := time.Now()
		lease := a.lead()
		require.NoError(t, lease.TakeRenewal())
		schedlock.RenewItself(lease)
		sleepUntil(start, 2*every)
		require.Zero(t, a.db.count("heartbeat"))

		_, err := schedlock.Revoke(ctx, db, lease.Term(), "alice", "")
		require.NoError(t, err)
		require.NoError(t, lease.Heartbeat(ctx))
		for range 50 { // it may hear of the order first, or of the taking
			schedlock.RenewItself(lease)
		}
		synctest.Wait()
		require.NoError(t, a.lock.IsLeader(ctx), "the order is for whoever has taken the renewal")
		require.NoError(t, lease.Release(ctx))
	})
}

// Whoever holds a lease and knows nothing of orders leaves all the same.
func TestAnOrderToLeaveReachesALeaseWhoseOwnerDoesNotLook(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newRenewing(t, db), newRenewing(t, db)
		start := time.Now()
		lease := a.lead()
		waiter := b.stand(t.Context())
		_, err := schedlock.Revoke(ctx, db, lease.Term(), "alice", "an update")
		require.NoError(t, err)
		sleepUntil(start, every)
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining, "it starts nothing")
		require.NoError(t, lease.Context().Err(), "what runs goes on")
		sleepUntil(start, every+ttl-renew-time.Millisecond)
		require.NoError(t, lease.Err())
		sleepUntil(start, every+ttl-renew)
		require.ErrorContains(t, lease.Err(), "an operator has told this replica to leave")
		require.NoError(t, lease.Release(ctx), "its work has returned")
		wins(t, waiter)
		require.Equal(t, driver.EndRevoked, termsOf(t, db, 2)[1].EndReason)
	})
}

func TestAnOrderToLeaveLeavesALeaseToAnOwnerWhoDrainsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		lease := a.lead()
		_, err := schedlock.Revoke(ctx, db, lease.Term(), "alice", "")
		require.NoError(t, err)
		<-lease.Revoked()
		lease.Drain()
		time.Sleep(time.Hour) // its work takes long
		synctest.Wait()
		require.NoError(t, lease.Err())
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining)
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, driver.EndRevoked, a.seen.last(schedlock.EventReleased).Reason)
	})
}

func TestADrainIsInTheRowAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		lease := a.lead()
		lease.Drain()
		synctest.Wait()
		require.Equal(t, driver.StateDraining, rowOf(t, db).State)
		require.NoError(t, lease.Release(ctx))
	})
}

// slowToBeat answers a heartbeat after a time, unless the heartbeat gives up.
type slowToBeat struct {
	*memory.Store
	answers time.Duration
	left    time.Duration // how long the last heartbeat may take
}

func (s *slowToBeat) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	until, _ := ctx.Deadline()
	s.left = time.Until(until)
	select {
	case <-ctx.Done():
		return driver.Renewal{}, ctx.Err()
	case <-time.After(s.answers):
		return s.Store.Heartbeat(ctx, ref, state)
	}
}

// beatsOn sends a heartbeat, which must succeed, to a database that answers after a time.
func beatsOn(t *testing.T, answers time.Duration) (may time.Duration) {
	store := &slowToBeat{Store: memory.New(), answers: answers}
	synctest.Test(t, func(t *testing.T) {
		lock, err := schedlock.New(store, schedlock.WithTTL(8*time.Second),
			schedlock.WithHeartbeatInterval(time.Second))
		require.NoError(t, err)
		lease, err := lock.Acquire(t.Context())
		require.NoError(t, err)
		assert.NoError(t, lease.Heartbeat(t.Context()))
		require.NoError(t, lease.Release(t.Context()))
	})
	return store.left
}

// A server waits for a locked row or table for a second. Who gives up before it answers ends
// the session.
func TestAHeartbeatWaitsForTheAnswerOfAServerThatWaits(t *testing.T) {
	require.Equal(t, 1500*time.Millisecond, beatsOn(t, 0))
}

// When a process is resumed, the time is up and the answer is there.
func TestAnAnswerThatHasArrivedIsReadAlthoughTheTimeIsUp(t *testing.T) {
	beatsOn(t, 1550*time.Millisecond)
}
