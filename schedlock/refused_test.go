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
