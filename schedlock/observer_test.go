package schedlock_test

import (
	"log/slog"
	"runtime"
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
