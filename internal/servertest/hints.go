package servertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/schedlock/driver"
)

// Hints tries the rules for those who wait for a hint, beside those of locktest. sessions counts
// those of all stores. No other test may run meanwhile: it looks for goroutines that are left.
func Hints(t *testing.T, open func(testing.TB) Store, sessions func() int) {
	t.Run("a release ends a wait, and nothing else does", func(t *testing.T) {
		holder, standby := open(t), open(t)
		for range 2 { // on one session
			ref := Acquire(t, holder, time.Minute)
			done := Awaiting(t.Context(), standby, Look(t, standby))
			Stays(t, done)
			Heartbeat(t, holder, ref)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 25 { // beside a wait that nobody interrupts it is in vain
						if _, err := standby.Look(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			Stays(t, done)
			Release(t, holder, ref)
			Ends(t, done)
		}
	})
	t.Run("Close ends a wait, and after it only the context does", func(t *testing.T) {
		holder, store := open(t), open(t)
		ref := Acquire(t, holder, time.Minute)
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		view := Look(t, store)
		before := Awaiting(waiting, store, view)
		Stays(t, before)
		had := sessions()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = store.Close() // the wait before may end with the connection, once
		}()
		Ends(t, closed)
		Eventually(t, "fewer sessions", func() bool { return sessions() < had })
		_, err := store.Look(ctx)
		require.ErrorContains(t, err, "closed")
		after := Awaiting(waiting, store, view)
		Stays(t, after) // nobody spins
		cancel()
		Ends(t, before)
		Ends(t, after)
		Release(t, holder, ref)
		require.NoError(t, holder.Close())
		Eventually(t, "no session", func() bool { return sessions() == 0 })
	})
	t.Run("no goroutine stays behind", func(t *testing.T) {
		left := goleak.IgnoreCurrent()
		holder, store := open(t), open(t)
		ref, _ := AcquireWatched(t, holder, time.Minute)
		done := Awaiting(t.Context(), store, Look(t, store))
		_, err := store.Terms(ctx, 1)
		require.NoError(t, err)
		Release(t, holder, ref)
		Ends(t, done)
		AcquireWatched(t, holder, time.Minute)
		require.NoError(t, holder.Close())
		require.NoError(t, store.Close())
		goleak.VerifyNone(t, left)
	})
	t.Run("a lock that waits leads soon", func(t *testing.T) { leadsSoon(t, open(t), open(t)) })
}

// leadsSoon asserts that a lock that waits leads long before it would look again.
func leadsSoon(t *testing.T, holder, standby driver.Store) {
	best := Patience // of five: that hides the machine's own pauses
	for range 5 {
		ref := Acquire(t, holder, time.Minute)
		_, won := Waiting(t, standby, time.Minute)
		time.Sleep(50 * time.Millisecond)
		released := time.Now()
		Release(t, holder, ref)
		lease := <-won
		best = min(best, time.Since(released))
		require.NoError(t, lease.Release(ctx))
	}
	require.Less(t, best, 500*time.Millisecond)
}
