package mysql_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/mysql"
)

// Not in parallel: see servertest.Hints.
func TestHints(t *testing.T) {
	url := migrated(t)
	db := byHand(t, url)
	servertest.Hints(t, func(t testing.TB) servertest.Store { return open(t, url) }, func() int {
		return value[int](t, db, `SELECT count(*) FROM information_schema.processlist
			WHERE db = database() AND id <> connection_id()`)
	})
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
	stays(t, awaiting(t.Context(), standby, view)) // that lock is over: nobody spins
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
