package mysql_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/mysql"
)

func TestAReleaseWakesAStandby(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url)
	for range 2 { // on one session
		ref := acquire(t, holder)
		view := look(t, standby)
		done := awaiting(t.Context(), standby, view)
		stays(t, done)
		heartbeat(t, holder, ref)
		stays(t, done)
		release(t, holder, ref)
		ends(t, done)
		stays(t, awaiting(t.Context(), standby, view)) // that lock is over: nobody spins
	}
}

func TestTheEndOfTheSessionWakesAStandby(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, db := open(t, url), open(t, url), byHand(t, url)
	ref := acquire(t, holder)
	for range 2 {
		done := awaiting(t.Context(), standby, look(t, standby))
		stays(t, done)
		killHolder(t, db)
		ends(t, done)
		heartbeat(t, holder, ref) // on another session, which has a lock of its own
	}
}

// A wait goes on beyond one statement, and what has the turn does not keep anybody else.
func TestAWaitGoesOnForLong(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url)
	ref := acquire(t, holder)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	view := look(t, standby)
	standby.AwaitHint(short, view)
	require.Error(t, short.Err())
	done := awaiting(t.Context(), standby, view)
	time.Sleep(mysql.WaitLimit + 100*time.Millisecond)
	look(t, standby)
	stays(t, done)
	release(t, holder, ref)
	ends(t, done)
}

func TestWithPollingNobodyIsWoken(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby := open(t, url), open(t, url, mysql.WithPolling())
	ref := acquire(t, holder)
	done := awaiting(t.Context(), standby, look(t, standby))
	release(t, holder, ref)
	stays(t, done)
}

// Standbys do not come all at once: the first one leads before most of them have looked.
func TestTwentyStandbysAreNoHerd(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder := open(t, url)
	ref := acquire(t, holder)
	view := look(t, holder)
	var (
		mu    sync.Mutex
		woken []time.Time
		all   sync.WaitGroup
	)
	for range 20 {
		s := open(t, url)
		all.Go(func() {
			s.AwaitHint(t.Context(), view)
			mu.Lock()
			defer mu.Unlock()
			woken = append(woken, time.Now())
		})
	}
	db := byHand(t, url)
	eventually(t, "they wait", func() bool {
		return value[int](t, db, `SELECT count(*) FROM information_schema.processlist
			WHERE db = database() AND state = 'User lock'`) == 20
	})
	released := time.Now()
	release(t, holder, ref)
	all.Wait()
	require.Len(t, woken, 20)
	t.Logf("the first after %v, the last after %v", woken[0].Sub(released),
		woken[19].Sub(released))
	require.Greater(t, woken[19].Sub(woken[0]), 19*mysql.PassOn/2)
}

func TestAWaitingLockLeadsLongBeforeItWouldLookAgain(t *testing.T) {
	url := migrated(t)
	servertest.LeadsSoon(t, open(t, url), open(t, url))
}

func TestCloseEndsAWaitAtOnce(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, db := open(t, url), byHand(t, url)
	ref := acquire(t, holder)
	store := open(t, url)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	view := look(t, store)
	done := awaiting(waiting, store, view)
	stays(t, done)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = store.Close()
	}()
	ends(t, closed)
	_, err := store.Look(ctx)
	require.ErrorContains(t, err, "closed")
	stays(t, awaiting(waiting, store, view)) // nobody spins
	cancel()
	ends(t, done)
	release(t, holder, ref)
	require.NoError(t, holder.Close())
	eventually(t, "no session", func() bool {
		return value[int](t, db, `SELECT count(*) FROM information_schema.processlist
			WHERE db = database() AND id <> connection_id()`) == 0
	})
}

func TestNoGoroutineStaysBehind(t *testing.T) {
	url := migrated(t)
	before := goleak.IgnoreCurrent()
	holder, err := mysql.Open(ctx, url)
	require.NoError(t, err)
	store, err := mysql.Open(ctx, url)
	require.NoError(t, err)
	ref, _ := acquireWatched(t, holder)
	done := awaiting(t.Context(), store, look(t, store))
	_, err = store.Terms(ctx, 1)
	require.NoError(t, err)
	release(t, holder, ref)
	ends(t, done)
	acquireWatched(t, holder)
	require.NoError(t, holder.Close())
	require.NoError(t, store.Close())
	goleak.VerifyNone(t, before)
}
