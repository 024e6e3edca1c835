package schedlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

// A Run that ends gives back what its own acquisitions may have got. The row of one whose answer
// is on its way to a Wait is not among that: Wait would lead without a row.
func TestARunThatEndsLeavesTheAcquisitionOfAWaitAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		a.db.set(fault{kind: broken}, "acquire")
		waiter := a.stand(ctx)
		synctest.Wait()
		run, cancel := context.WithCancel(ctx)
		ended := a.run(run, untilTheEnd) // it waits for its turn to campaign
		time.Sleep(3*retry + retry/2)
		a.db.set(fault{kind: late, after: retry}, "acquire")
		time.Sleep(retry)
		require.NotNil(t, rowOf(t, db))
		require.False(t, a.leads(), "the answer is on its way")
		cancel()
		require.NoError(t, <-ended)
		require.NotNil(t, rowOf(t, db))
		wins(t, waiter)
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		requireOneLeader(t, a, b)
	})
}

// Nothing of the app is under way in a Run that stands by, so how long the caller of Stop would
// wait for that does not count.
func TestStopAwaitsTheAcquisitionOfARunWhateverItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		a.db.set(fault{kind: late, after: time.Second}, "acquire")
		ended := a.run(ctx, untilTheEnd)
		synctest.Wait()
		require.NotNil(t, rowOf(t, db))
		over, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, a.lock.Stop(over))
		require.Nil(t, rowOf(t, db))
		require.ErrorIs(t, <-ended, schedlock.ErrStopped)
	})
}

func TestStartCampaignsOnceSomebodysLeaseIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		lease := a.lead()
		a.lock.Start()
		time.Sleep(ttl / 2)
		require.NoError(t, lease.Release(ctx))
		time.Sleep(ttl)
		require.True(t, a.leads())
	})
}

func TestRunPausesIfItsFunctionReleasesTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		a.run(ctx, func(ctx context.Context, lease *schedlock.Lease) error {
			return lease.Release(ctx)
		})
		time.Sleep(20*retry + retry/2)
		require.Equal(t, 11, a.db.count("acquire"), "one every two retry intervals")
	})
}

// A connection that dies silently must not keep a standby from the lock for an interval of hours.
func TestAStandbyWithRareHeartbeatsLooksAgainSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		b := newReplica(t, db, schedlock.WithTTL(24*time.Hour),
			schedlock.WithHeartbeatInterval(6*time.Hour))
		b.db.set(fault{kind: hang}, "look")
		waiter := b.stand(ctx)
		synctest.Wait()
		require.NoError(t, lease.Release(ctx))
		b.db.set(fault{})
		begun := time.Now()
		require.Less(t, wins(t, waiter).at.Sub(begun), 15*time.Second)
		require.False(t, a.leads())
	})
}

// Nobody else campaigns, so what has arrived late can only be its own. Its context may be that of
// what runs under another Lock, which was stopped: that stops this one as little as any other end.
func TestARunThatEndsGivesBackWhatItsAcquisitionHasGotLate(t *testing.T) {
	for _, why := range []error{context.Canceled, schedlock.ErrStopped} {
		bubble(t, why.Error(), func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			a.db.set(fault{kind: lateApply, after: retry / 4}, "acquire")
			run, cancel := context.WithCancelCause(ctx)
			ended := a.run(run, untilTheEnd)
			time.Sleep(retry / 2) // before it looks again
			require.NotNil(t, rowOf(t, db))
			cancel(why)
			require.NoError(t, <-ended)
			require.Nil(t, rowOf(t, db))

			a.db.heal()
			run, cancel = context.WithCancelCause(ctx)
			ended = a.run(run, untilTheEnd)
			synctest.Wait()
			require.True(t, a.leads())
			cancel(why)
			require.NoError(t, <-ended)
			require.Nil(t, rowOf(t, db))
		})
	}
}

// Whoever works under one Lock may use another meanwhile: the end of the first ends its context.
func TestTheEndOfAnotherLeaseIsNoEndOfThisOne(t *testing.T) {
	for _, why := range []error{schedlock.ErrLost, schedlock.ErrCorrupt, schedlock.ErrReleased} {
		bubble(t, "a heartbeat, "+why.Error(), func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			lease := a.lead()
			work, cancel := context.WithCancelCause(ctx)
			a.db.set(fault{kind: hang}, "heartbeat")
			time.AfterFunc(time.Second, func() { cancel(why) })
			for range 2 { // one that is cut off, and one that has no turn
				err := lease.Heartbeat(work)
				require.ErrorIs(t, err, context.Canceled)
				require.NotErrorIs(t, err, why)
				require.NoError(t, lease.Err())
				a.db.set(fault{kind: late, after: time.Second}, "heartbeat")
				go func() { _ = lease.Heartbeat(ctx) }()
				synctest.Wait()
			}
			require.True(t, a.leads())
			a.db.heal()
			require.NoError(t, lease.Release(ctx))
		})
		bubble(t, "an acquisition, "+why.Error(), func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			a.db.planned(func(op string) fault {
				switch op {
				case "acquire":
					return fault{kind: slowApply, after: time.Second}
				case "look":
					return fault{kind: late, after: time.Second}
				}
				return fault{}
			})
			work, cancel := context.WithCancelCause(ctx)
			ended := a.run(work, untilTheEnd)
			time.Sleep(3 * time.Second / 2) // it is sent after the first look
			cancel(why)
			require.NoError(t, <-ended)
			require.Nil(t, rowOf(t, db))
		})
	}
}
