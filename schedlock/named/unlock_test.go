package named_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

// No longer ours, context cancelled, and only then the database.
func TestTheOrderOfARelease(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, store := w.held()
		released := false
		store.during(func(_ context.Context, op string) error {
			if op == "release" {
				released = true
				assert.ErrorIs(t, lock.Check(), schedlock.ErrReleased)
				assert.Error(t, lock.Context().Err())
			}
			return nil
		}, nil)
		require.NoError(t, lock.Unlock(ctx))
		require.True(t, released)
	})
}

func TestUnlockWorksWithAContextThatHasEndedAndCanBeRepeated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, store := w.held()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		store.during(only("release", errRefused), nil)
		err := lock.Unlock(ended)
		require.ErrorIs(t, err, errRefused)
		require.NotErrorIs(t, err, driver.ErrLost)
		store.during(hang("release"), nil)
		start := at()
		require.ErrorIs(t, lock.Unlock(ended), context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, at()-start)
		require.NotNil(t, w.row(named.KindLock, "x"))
		store.during(nil, nil)
		require.NoError(t, lock.Unlock(ended))
		require.Nil(t, w.row(named.KindLock, "x"))
	})
}

// The first try has freed the row, and another has it by now.
func TestUnlockAfterOneWhoseAnswerWasLostIsNoLoss(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		b, _ := w.replica(2)
		lock := try(t, a, "x")
		store.during(nil, only("release", errRefused))
		require.ErrorIs(t, lock.Unlock(ctx), errRefused)
		other := try(t, b, "x")
		store.during(nil, nil)
		require.NoError(t, lock.Unlock(ctx))
		require.NoError(t, other.Check())
		owned, err := other.Owned(ctx)
		require.NoError(t, err)
		require.True(t, owned)
		require.NoError(t, other.Unlock(ctx))
	})
}

// What has had no answer was not carried out, and the row is not ours for another reason.
func TestUnlockAfterOneThatFailedTellsOfARevocation(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		lock := try(t, a, "x")
		_, err := a.Revoke(ctx, lock.Ref().Key, lock.Term(), "ann", "it hangs")
		require.NoError(t, err)
		store.during(only("release", errRefused), nil)
		require.ErrorIs(t, lock.Unlock(ctx), errRefused)
		store.during(nil, nil)
		require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
	})
}

func TestUnlockWaitsForAnExtendThatIsUnderWay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, store := w.held()
		lock.KeepAlive()
		store.during(func(ctx context.Context, op string) error {
			if op == "extend" && !bounded.Sleep(ctx, 1500*time.Millisecond) {
				return ctx.Err()
			}
			return nil
		}, nil)
		time.Sleep(ttl/3 + time.Second)
		start := at()
		require.NoError(t, lock.Unlock(ctx))
		require.Equal(t, time.Second/2, at()-start)
		require.Nil(t, w.row(named.KindLock, "x"), "the extend came first")
		lock.KeepAlive()
		n := store.count("extend")
		time.Sleep(ttl)
		require.Equal(t, n, store.count("extend"), "what was released is kept alive")
	})
}
