package schedlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
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
		var log logtest.Log
		a := newReplica(t, db, logTo(&log))
		lease := a.lead()
		a.db.next(fault{kind: lost}, "release")
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, 2, a.db.count("release"))
		require.Zero(t, log.Count("nothing to release"))
	})
}

func TestReleaseOfARowThatIsAnothersIsANoOpWithAWarning(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		var log logtest.Log
		a := newReplica(t, db, logTo(&log))
		lease := a.lead()
		db.Edit(func(r *driver.Row) { r.PID = 4711 })
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, 1, log.Count(`level=WARN msg="nothing to release: the row is not ours"`))
		require.Equal(t, 4711, rowOf(t, db).PID, "the row of another stays")
	})
}

func TestRevokeTellsTheHolderToLeave(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		time.Sleep(time.Second)
		r, err := schedlock.Revoke(ctx, db, lease.Term(), " alice ", "the disk is full\n")
		require.NoError(t, err)
		require.Equal(t, schedlock.Revocation{At: time.Now().UTC(),
			By: "alice", Reason: "the disk is full"}, r)
		require.Equal(t, r, rowOf(t, db).Revoked)
		select {
		case <-lease.Revoked():
			require.Fail(t, "it cannot know yet")
		default:
		}
		require.NoError(t, lease.Heartbeat(ctx))
		<-lease.Revoked()
		require.True(t, a.leads(), "its owner drains it")
		lease.Drain()
		require.NoError(t, lease.Heartbeat(ctx))
		require.Equal(t, driver.StateRevoked, rowOf(t, db).State)
		require.Equal(t, 1, a.seen.count(schedlock.EventRevoked))
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, driver.EndRevoked, a.seen.last(schedlock.EventReleased).Reason)
		terms := termsOf(t, db, 1)
		require.Equal(t, driver.EndRevoked, terms[0].EndReason)
		require.Equal(t, r, terms[0].Revoked)

		_, err = schedlock.Revoke(ctx, db, lease.Term(), "alice", "")
		require.ErrorIs(t, err, driver.ErrConflict)
		require.ErrorContains(t, err, "does not hold the lock any more")
	})
}

// An order to a dead holder shortens nothing.
func TestARevokedRowOfADeadHolderGoesByTheRules(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		lease := a.lead()
		a.crash()
		waiter := b.stand(t.Context())
		time.Sleep(time.Second)
		_, err := schedlock.Revoke(ctx, db, lease.Term(), "alice", "it is dead")
		require.NoError(t, err)
		time.Sleep(ttl - 2*time.Second)
		require.False(t, b.leads(), "its TTL has not passed")
		wins(t, waiter)
		terms := termsOf(t, db, 2)
		require.Equal(t, driver.EndExpired, terms[1].EndReason)
		require.Equal(t, "alice", terms[1].Revoked.By, "the history says who had given up on it")
		require.Equal(t, ttl, terms[0].AcquiredAt.Sub(terms[1].AcquiredAt))
	})
}

func TestRevokeRefusesWhatItCannotKeep(t *testing.T) {
	db := memory.New()
	_, lease := newLeader(t, db)
	for name, c := range map[string]struct{ by, reason, says string }{
		"nobody":          {"", "", "does not say by whom"},
		"blanks":          {" \t", "", "does not say by whom"},
		"a long name":     {strings.Repeat("x", 201), "", "has 201 bytes, 200 are allowed"},
		"a long reason":   {"a", strings.Repeat("x", 1001), "has 1001 bytes, 1000 are allowed"},
		"a name with NUL": {"a\x00b", "", `"a\x00b" is not UTF-8, or contains NUL`},
		"no UTF-8":        {"a", "\xff", `is not UTF-8`},
	} {
		_, err := schedlock.Revoke(ctx, db, lease.Term(), c.by, c.reason)
		require.ErrorContains(t, err, c.says, name)
		require.Equal(t, driver.StateLeading, rowOf(t, db).State, name)
	}
	_, err := schedlock.Revoke(ctx, newFaulty(db), lease.Term(), "a", "")
	require.ErrorIs(t, err, driver.ErrNotRevocable)
	require.NoError(t, lease.Release(ctx))
}
