package bounded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
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

		own, stop := context.WithTimeout(t.Context(), time.Second)
		ctx, cancel = Patient(own, time.Minute)
		defer cancel()
		until, _ = ctx.Deadline()
		assert.Equal(t, time.Now().Add(time.Second), until, "the earlier one")
		assert.NoError(t, ctx.Err())
		stop()
		<-ctx.Done()
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		assert.Equal(t, time.Minute+Moment, time.Since(begin), "at once")

		ctx, cancel = Patient(t.Context(), time.Minute)
		cancel()
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
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

func TestWhoTakesAWatchedTurnEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		closed, never := make(chan struct{}), func() bool { return false }
		x, yields := WatchedTurn{Turn: NewTurn()}, 0
		yield := func() { yields++ }
		waiter := make(chan error, 1)
		take := func() {
			go func() { waiter <- x.Take(ctx, closed) }()
			synctest.Wait()
		}
		require.NoError(t, x.Turn.Take(ctx))
		end := x.Watch(yield, never)
		require.Zero(t, yields, "nobody wants it")
		x.Interrupt()
		require.Equal(t, 1, yields)
		take()
		require.Equal(t, 2, yields)
		end()
		x.Interrupt()
		require.Equal(t, 2, yields, "the watch has ended")
		x.Watch(yield, never)()
		require.Equal(t, 3, yields, "somebody waits still")
		x.Give()
		require.NoError(t, <-waiter)
		x.Watch(yield, never)()
		require.Equal(t, 3, yields, "nobody waits any more")
		x.Watch(yield, func() bool { return true })()
		require.Equal(t, 4, yields)

		take()
		cancel(io.EOF)
		require.Equal(t, io.EOF, <-waiter, "no longer than its context lasts")
		x.Give()
		for range 100 { // of two cases that are ready select takes either
			require.Equal(t, io.EOF, x.Take(ctx, closed))
		}
		ctx = context.Background()
		require.NoError(t, x.Take(ctx, closed))
		take()
		close(closed)
		require.Equal(t, ErrClosed, <-waiter)
		x.Give()
		for range 100 {
			require.Equal(t, ErrClosed, x.Take(ctx, closed))
		}
	})
}

type broken struct{ method string } // of which a call panics

func (b *broken) Error() string { return b.method }
func (b *broken) Is(error) bool { return b.panics("Is") }
func (b *broken) As(any) bool   { return b.panics("As") }
func (b *broken) panics(method string) bool {
	if method == b.method {
		panic("boom in " + method)
	}
	return false
}

func TestAFunctionMayEndAsItLikes(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		f       func() error
		text    string // "": no error
		is      error
		isPanic bool
	}{
		"it returns":           {f: func() error { return nil }},
		"it returns an error":  {func() error { return io.EOF }, "EOF", io.EOF, false},
		"it panics":            {func() error { panic("boom") }, "panic: boom", nil, true},
		"it panics with error": {func() error { panic(boom) }, "panic: boom", boom, true},
		"it panics with something that cannot be compared": {f: func() error { panic([]int{1}) },
			text: "panic: [1]", isPanic: true},
		"it returns an error whose methods panic": {func() error { return (*broken)(nil) },
			"panic: runtime error: invalid memory address or nil pointer dereference", nil, true},
		"its error cannot be compared": {func() error { return &broken{"Is"} },
			"panic: boom in Is", nil, true},
		"its error cannot be converted": {func() error { return &broken{"As"} },
			"panic: boom in As", nil, true},
		"it ends its goroutine": {f: func() error { runtime.Goexit(); return nil },
			text: "called runtime.Goexit instead of returning", isPanic: true},
	} {
		t.Run(name, func(t *testing.T) {
			err := <-Go(c.f)
			if c.text == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.text)
			require.True(t, c.is == nil || errors.Is(err, c.is))
			p, isPanic := errors.AsType[*Panic](err)
			require.Equal(t, c.isPanic, isPanic)
			if isPanic {
				require.Contains(t, string(p.Stack), "wait_test.go", "where it was")
			}
		})
	}
}

func TestWhatIsDoneTakesASmallPartOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			p     Pace
			times int
			took  = time.Millisecond
		)
		ask := func(key string) {
			p.Due(key, func() {
				times++
				p.Due(key, func() { t.Error("twice at a time") })
				time.Sleep(took)
			})
		}
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
			ask("quick")
		}
		require.InDelta(t, 60, times, 1, "once a second")
		times, took = 0, 100*time.Millisecond
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
			ask("slow")
		}
		require.LessOrEqual(t, times, 6, "1 % of the time")
		took = time.Hour
		ask("once")
		took = 0
		time.Sleep(most)
		times = 0
		ask("once")
		require.Equal(t, 1, times, "however long it took once")
		times = 0
		for range 3 {
			ask("a")
			ask("b")
		}
		require.Equal(t, 2, times, "each key")
		for i := range 10 * maxKeys {
			ask(fmt.Sprint(i))
		}
		require.LessOrEqual(t, len(p.next), maxKeys)
	})
}
