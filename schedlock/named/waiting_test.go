package named_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/named"
)

func TestLockWaitsForARelease(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.replica(1)
		b, store := w.replica(2)
		lock := try(t, a, "x")
		lock.KeepAlive()
		const work = 10*time.Minute + 7*time.Second
		time.AfterFunc(work, func() { assert.NoError(t, lock.Unlock(ctx)) })
		start := at()
		next, err := b.Lock(ctx, "x")
		require.NoError(t, err)
		waited := at() - start
		require.GreaterOrEqual(t, waited, work)
		require.Less(t, waited, work+time.Second)
		require.LessOrEqual(t, store.count("look"), 2*int(work/time.Second)+20,
			"it looks too often")
		require.Equal(t, 2, store.count("take"), "who waits does not write")
		require.NoError(t, next.Unlock(ctx))
	})
}

func TestLockGivesUpWithItsContext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.two()
		lock := try(t, a, "x")
		lock.KeepAlive()
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		start := at()
		_, err := b.Lock(short, "x")
		require.Equal(t, time.Minute, at()-start)
		heldBy(t, err, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		why := errors.New("why")
		ended, stop := context.WithCancelCause(ctx)
		stop(why)
		_, err = b.Lock(ended, "x")
		require.ErrorIs(t, err, why)
		_, err = b.TryLock(ended, "x")
		require.ErrorIs(t, err, why)
		require.NoError(t, lock.Unlock(ctx))
		_, err = b.TryLock(ended, "x")
		require.ErrorIs(t, err, why)
		require.Nil(t, w.row(named.KindLock, "x"), "nobody has it")
	})
}

func TestAnErrorOfTheDatabaseEndsTheWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.replica(1)
		b, store := w.replica(2)
		lock := try(t, a, "x")
		store.during(only("look", errRefused), nil)
		_, err := b.Lock(ctx, "x")
		require.ErrorIs(t, err, errRefused)
		require.EqualError(t, err, `look at lock "x": connection refused`)
		require.NoError(t, lock.Unlock(ctx))
		store.during(only("take", errRefused), nil)
		_, err = b.Lock(ctx, "x")
		require.EqualError(t, err, `take lock "x": connection refused`)
	})
}

// Whoever gets no answer has no lock, and nobody else has to wait for it.
func TestAnAcquisitionWithoutAnAnswerIsGivenBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		for name, take := range map[string]func(context.Context) error{
			"lock": func(ctx context.Context) error {
				_, err := a.TryLock(ctx, "x")
				return err
			},
			"task": func(ctx context.Context) error {
				_, err := a.TryTask(ctx, "x", time.Hour, time.Hour)
				return err
			},
			"time-out": func(ctx context.Context) error {
				_, err := a.OncePer(ctx, "x", 24*time.Hour)
				return err
			},
		} {
			store.during(nil, only("take", errRefused))
			require.ErrorIs(t, take(ctx), errRefused, name)
			store.during(nil, hang("take"))
			short, cancel := context.WithTimeout(ctx, time.Second)
			require.ErrorIs(t, take(short), context.DeadlineExceeded, name)
			cancel()
			for _, kind := range []named.Kind{named.KindLock, named.KindTask, named.KindTimeout} {
				require.Nil(t, w.row(kind, "x"), name)
			}
		}
	})
}

func TestAnAnswerThatCameTooLateToBeTrustedIsGivenBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1, named.WithTTL(4*time.Second))
		store.during(slow("take", 3*time.Second), nil)
		_, err := a.TryLock(ctx, "x")
		require.ErrorContains(t, err, "answered after 3s")
		require.Nil(t, w.row(named.KindLock, "x"))
	})
}
