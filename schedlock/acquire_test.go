package schedlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

func TestAcquireOfAFreshlyHeldLockFailsAtOnceAndSaysWhoHoldsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db, schedlock.WithOwner(driver.Owner{PID: 4711, Hostname: "web-1"})),
			newReplica(t, db)
		lease := a.lead()
		time.Sleep(every)
		require.NoError(t, lease.Heartbeat(ctx))
		time.Sleep(every / 2)
		start := time.Now()
		got, err := b.lock.Acquire(ctx)
		require.Nil(t, got)
		require.Zero(t, time.Since(start))
		require.ErrorIs(t, err, schedlock.ErrHeld)
		var held *schedlock.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, 4711, held.Info.PID)
		require.Equal(t, "web-1", held.Info.Hostname)
		require.Equal(t, lease.Term(), held.Info.Term)
		require.Equal(t, 15*time.Second, held.Info.Age)
		require.Equal(t, 5*time.Second, held.Info.HeartbeatAge)
		require.Equal(t, int64(1), held.Info.Beat)
	})
}

// A stamp proves nothing: clocks step.
func TestAcquireWatchesAHolderWhoseStampsAreWrong(t *testing.T) {
	for name, shift := range map[string]time.Duration{"an hour in the past": time.Hour,
		"an hour in the future": -time.Hour} {
		wrong := func(v driver.Snapshot) driver.Snapshot {
			v.Now = v.Now.Add(shift)
			return v
		}
		bubble(t, name+", alive", func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			defer beat(a.lead())()
			b.db.onView = wrong
			start := time.Now()
			_, err := b.lock.Acquire(ctx)
			require.ErrorIs(t, err, schedlock.ErrHeld)
			require.LessOrEqual(t, time.Since(start), every+retry, "as soon as the beat moved")
			require.True(t, a.leads())
		})
		bubble(t, name+", dead", func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			a.lead()
			a.crash()
			b.db.onView = wrong
			start := time.Now()
			b.lead()
			require.GreaterOrEqual(t, time.Since(start), ttl)
			require.LessOrEqual(t, time.Since(start), ttl+retry)
		})
	}
}

func TestAcquireThatLosesTheRaceSaysWhoWon(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		b.db.onCall = func(op string) {
			if op == "acquire" && !a.leads() {
				a.lead()
			}
		}
		start := time.Now()
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		require.LessOrEqual(t, time.Since(start), 10*time.Millisecond)
		requireOneLeader(t, a, b)
	})
}

func TestAcquireReportsAnOutage(t *testing.T) {
	for _, op := range []string{"look", "acquire"} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			a.db.set(fault{kind: broken}, op)
			_, err := a.lock.Acquire(ctx)
			require.ErrorIs(t, err, errBroken)
			require.NotErrorIs(t, err, schedlock.ErrHeld)
		})
	}
}

func TestAHeldErrorSaysWhoSinceWhenAndWhatToDo(t *testing.T) {
	held := func(heartbeatAge time.Duration) error {
		return &schedlock.HeldError{Info: schedlock.LockInfo{
			PID: 7, Hostname: "a", Term: 12, CreatedAt: time.Date(2026, 11, 21, 9, 50, 46, 0,
				time.UTC),
			Age: 3 * time.Minute, HeartbeatAge: heartbeatAge,
			Timing: driver.Timing{TTL: time.Minute},
		}}
	}
	assert.ErrorIs(t, held(0), schedlock.ErrHeld)
	for _, word := range []string{`pid 7`, `"a"`, "term 12", "2026-11-21T09:50:46Z", "for 3m0s",
		"last heartbeat was 2s ago", "TTL 1m0s", "stop that process",
		"wait until the TTL has passed"} {
		assert.ErrorContains(t, held(2*time.Second), word)
	}
	assert.ErrorContains(t, held(-time.Hour), "stamped 1h0m0s in the future")
}

func TestAcquireOfARowThatAFenceHoldsSaysWhoHoldsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		_, lease := newLeader(t, db)
		tx := db.Begin()
		require.NoError(t, db.Fence(ctx, tx, lease.Ref()))
		time.Sleep(2 * ttl) // nobody renews it
		b := newReplica(t, db)
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		require.NoError(t, tx.Rollback())
		b.lead()
	})
}

// What a store says of a database that it cannot use: refused for good, a row
// that somebody keeps locked, a fail-over.

var (
	errNoRight = fmt.Errorf("%w: GRANT SELECT ON scheduler_lock", driver.ErrPermanent)
	errLocked  = fmt.Errorf("%w: by backend 7", driver.ErrBlocked)
)

func TestADatabaseThatOnlyAnOperatorCanMendIsAskedNowAndThen(t *testing.T) {
	for _, op := range []string{"look", "acquire"} {
		bubble(t, op, func(t *testing.T, db *memory.Store) {
			a, log := newLogged(t, db)
			a.db.set(fault{kind: broken, err: errNoRight}, op)
			start := time.Now()
			won := a.stand(t.Context())
			sleepUntil(start, time.Minute+retry/2)
			assert.Equal(t, 7, a.db.count(op), "every tenth retry interval")
			says := a.lock.Status()
			assert.Contains(t, says.Reason, map[string]string{
				"look": "cannot read the lock: ", "acquire": "cannot take the lock: "}[op])
			assert.ErrorIs(t, says.Err, errNoRight)
			a.db.set(fault{kind: broken}, op)
			sleepUntil(start, time.Minute+20*retry+retry/2)
			assert.GreaterOrEqual(t, a.db.count(op), 17,
				"another error is tried every retry interval")
			a.db.heal()
			lease := (<-won).lease
			require.NotNil(t, lease)
			require.NoError(t, lease.Release(ctx))
			assert.Equal(t, []string{"0s WARN database refuses us",
				"30s WARN database still refuses us"}, log.all()[:2])
		})
	}
}

func TestARowThatIsKeptLockedIsNoRefusal(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.lead()
		a.crash()
		b, log := newLogged(t, db)
		b.db.set(fault{kind: broken, err: errLocked}, "acquire")
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		won := b.stand(ctx)
		sleepUntil(start, 2*ttl)
		assert.Equal(t, 1, log.count("lock row cannot be taken over"))
		assert.Positive(t, log.count("lock row still cannot be taken over"))
		cancel()
		require.ErrorIs(t, (<-won).err, context.Canceled)

		// Asked once only, it is held.
		_, err := b.lock.Acquire(t.Context())
		held, ok := err.(*schedlock.HeldError)
		require.True(t, ok, "%v", err)
		assert.Equal(t, a.lock.Owner().PID, held.Info.PID)
	})
}

func TestStatusNamesWhatAStandbyWaitsFor(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		_, lease := newLeader(t, db)
		b := newReplica(t, db)
		b.db.onView = func(v driver.Snapshot) driver.Snapshot {
			v.Blocker = "backend 7 (idle in transaction)"
			return v
		}
		ctx, cancel := context.WithCancel(t.Context())
		won := b.stand(ctx)
		synctest.Wait()
		assert.Contains(t, b.lock.Status().Reason,
			"gives no sign of life, but its row is locked: backend 7 (idle in transaction)")
		b.db.mu.Lock()
		b.db.onView = func(v driver.Snapshot) driver.Snapshot {
			v.FailedOver = v.Row == nil
			return v
		}
		b.db.mu.Unlock()
		require.NoError(t, lease.Release(ctx))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Contains(t, b.lock.Status().Reason,
			"the server has failed over and may have lost the newest term: waits")
		require.Empty(t, won, "for one TTL")
		cancel()
		<-won
	})
}
