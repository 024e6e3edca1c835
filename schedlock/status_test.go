package schedlock_test

import (
	"context"
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
