package tasks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// Another app that took the lock for a while, by mistake, must not keep the
// replicas that stand by in the background away for good.
func TestARunnerGoesOnWhenAnotherAppHasTheLockForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		newLock := func(app string) *schedlock.Lock {
			lock, err := schedlock.New(db, schedlock.WithApp(app), schedlock.WithLogger(discard))
			require.NoError(t, err)
			return lock
		}
		shop := newLock("shop")
		lease, err := shop.Acquire(ctx)
		require.NoError(t, err)

		lock := newLock("billing")
		r, err := NewRunner(lock, db, nil, WithLogger(discard))
		require.NoError(t, err)
		require.ErrorIs(t, r.Acquire(ctx), driver.ErrPermanent)
		r.Campaign()
		r.Start()
		time.Sleep(3 * ttl)
		require.ErrorIs(t, lock.IsLeader(ctx), schedlock.ErrNotLeader)
		require.NoError(t, lease.Release(ctx))
		time.Sleep(ttl + retry)
		synctest.Wait()
		require.NoError(t, lock.IsLeader(ctx))
		require.NoError(t, r.Stop(ctx))
		require.NoError(t, lock.Stop(ctx))
		require.NoError(t, shop.Stop(ctx))
	})
}
