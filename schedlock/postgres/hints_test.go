package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// Not in parallel: see servertest.Hints.
func TestHints(t *testing.T) {
	url := migrated(t)
	conn := session(t, url)
	servertest.Hints(t, func(t testing.TB) servertest.Store { return open(t, url) }, func() int {
		return value[int](t, conn, sqlBackends)
	})
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

func TestTheEndOfItsOwnSessionEndsAWaitAndTheNextLookOpensAnother(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store, conn := open(t, url), session(t, url)
	acquire(t, store, time.Minute)
	done := awaiting(ctx, store, look(t, store))
	stays(t, done)
	exec(t, conn, sqlTerminate)
	ends(t, done)
	eventually(t, "a look", func() bool { _, err := store.Look(ctx); return err == nil })
	done = awaiting(ctx, store, look(t, store))
	stays(t, done)
	exec(t, conn, `NOTIFY scheduler_lock`)
	ends(t, done)
}
