package bounded

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOnlyWhatHasNoDeadlineGetsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := Context(t.Context(), time.Minute)
		<-ctx.Done()
		assert.Equal(t, time.Minute, time.Since(begin))
		cancel()

		own, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		ctx, cancel = Context(own, time.Minute)
		cancel()
		assert.NoError(t, ctx.Err(), "it is the caller's to cancel")
		<-ctx.Done()
		assert.Equal(t, time.Minute+time.Hour, time.Since(begin))
	})
}

func TestAPatientContextLastsAMomentLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := Patient(t.Context(), time.Minute)
		defer cancel()
		until, _ := ctx.Deadline()
		assert.Equal(t, begin.Add(time.Minute), until)
		child, end := context.WithTimeout(ctx, time.Hour)
		defer end()
		<-child.Done()
		assert.Equal(t, time.Minute+Moment, time.Since(begin))
		assert.ErrorIs(t, child.Err(), context.DeadlineExceeded)

		own, stop := context.WithCancel(t.Context())
		ctx, cancel = Patient(own, time.Minute)
		defer cancel()
		assert.NoError(t, ctx.Err())
		stop()
		<-ctx.Done()
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		assert.Equal(t, time.Minute+Moment, time.Since(begin), "at once")
	})
}

func TestAWaitLastsAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lasts := func(d time.Duration, wait func() bool, result bool) {
			t.Helper()
			begin := time.Now()
			require.Equal(t, result, wait())
			require.Equal(t, d, time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, d := range []time.Duration{-1, 0, time.Second} {
			lasts(max(d, 0), func() bool { return Sleep(ctx, d) }, true)
			lasts(max(d, 0), func() bool { return Wait(ctx.Done(), d) }, false)
		}
		lasts(58*time.Second, func() bool { return Sleep(ctx, time.Hour) }, false)
		for range 100 { // both at once
			lasts(0, func() bool { return Sleep(ctx, 0) }, false)
			lasts(0, func() bool { return Wait(ctx.Done(), 0) }, true)
		}
	})
}

func TestATurnIsOnesAtATime(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	x := NewTurn()
	require.NoError(t, x.Take(ctx))
	require.True(t, x.Taken())
	require.False(t, x.TryTake())

	waiter := make(chan error)
	go func() { waiter <- x.Take(ctx) }()
	x.Give()
	require.NoError(t, <-waiter, "it waits for its turn")
	require.True(t, x.Taken())

	go func() { waiter <- x.Take(ctx) }()
	cancel(io.EOF)
	require.Equal(t, io.EOF, <-waiter, "but no longer than its context lasts")
	x.Give()
	require.False(t, x.Taken())
	require.True(t, x.TryTake())
}
