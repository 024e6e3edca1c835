package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/postgres"
)

// borrowing is a store whose runs use the lock's connection as long as it leads.
func borrowing(t testing.TB, url string) *postgres.Store {
	store := open(t, url)
	require.NoError(t, store.Borrow(ctx, time.Hour, time.Minute))
	return store
}

func TestConformanceOverTheLocksConnection(t *testing.T) {
	t.Parallel()
	missing.OnlyFull(t, "tries the rules once more")
	s := asApp(t)
	url := s.url
	s.open = func(t testing.TB) *postgres.Store { return borrowing(t, url) }
	locktest.Run(t, func(t testing.TB) locktest.Database { return s.lock(t) })
}

func TestTheFirstRunOfALeaderNeedsNoConnection(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	store := borrowing(t, url)
	before := value[int](t, conn, sqlBackends)
	ref := acquire(t, store, time.Minute)
	firstRun := func(job string) {
		_, err := store.Abandon(ctx, ref, nil)
		require.NoError(t, err)
		_, err = store.Retries(ctx)
		require.NoError(t, err)
		_, err = store.Pending(ctx)
		require.NoError(t, err)
		_, err = store.Jobs(ctx)
		require.NoError(t, err)
		at := time.Now()
		_, started, err := store.Decide(ctx, ref, ledger.Decision{Job: job, Spec: "@every 1s",
			To: at, Start: at})
		require.NoError(t, err)
		require.True(t, started)
	}
	firstRun("a")
	require.Equal(t, before, value[int](t, conn, sqlBackends))
	require.NoError(t, store.Borrow(ctx, 0, time.Minute))
	firstRun("b")
	require.Equal(t, before+1, value[int](t, conn, sqlBackends), "after the beginning of a term")
}

func TestABorrowedStatementNeitherEndsTheSessionNorKeepsTheHeartbeatsForLong(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	store := borrowing(t, url)
	ref := acquire(t, store, time.Minute)
	const sqlPIDs = `SELECT array_agg(pid ORDER BY pid)::text FROM pg_stat_activity
		WHERE datname = current_database()`
	before := value[string](t, conn, sqlPIDs)

	exec(t, conn, `BEGIN; LOCK TABLE scheduler_jobs`)
	impatient, cancel := context.WithCancel(ctx)
	answered := make(chan error, 1)
	go func() {
		_, err := store.Jobs(impatient)
		answered <- err
	}()
	waiting(t, conn, 1)
	cancel()
	heartbeat(t, store, ref)
	require.ErrorContains(t, <-answered, "keeps a row or a table locked",
		"its own bound, not its caller's, and before the transaction has ended")
	exec(t, conn, `COMMIT`)
	require.Equal(t, before, value[string](t, conn, sqlPIDs))
	_, err := store.Jobs(impatient)
	require.ErrorIs(t, err, context.Canceled)
}

func TestARunDoesNotWaitForTheLocksConnectionForLong(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	store := borrowing(t, url)
	require.NoError(t, store.Borrow(ctx, time.Hour, postgres.BorrowWait))
	acquire(t, store, time.Minute)
	before := value[int](t, conn, sqlBackends)
	release, err := store.HoldTurn(ctx)
	require.NoError(t, err)
	defer release()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = store.Jobs(ctx)
	require.NoError(t, err)
	require.Equal(t, before+1, value[int](t, conn, sqlBackends), "it has one of its own")
}
