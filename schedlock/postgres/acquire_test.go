package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

// soon is the bound of a statement that gives up a lock after a second.
const soon = 5 * time.Second

func begin(t testing.TB, url string, opts pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := session(t, url).BeginTx(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(ctx) })
	return tx
}

func TestARowInTheMakingHoldsAnAcquisitionUpForASecondAtMost(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	release(t, store, acquire(t, store, time.Minute))
	view := look(t, store)
	tx := begin(t, url, pgx.TxOptions{})
	_, err := tx.Exec(ctx, `INSERT INTO scheduler_lock
		(id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
		ttl_ms, renew_deadline_ms, heartbeat_ms)
		VALUES (1, 1, 'by hand', now(), now(), 'x', 1, 0, 'leading', 1000, 700, 100)`)
	require.NoError(t, err)
	began := time.Now()
	_, err = store.Acquire(ctx, claim(view, time.Minute))
	require.ErrorIs(t, err, driver.ErrBlocked)
	require.Less(t, time.Since(began), soon)
	require.NoError(t, tx.Commit(ctx))
	_, err = store.Acquire(ctx, claim(view, time.Minute))
	require.ErrorIs(t, err, driver.ErrConflict)
	tx = begin(t, url, pgx.TxOptions{})
	_, err = tx.Exec(ctx, `DELETE FROM scheduler_lock`)
	require.NoError(t, err)
	began = time.Now()
	_, err = store.Acquire(ctx, claim(view, time.Minute)) // behind a deletion that is not committed
	require.Error(t, err)
	require.Less(t, time.Since(began), soon)
	require.NoError(t, tx.Commit(ctx))
	_, err = store.Acquire(ctx, claim(view, time.Minute))
	require.NoError(t, err)
}
