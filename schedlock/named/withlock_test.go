package named_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

func TestWithLockReleasesWhateverHappens(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		a, _ := w.replica(1, named.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		ran := 0
		work := func(end func() error) func(context.Context, *named.Lock) error {
			return func(ctx context.Context, lock *named.Lock) error {
				ran++
				assert.NoError(t, lock.Check())
				assert.NotNil(t, w.row(named.KindLock, "x"))
				return end()
			}
		}
		require.NoError(t, a.WithLock(ctx, "x", work(func() error { return nil })))
		require.Nil(t, w.row(named.KindLock, "x"), "after a return")
		why := errors.New("why")
		require.Equal(t, why, a.WithLock(ctx, "x", work(func() error { return why })))
		require.Nil(t, w.row(named.KindLock, "x"), "after an error")
		require.PanicsWithValue(t, "help", func() {
			_ = a.TryWithLock(ctx, "x", work(func() error { panic("help") }))
		})
		require.Nil(t, w.row(named.KindLock, "x"), "after a panic")
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = a.WithLock(ctx, "x", work(func() error { runtime.Goexit(); return nil }))
		})
		wg.Wait()
		require.Nil(t, w.row(named.KindLock, "x"), "after the end of a goroutine")
		require.Equal(t, 4, ran)

		lock := try(t, a, "x")
		heldBy(t, a.TryWithLock(ctx, "x", work(nil)), 1)
		require.Equal(t, 4, ran)
		require.NoError(t, lock.Unlock(ctx))
		require.Empty(t, log.String())
	})
}

func TestWithLockKeepsAliveAndCancelsOnLoss(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		b, _ := w.replica(2)
		type key struct{}
		outer := context.WithValue(ctx, key{}, "value")
		why := errors.New("why")
		var next atomic.Pointer[named.Lock]
		err := a.WithLock(outer, "x", func(ctx context.Context, lock *named.Lock) error {
			assert.Equal(t, "value", ctx.Value(key{}))
			time.Sleep(time.Hour)
			assert.NoError(t, ctx.Err())
			// The database does not answer us any more, but others.
			store.during(hang("extend"), nil)
			go func() {
				lock, err := b.Lock(context.Background(), "x")
				assert.NoError(t, err)
				next.Store(lock)
			}()
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), driver.ErrLost)
			synctest.Wait()
			assert.Nil(t, next.Load(), "another has it already")
			time.Sleep(ttl - trusted + time.Second)
			assert.NotNil(t, next.Load(), "a function that ignores its context overlaps")
			return why
		})
		require.ErrorIs(t, err, why)
		require.ErrorIs(t, err, driver.ErrLost)
		require.NoError(t, next.Load().Check())
		require.NoError(t, next.Load().Unlock(ctx))
	})
}

func TestWithLockEndsWithItsContext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.replica(1)
		why := errors.New("why")
		outer, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(time.Minute, func() { cancel(why) })
		err := a.WithLock(outer, "x", func(ctx context.Context, lock *named.Lock) error {
			<-ctx.Done()
			assert.Equal(t, why, context.Cause(ctx))
			time.Sleep(time.Hour)
			assert.NoError(t, lock.Check(), "the lock is kept alive until fn returns")
			return ctx.Err()
		})
		require.Equal(t, context.Canceled, err)
		require.Nil(t, w.row(named.KindLock, "x"))

		timed, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		err = a.WithLock(timed, "x", func(ctx context.Context, lock *named.Lock) error {
			at, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, time.Minute, time.Until(at))
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, driver.ErrLost)
	})
}
