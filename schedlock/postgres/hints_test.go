package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// awaiting starts AwaitHint; the channel is closed when it has returned.
func awaiting(ctx context.Context, s *postgres.Store, view driver.Snapshot) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.AwaitHint(ctx, view)
	}()
	return done
}

// stays asserts that done is not closed for a while.
func stays(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
		t.Fatal("the wait has ended")
	case <-time.After(200 * time.Millisecond):
	}
}

func ends(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the wait goes on")
	}
}

func TestAReleaseWakesAStandby(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url)
	ref := acquire(t, holder, time.Minute)
	done := awaiting(ctx, standby, look(t, standby))
	stays(t, done)
	heartbeat(t, holder, ref)
	stays(t, done)
	release(t, holder, ref)
	ends(t, done)
}

func TestAWaitingLockLeadsLongBeforeItWouldLookAgain(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url)
	// It looks each second. The best of five hides the machine's own pauses.
	best := patience
	for range 5 {
		ref := acquire(t, holder, time.Minute)
		lock := newLock(t, standby, time.Minute)
		leading := make(chan *schedlock.Lease, 1)
		go func() {
			lease, _ := lock.Wait(ctx)
			leading <- lease
		}()
		eventually(t, "the standby has looked", func() bool {
			return lock.Status().State == schedlock.SelfStandby
		})
		time.Sleep(50 * time.Millisecond)
		released := time.Now()
		release(t, holder, ref)
		lease := <-leading
		require.NotNil(t, lease)
		best = min(best, time.Since(released))
		require.NoError(t, lease.Release(ctx))
	}
	require.Less(t, best, 500*time.Millisecond)
}

func TestLooksInterruptAWaitButDoNotEndIt(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url)
	ref := acquire(t, holder, time.Minute)
	done := awaiting(ctx, standby, look(t, standby))
	began := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				_, err := schedlock.GetLockInfo(ctx, standby)
				require.NoError(t, err)
			}
		})
	}
	wg.Wait()
	require.Less(t, time.Since(began), patience/2)
	stays(t, done)
	release(t, holder, ref)
	ends(t, done)
}

func TestAStandbyHasOneConnection(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder := open(t, url)
	acquire(t, holder, time.Minute)
	conn := session(t, url)
	before := value[int](t, conn, sqlBackends)
	standby := open(t, url)
	lock := newLock(t, standby, time.Minute)
	waiting, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = lock.Wait(waiting)
	}()
	eventually(t, "the standby waits", func() bool {
		return lock.Status().State == schedlock.SelfStandby
	})
	for range 20 {
		_, err := schedlock.GetLockInfo(ctx, standby)
		require.NoError(t, err)
		require.LessOrEqual(t, value[int](t, conn, sqlBackends), before+1)
	}
	require.Equal(t, before+1, value[int](t, conn, sqlBackends))
	cancel()
	ends(t, done)
}

func TestAWaitForAHintEnds(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder := open(t, url)
	acquire(t, holder, time.Minute)

	t.Run("with its context", func(t *testing.T) {
		store := open(t, url)
		waiting, cancel := context.WithCancel(ctx)
		done := awaiting(waiting, store, look(t, store))
		stays(t, done)
		cancel()
		ends(t, done)
		look(t, store)
	})
	t.Run("when the session is ended, and the next look opens another", func(t *testing.T) {
		store := open(t, url)
		done := awaiting(ctx, store, look(t, store))
		stays(t, done)
		exec(t, session(t, url), sqlTerminate)
		ends(t, done)
		eventually(t, "a look", func() bool { _, err := store.Look(ctx); return err == nil })
		done = awaiting(ctx, store, look(t, store))
		stays(t, done)
		exec(t, session(t, url), `NOTIFY scheduler_lock`)
		ends(t, done)
	})
	t.Run("without a connection only with its context, so that nobody spins", func(t *testing.T) {
		store := open(t, url)
		view := look(t, store)
		waiting, cancel := context.WithCancel(ctx)
		before := awaiting(waiting, store, view)
		stays(t, before)
		require.NoError(t, store.Close()) // the wait before may end with the connection, once
		done := awaiting(waiting, store, view)
		stays(t, done)
		_, err := store.Look(ctx)
		require.ErrorContains(t, err, "closed")
		cancel()
		ends(t, before)
		ends(t, done)
	})
}

func TestCloseEndsTheSessionOfAWaitingStandbyAtOnce(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	store := open(t, url)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	done := awaiting(waiting, store, look(t, store))
	stays(t, done)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = store.Close()
	}()
	ends(t, closed)
	eventually(t, "no session", func() bool { return value[int](t, conn, sqlBackends) == 0 })
	cancel()
	ends(t, done)
}

func TestNoGoroutineStaysBehind(t *testing.T) {
	url := migrated(t)
	before := goleak.IgnoreCurrent()
	store, err := postgres.Open(ctx, url, silent)
	require.NoError(t, err)
	waiting, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	done := awaiting(waiting, store, look(t, store))
	_, err = store.Terms(ctx, 1)
	require.NoError(t, err)
	lease, err := newLock(t, store, time.Minute).Acquire(ctx)
	require.NoError(t, err)
	require.NoError(t, lease.Release(ctx))
	ends(t, done)
	require.NoError(t, store.Close())
	goleak.VerifyNone(t, before)
}
