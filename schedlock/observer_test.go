package schedlock_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

// What an app does in its observer does not keep a replica from leading, from
// renewing, from giving the lock back, or from following.
func TestAnObserverThatMisbehavesIsInNobodysWay(t *testing.T) {
	for name, misbehave := range map[string]func(hung chan struct{}){
		"it blocks":  func(hung chan struct{}) { <-hung },
		"it panics":  func(chan struct{}) { panic("boom") },
		"it goexits": func(chan struct{}) { runtime.Goexit() },
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			hung := make(chan struct{})
			defer synctest.Wait()
			defer close(hung)
			bad := schedlock.WithObserver(func(schedlock.Event) {
				misbehave(hung)
			})
			a, b := newReplica(t, db, bad), newReplica(t, db, bad)
			start := time.Now()
			first := a.stand(t.Context())
			sleepUntil(start, time.Second)
			require.True(t, a.leads())
			won := <-first
			stop := beat(won.lease)
			second := b.stand(t.Context())
			sleepUntil(start, 10*ttl)
			require.True(t, a.leads(), "heartbeats go on")
			require.Positive(t, a.seen.count(schedlock.EventHeartbeat),
				"the other observer is told")
			stop()

			begin := time.Now()
			won.lease.Drain()
			require.NoError(t, won.lease.Release(ctx))
			assert.LessOrEqual(t, time.Since(begin), time.Second)
			require.NotNil(t, (<-second).lease)
			assert.LessOrEqual(t, time.Since(begin), 2*time.Second)
			assert.True(t, b.leads())
			assert.Equal(t, []schedlock.EventKind{schedlock.EventElected,
				schedlock.EventDraining, schedlock.EventReleased}, a.seen.kinds())
		})
	}
}

func TestAnObserverThatBlocksIsToldTheRestInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		var (
			told events
			log  = lines{start: time.Now()}
			hung = make(chan struct{})
		)
		const hangs = "an observer does not return: it is told of nothing more until it does"
		lock, err := schedlock.New(db, schedlock.WithLogger(slog.New(&log)),
			schedlock.WithObserver(func(e schedlock.Event) {
				<-hung
				told.observe(e)
			}))
		require.NoError(t, err)
		schedlock.UseBubbleClock(lock)
		lease, err := lock.Acquire(ctx)
		require.NoError(t, err)
		begin := time.Now()
		const beats = 1500
		for range beats {
			require.NoError(t, lease.Heartbeat(ctx))
		}
		assert.Zero(t, time.Since(begin), "only the first event is waited for")
		time.Sleep(9 * time.Second)
		require.Zero(t, log.count(hangs))
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, log.count(hangs))
		require.Empty(t, told.kinds())
		close(hung)
		synctest.Wait()
		assert.Equal(t, []schedlock.EventKind{schedlock.EventElected}, told.kinds())
		assert.Equal(t, 1000, told.count(schedlock.EventHeartbeat))
		assert.Equal(t, 1,
			log.count("an observer did not keep up: it was not told of everything"))
		require.NoError(t, lease.Release(ctx))
		assert.Equal(t, []schedlock.EventKind{schedlock.EventElected, schedlock.EventReleased},
			told.kinds(), "at once again")
	})
}

func TestAnEventIsToldAfterWhatCameBeforeIt(t *testing.T) {
	kinds := func(of ...schedlock.EventKind) []schedlock.EventKind { return of }
	bubble(t, "a loss that is explained late, and the release", func(t *testing.T,
		db *memory.Store) {
		a := newReplica(t, db)
		lease := a.lead()
		a.db.set(fault{kind: late, after: retry}, "look")
		a.db.loss <- schedlock.ErrLost
		<-lease.Done()
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, kinds(schedlock.EventElected, schedlock.EventLost,
			schedlock.EventReleased), a.seen.kinds())
		require.Nil(t, a.seen.last(schedlock.EventLost).Holder, "the row is its own")
	})
	bubble(t, "an acquisition, and the first heartbeat", func(t *testing.T, db *memory.Store) {
		var all events
		slow := func(schedlock.Event) { time.Sleep(90 * time.Millisecond) } // below the limit
		a := newRenewing(t, db, schedlock.WithTTL(300*time.Millisecond),
			schedlock.WithObserver(slow), schedlock.WithObserver(all.observe))
		lease := a.lead()
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, schedlock.EventElected, all.list[0].Kind)
	})
	bubble(t, "the end of a Run: it drains, and releases", func(t *testing.T, db *memory.Store) {
		for range 100 {
			a := newRenewing(t, db)
			run, cancel := context.WithCancel(ctx)
			ended := a.run(run, untilTheEnd)
			synctest.Wait()
			cancel()
			require.NoError(t, <-ended)
			synctest.Wait()
			require.Equal(t, kinds(schedlock.EventElected, schedlock.EventDraining,
				schedlock.EventReleased), a.seen.kinds())
		}
	})
}

// Whoever ends a lease may be faster than whoever has got it.
func TestTheEndOfALeaseIsToldAfterItsAcquisition(t *testing.T) {
	for range 3000 { // a few of them would be told the other way round
		var seen events
		lock, err := schedlock.New(memory.New(), schedlock.WithLogger(quiet),
			schedlock.WithObserver(seen.observe))
		require.NoError(t, err)
		var asked atomic.Int64
		schedlock.UseClock(lock, func() time.Time {
			if asked.Add(1) > 5 { // a look and a claim: the process stands still after them
				return time.Now().Add(time.Hour)
			}
			return time.Now()
		})
		lease, err := lock.Acquire(ctx)
		require.NoError(t, err)
		<-lease.Done()
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, schedlock.EventElected, seen.kinds()[0])
	}
}

// A oneLock is a log with one lock for its level and its lines, and nobody reads what it writes.
type oneLock struct {
	slog.Handler
	turn, pipe chan struct{}
}

func (l oneLock) Enabled(context.Context, slog.Level) bool {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	return true
}

func (l oneLock) Handle(context.Context, slog.Record) error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	<-l.pipe
	return nil
}

func TestALogThatBlocksOnceItIsAskedForItsLevelIsInNobodysWay(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		log := oneLock{slog.DiscardHandler, make(chan struct{}, 1), make(chan struct{})}
		a := newRenewing(t, db, schedlock.WithLogger(slog.New(log)))
		lease := a.lead()
		synctest.Wait() // its line blocks
		begin := time.Now()
		require.NoError(t, lease.Release(ctx))
		require.Zero(t, time.Since(begin))
		close(log.pipe)
		synctest.Wait()
	})
}
