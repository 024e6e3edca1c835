package queue_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/tasks/queue"
)

// The recipe "run this once, ever" of docs/locks.md: a start adds the task, which
// is there once, and a worker ends it in the transaction that has the effect.
func TestOnceEver(t *testing.T) {
	t.Parallel()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "app.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	require.NoError(t, migrate(store))
	db := store.DB()
	_, err = db.ExecContext(ctx, `CREATE TABLE prices (cents INTEGER)`)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, `INSERT INTO prices VALUES (100)`)
	require.NoError(t, err)

	// The first attempt dies between its effect and its commit; of the others one
	// was paused until its task was another's.
	crashed := errors.New("crashed")
	attempts := 0
	raise := func(queues *queue.Queues) queue.Handler {
		return func(ctx context.Context, task *queue.Task) error {
			attempts++
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := queues.DoneTx(ctx, tx, task); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `UPDATE prices SET cents = cents * 2`); err != nil {
				return err
			}
			if attempts == 1 {
				return crashed
			}
			return tx.Commit()
		}
	}
	for range 3 { // starts of replicas
		queues, err := queue.New(store.Queue())
		require.NoError(t, err)
		_, err = queues.Add(ctx, "once", 10, "double the prices")
		require.NoError(t, err)
		working, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			done <- queues.Work(working, "once", raise(queues), queue.WorkOptions{
				RetryDelay: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
		}()
		require.Eventually(t, func() bool {
			info, _, err := queues.Get(ctx, "once", "double the prices")
			return err == nil && info.State == queue.Done
		}, 30*time.Second, 10*time.Millisecond)
		stop()
		require.NoError(t, <-done)
	}
	require.Equal(t, 2, attempts)
	require.Equal(t, 200, cents(t, db))
}

func cents(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(ctx, `SELECT cents FROM prices`).Scan(&n))
	return n
}
