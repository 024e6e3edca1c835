package named_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
)

// Two replicas wake up for the same work, the second three seconds later.
func TestATaskLockIsHeldForAtLeastSoLong(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.two()
		ran := 0
		work := func(context.Context, *named.Lock) error { ran++; return nil }
		for range 3 {
			start := at()
			did, err := a.WithTask(ctx, "report", 10*time.Second, time.Minute, work)
			require.NoError(t, err)
			require.True(t, did)
			time.Sleep(3 * time.Second)
			did, err = b.WithTask(ctx, "report", 10*time.Second, time.Minute, work)
			require.NoError(t, err)
			require.False(t, did, "the work is done again")
			_, err = b.TryTask(ctx, "report", 10*time.Second, time.Minute)
			held := heldBy(t, err, 1)
			require.True(t, held.Info.Resting)
			require.ErrorContains(t, err,
				`task lock "report" was taken by pid 1 on host "test" (term `)
			require.ErrorContains(t, err, "), 3s ago, is released, and can be taken again in 7s")
			time.Sleep(7 * time.Second)
			require.Equal(t, 10*time.Second, at()-start)
		}
		require.Equal(t, 3, ran)
	})
}

func TestATaskLockIsHeldForAtMostSoLong(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.two()
		start := at()
		lock, err := a.TryTask(ctx, "report", 0, time.Minute)
		require.NoError(t, err)
		<-lock.Done()
		require.Equal(t, 45*time.Second, at()-start)
		_, err = b.TryTask(ctx, "report", 0, time.Minute)
		heldBy(t, err, 1)
		time.Sleep(15 * time.Second)
		next, err := b.TryTask(ctx, "report", 0, time.Minute)
		require.NoError(t, err)
		require.Greater(t, next.Term(), lock.Term())
		require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
		require.NoError(t, next.Check())

		// Work that takes longer may extend it.
		time.Sleep(40 * time.Second)
		require.NoError(t, next.Extend(ctx))
		time.Sleep(40 * time.Second)
		require.NoError(t, next.Check())
		require.NoError(t, next.Unlock(ctx))
		require.Nil(t, w.row(named.KindTask, "report"), "it need not rest")
	})
}

func TestWithTask(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		why := errors.New("why")
		did, err := a.WithTask(ctx, "report", 0, time.Minute,
			func(ctx context.Context, lock *named.Lock) error {
				<-ctx.Done() // it is not kept alive
				assert.ErrorIs(t, context.Cause(ctx), driver.ErrLost)
				return why
			})
		require.True(t, did)
		require.ErrorIs(t, err, why)
		require.ErrorIs(t, err, driver.ErrLost)
		require.Zero(t, store.count("extend"))
		require.Panics(t, func() {
			_, _ = a.WithTask(ctx, "report", time.Second, time.Minute,
				func(context.Context, *named.Lock) error {
					panic("help")
				})
		})
		require.True(t, w.row(named.KindTask, "report").Resting)
		store.during(only("take", errRefused), nil)
		did, err = a.WithTask(ctx, "report", 0, time.Minute, nil)
		require.False(t, did)
		require.ErrorIs(t, err, errRefused)
	})
}

func TestTimesOfTaskLocksThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		atLeast, atMost time.Duration
		says            string
	}{
		{0, 0, "at most 0s is below 40ms"},
		{0, -time.Second, "at most -1s is below 40ms"},
		{0, 25 * time.Hour, "at most 25h0m0s is above 24h0m0s"},
		{0, time.Second + 1, "at most 1.000000001s is not a whole number of milliseconds"},
		{-1, time.Second, "at least -1ns is below 0"},
		{2 * time.Second, time.Second, "at least 2s is above the time that it is held at most 1s"},
		{1, time.Second, "at least 1ns is not a whole number of milliseconds"},
	} {
		require.ErrorContains(t, named.CheckTask(tc.atLeast, tc.atMost), tc.says)
		w := &world{t, memory.New()}
		a, store := w.replica(1)
		_, err := a.TryTask(ctx, "x", tc.atLeast, tc.atMost)
		require.ErrorContains(t, err, tc.says)
		require.Empty(t, store.ops)
	}
	require.NoError(t, named.CheckTask(time.Second, time.Second))
}

func TestATimeOutLockIsTakenOnceInItsTime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.two()
		const day = 24 * time.Hour
		first, err := a.OncePer(ctx, "report", day)
		require.NoError(t, err)
		require.NotZero(t, first)
		for range 23 {
			time.Sleep(time.Hour)
			for _, r := range []*named.Locks{a, b} {
				_, err = r.OncePer(ctx, "report", day)
				heldBy(t, err, 1)
			}
		}
		require.EqualError(t, err, `time-out lock "report" was taken by pid 1 on host "test" `+
			`(term 946684800000), 23h0m0s ago, and can be taken again in 1h0m0s`)
		time.Sleep(time.Hour)
		second, err := b.OncePer(ctx, "report", time.Minute)
		require.NoError(t, err)
		require.Greater(t, second, first)
		_, err = a.OncePer(ctx, "report", day)
		heldBy(t, err, 2)
		time.Sleep(time.Minute)
		_, err = a.OncePer(ctx, "report", 366*24*time.Hour)
		require.NoError(t, err)
		time.Sleep(366*24*time.Hour - time.Second)
		_, err = a.OncePer(ctx, "report", day)
		heldBy(t, err, 1)
		time.Sleep(time.Second)
		_, err = a.OncePer(ctx, "report", day)
		require.NoError(t, err)
		for d, says := range map[time.Duration]string{
			0: "time of a time-out lock 0s is below 40ms", 366*24*time.Hour +
				time.Millisecond: "is above 8784h0m0s", time.Second +
				1: "whole number of milliseconds",
		} {
			_, err := a.OncePer(ctx, "x", d)
			require.ErrorContains(t, err, says)
		}
	})
}
