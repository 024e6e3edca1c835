package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

func TestAWaitingLockLeadsLongBeforeItWouldLookAgain(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	servertest.LeadsSoon(t, open(t, url), open(t, url))
}

func TestAReleaseIsToldOf(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, conn := open(t, url), open(t, url), session(t, url)
	told := func(tell func()) driver.Release {
		t.Helper()
		view := look(t, standby)
		heard := make(chan driver.Release, 1)
		go func() { heard <- standby.AwaitHint(ctx, view) }()
		tell()
		return <-heard
	}
	ref := acquire(t, holder, time.Minute)
	require.Equal(t, ref.Term, told(func() { release(t, holder, ref) }).Term)
	ref = acquire(t, holder, time.Minute)
	require.Zero(t, told(func() {
		_, err := holder.Release(ctx, ref, driver.EndRevoked)
		require.NoError(t, err)
	}), "another end than the next leader supposes")
	for _, text := range []string{"", "1", "1 ", " 1", "1 1 1", "-1 1", "1 0", "x y",
		"99999999999999999999 1", "1 99999999999999999999"} {
		require.Zero(t, told(func() { exec(t, conn, `NOTIFY scheduler_lock, '`+text+`'`) }), text)
	}
}

func TestLooksInterruptAWaitButDoNotEndIt(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url)
	ref := acquire(t, holder, time.Minute)
	done := awaiting(ctx, standby, look(t, standby))
	stays(t, done)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				_, err := schedlock.GetLockInfo(ctx, standby)
				require.NoError(t, err) // beside a wait that nobody interrupts it is in vain
			}
		})
	}
	wg.Wait()
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
	servertest.Waiting(t, standby, time.Minute)
	for range 20 {
		_, err := schedlock.GetLockInfo(ctx, standby)
		require.NoError(t, err)
		require.LessOrEqual(t, value[int](t, conn, sqlBackends), before+1)
	}
	require.Equal(t, before+1, value[int](t, conn, sqlBackends))
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
		conn := session(t, url)
		sessions := value[int](t, conn, sqlBackends)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = store.Close() // the wait before may end with the connection, once
		}()
		ends(t, closed)
		eventually(t, "one session less", func() bool {
			return value[int](t, conn, sqlBackends) < sessions
		})
		done := awaiting(waiting, store, view)
		stays(t, done)
		_, err := store.Look(ctx)
		require.ErrorContains(t, err, "closed")
		cancel()
		ends(t, before)
		ends(t, done)
	})
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
