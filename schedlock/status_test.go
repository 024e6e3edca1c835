package schedlock_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

func TestAReasonIsNeverOlderThanItsState(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(db *memory.Store, dead *replica) // what the last look found before it led
		end    func(db *memory.Store, lease *schedlock.Lease)
		says   string
	}{
		"a free lock, released": {nil, nil,
			"(scheduler lock was released); it has not looked at the lock since"},
		"a dead holder, released": {func(_ *memory.Store, dead *replica) {
			dead.lead()
			time.Sleep(ttl)
		}, nil, "(scheduler lock was released); it has not looked at the lock since"},
		"a free lock, lost": {nil, func(db *memory.Store, lease *schedlock.Lease) {
			db.DeleteRow()
			_ = lease.Heartbeat(ctx)
		}, "scheduler lock is lost"},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			if tc.before != nil {
				tc.before(db, newReplica(t, db))
			}
			won := a.stand(t.Context())
			got := wins(t, won)
			if tc.end != nil {
				tc.end(db, got.lease)
			}
			a.db.set(fault{kind: broken})
			_ = got.lease.Release(ctx)
			s := a.lock.Status()
			assert.Contains(t, s.Reason, "its row is being given back", "its work has returned")
			a.db.heal()
			require.NoError(t, got.lease.Release(ctx))
			b.lead()

			s = a.lock.Status()
			assert.Equal(t, schedlock.SelfStandby, s.State)
			assert.Zero(t, s.Term)
			assert.ErrorIs(t, s.Err, got.lease.Err())
			assert.Contains(t, s.Reason, "its lease of term "+
				itoa(got.lease.Term())+" has ended")
			assert.Contains(t, s.Reason, tc.says)
			assert.NotContains(t, s.Reason, "about to take")
			assert.Contains(t, s.PublicReason(func(error) string {
				return "so it goes"
			}), "(so it goes)")

			_, err := a.lock.Acquire(ctx)
			require.ErrorIs(t, err, schedlock.ErrHeld)
			assert.Contains(t, a.lock.Status().Reason, "leads (term ", "now it has looked")
		})
	}
}

// A state and its reason are of one moment, also of that in which they change.
func TestAStateAndItsReasonAreOfOneMoment(t *testing.T) {
	a := newReplica(t, memory.New())
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for range 3 {
		asking.Go(func() {
			for over := (schedlock.Status{}); ctx.Err() == nil; runtime.Gosched() {
				s := a.lock.Status()
				if !assert.NotContains(t, s.Reason, "<nil>") ||
					!assert.Equal(t, s.Leader, s.State == schedlock.SelfLeading) ||
					!assert.NotEqual(t, schedlock.SelfDraining, s.State, "nobody drains here") ||
					s.Leader &&
						!assert.NotContains(t, over.Reason, itoa(s.Term),
							"it leads, and was said to be over") {
					return
				}
				if !s.Leader {
					over = s
				}
			}
		})
	}
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	for range rounds {
		lease, err := a.lock.Acquire(t.Context())
		require.NoError(t, err)
		for range 10 {
			runtime.Gosched()
		}
		require.NoError(t, lease.Release(t.Context()))
	}
	cancel()
	asking.Wait()
}

func TestWhoDoesNotCampaignPromisesNoTakeOver(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		newLeader(t, db)
		b := newReplica(t, db)
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		require.Contains(t, b.lock.Status().Reason, "this replica does not campaign at the moment")
		standing, cancel := context.WithCancel(ctx)
		done := b.stand(standing)
		synctest.Wait()
		require.Contains(t, b.lock.Status().Reason, "takes over if no heartbeat arrives for")
		cancel()
		<-done
	})
}

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

// Why the lock could not be taken is told until somebody has it.
func TestARefusedClaimIsToldUntilAnotherLeads(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		a.db.set(fault{kind: broken, err: errNoRight}, "acquire")
		_, err := a.lock.Acquire(ctx)
		require.ErrorIs(t, err, errNoRight)
		says := a.lock.Status()
		assert.Contains(t, says.Reason, "cannot take the lock: ")
		assert.Equal(t, "cannot take the lock: so it goes",
			says.PublicReason(func(error) string { return "so it goes" }))
		b.lead()
		_, err = a.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		says = a.lock.Status()
		assert.Contains(t, says.Reason, "leads (term ")
		assert.NoError(t, says.Err)
	})
}
