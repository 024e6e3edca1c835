package schedlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

func TestHealthyIsWhoeverDoesNotClaimToLead(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		require.NoError(t, a.lock.Healthy(0), "before it has looked")
		lease := a.lead()
		b.stand(t.Context())
		b.db.set(fault{kind: broken})
		time.Sleep(10 * ttl)
		require.NoError(t, b.lock.Healthy(time.Nanosecond), "a standby, whatever its database does")
		require.NoError(t, lease.Release(ctx))
		require.NoError(t, a.lock.Healthy(time.Nanosecond), "after a release")
	})
}

func TestALeaderThatCannotProveItIsNotHealthy(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		time.Sleep(20 * time.Second)
		require.NoError(t, a.lock.Healthy(20*time.Second))
		time.Sleep(time.Millisecond)
		require.EqualError(t, a.lock.Healthy(20*time.Second),
			"leads (term "+itoa(lease.Term())+
				"), but no heartbeat was confirmed for 20.001s (limit 20s)")
		require.NoError(t, lease.Heartbeat(ctx))
		require.NoError(t, a.lock.Healthy(20*time.Second), "confirmed again")
		require.NoError(t, a.lock.Healthy(0))

		time.Sleep(ttl)
		require.NoError(t, a.lock.Healthy(0), "its jobs have the TTL to return")
		time.Sleep(time.Millisecond)
		require.EqualError(t, a.lock.Healthy(0),
			"the lease of term "+itoa(lease.Term())+
				" has ended, but its work has not returned; "+
				"last confirmed 1m0.001s ago (limit 1m0s)")
		a.db.set(fault{kind: broken})
		require.Error(t, lease.Release(ctx))
		require.NoError(t, a.lock.Healthy(0), "its work has returned, if only the database knew")
	})
}

// What was suspended past its deadline must not pass for a leader.
func TestHealthyEndsALeaseThatIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.clock.Suspend(renew)
		require.NoError(t, a.lock.Healthy(0))
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
	})
}

func TestTheEventsSayHowALeaseWasLost(t *testing.T) {
	for want, lose := range map[schedlock.LossReason]func(db *memory.Store, lease *schedlock.Lease){
		schedlock.LossDeadline: func(*memory.Store, *schedlock.Lease) { time.Sleep(renew) },
		schedlock.LossRow: func(db *memory.Store, lease *schedlock.Lease) {
			db.DeleteRow()
			_ = lease.Heartbeat(ctx)
		},
		schedlock.LossSteppedDown: func(_ *memory.Store, lease *schedlock.Lease) {
			lease.StepDown(errors.New("wedged"))
		},
	} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, lease := newLeader(t, db)
			lose(db, lease)
			<-lease.Done()
			time.Sleep(time.Millisecond)
			require.Equal(t, want, a.seen.last(schedlock.EventLost).Loss)
			require.NoError(t, lease.Release(ctx))
		})
	}
}

func TestTheElectionSaysForHowLongNobodyLed(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		gap := func(r *replica) time.Duration { return r.seen.last(schedlock.EventElected).Gap }
		lease := a.lead()
		require.Zero(t, gap(a), "nobody ever did")
		time.Sleep(time.Second)
		require.NoError(t, lease.Release(ctx))
		time.Sleep(3 * time.Second)
		lease = b.lead()
		require.Equal(t, 3*time.Second, gap(b), "since the release")
		time.Sleep(every)
		require.NoError(t, lease.Heartbeat(ctx))
		b.crash()
		time.Sleep(time.Second)
		won := <-a.stand(t.Context())
		require.NoError(t, won.err)
		require.Equal(t, ttl+time.Second, gap(a), "since the last heartbeat")
		time.Sleep(time.Second)
		db.DeleteRow()
		c := newReplica(t, db)
		won = <-c.stand(t.Context())
		require.NoError(t, won.err)
		require.Equal(t, ttl+time.Second, gap(c), "since the acquisition: no heartbeat is known")
	})
}
