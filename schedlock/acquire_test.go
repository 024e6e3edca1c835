package schedlock_test

import (
	"testing"
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
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
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
