package schedlock_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

func TestDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		lease.Drain()
		lease.Drain()
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining)
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrNotLeader)
		require.NoError(t, lease.Context().Err(), "what runs goes on")
		require.NoError(t, lease.Err())
		require.Same(t, lease, a.lock.Lease())
		require.Equal(t, schedlock.SelfDraining, a.lock.Status().State)
		require.Equal(t, driver.StateLeading, rowOf(t, db).State, "the next heartbeat writes it")
		require.NoError(t, lease.Heartbeat(ctx))
		require.Equal(t, driver.StateDraining, rowOf(t, db).State)
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining)

		time.Sleep(renew)
		synctest.Wait()
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost, "draining does not stretch the deadline")
		err := a.lock.IsLeader(ctx)
		require.ErrorIs(t, err, schedlock.ErrNotLeader)
		require.NotErrorIs(t, err, schedlock.ErrDraining)
		require.Equal(t, 1, a.seen.count(schedlock.EventDraining))
	})
}

func TestReleaseMayBeRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.db.set(fault{kind: broken}, "release")
		start := time.Now()
		require.ErrorIs(t, lease.Release(ctx), errBroken)
		require.Equal(t, 5*time.Second, time.Since(start), "it was repeated within its budget")
		require.False(t, a.leads(), "it has ended all the same")
		require.ErrorIs(t, lease.Err(), schedlock.ErrReleased)
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrReleased)
		require.Zero(t, a.db.count("heartbeat"), "a lease that has ended sends no more")

		a.db.heal()
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, lease.Release(cancelled), "tried again")
		require.Nil(t, rowOf(t, db))
		require.NoError(t, lease.Release(ctx), "and nothing is left to do")
		kinds := slices.Compact(a.seen.kinds())
		require.Equal(t, []schedlock.EventKind{schedlock.EventElected, schedlock.EventReleaseFailed,
			schedlock.EventReleased}, kinds)
		terms := termsOf(t, db, 1)
		require.Equal(t, driver.EndReleased, terms[0].EndReason)
	})
}

func TestAReleaseIsRepeatedWithinItsBudget(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.db.set(fault{kind: broken}, "release")
		time.AfterFunc(3*time.Second, a.db.heal)
		require.NoError(t, lease.Release(ctx))
		require.Nil(t, rowOf(t, db))
		require.Less(t, a.db.count("release"), 15, "with pauses")

		// A statement that hangs leaves time for another.
		lease = a.lead()
		a.db.next(fault{kind: hang}, "release")
		require.NoError(t, lease.Release(ctx))

		a.lead()
		a.db.set(fault{kind: broken}, "release")
		time.AfterFunc(3*time.Second, a.db.heal)
		require.NoError(t, a.lock.Stop(ctx), "Stop likewise")
		require.Nil(t, rowOf(t, db))
	})
}

func TestAReleaseThatNobodyButAnOperatorCanMendIsNotRepeated(t *testing.T) {
	for _, hopeless := range []error{driver.ErrPermanent, schedlock.ErrCorrupt} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, lease := newLeader(t, db)
			a.db.set(fault{kind: broken, err: hopeless}, "release")
			start := time.Now()
			require.ErrorIs(t, lease.Release(ctx), hopeless)
			require.Zero(t, time.Since(start))
			require.Equal(t, 1, a.db.count("release"))
		})
	}
}

func TestStopRepeatsWhatGivesBackAnAcquisitionThatWasNeverAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		acquired := false
		a.db.planned(func(op string) fault { // the row is in, and nobody was told
			switch {
			case op == "acquire":
				acquired = true
				return fault{kind: lost}
			case acquired:
				return fault{kind: broken}
			}
			return fault{}
		})
		_, err := a.lock.Acquire(ctx)
		require.ErrorIs(t, err, errBroken)
		require.NotNil(t, rowOf(t, db))
		a.db.set(fault{kind: broken})
		time.AfterFunc(3*time.Second, a.db.heal)
		require.NoError(t, a.lock.Stop(ctx))
		require.Nil(t, rowOf(t, db))
	})
}

func TestReleaseHasADeadlineOfItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.db.set(fault{kind: hang}, "release")
		start := time.Now()
		require.ErrorIs(t, lease.Release(ctx), context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(start))

		// Nor does it wait for a heartbeat that will never return.
		b := newReplica(t, memory.New())
		stuck := b.lead()
		b.db.set(fault{kind: deaf}, "heartbeat")
		go stuck.Heartbeat(ctx)
		synctest.Wait()
		start = time.Now()
		require.ErrorIs(t, stuck.Release(ctx), context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(start))
		require.Zero(t, b.db.count("release"), "statements of one lease do not cross")
		require.False(t, b.leads())
	})
}

// What the next try does not find the first one has deleted.
func TestAReleaseWhoseAnswerIsLostWarnsOfNobodyWhoHasEditedTheTable(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		var log logText
		a := newReplica(t, db, logTo(&log))
		lease := a.lead()
		a.db.next(fault{kind: lost}, "release")
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, 2, a.db.count("release"))
		require.Zero(t, log.count("nothing to release"))
	})
}

func TestReleaseOfARowThatIsAnothersIsANoOpWithAWarning(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		var log logText
		a := newReplica(t, db, logTo(&log))
		lease := a.lead()
		db.Edit(func(r *driver.Row) { r.PID = 4711 })
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, 1, log.count(`level=WARN msg="nothing to release: the row is not ours"`))
		require.Equal(t, 4711, rowOf(t, db).PID, "the row of another stays")
	})
}
