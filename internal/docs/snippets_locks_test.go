package docs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks/queue"
)

// docs/locks.md: a lock by name, and a queue.
func TestALockByNameAndAQueue(t *testing.T) {
	app := start(t, open(t))
	ctx := t.Context()
	write := func(context.Context) error { return nil }
	invoice := func() error {
		err := app.Locks().WithLock(ctx, "invoices of 2026", func(ctx context.Context, lock *named.Lock) error {
			return write(ctx) // ctx ends before another can enter
		})
		return err
	}
	require.NoError(t, invoice())

	send := func(*queue.Task) error { return nil }
	mail := func() error {
		queues := app.Queues()
		if _, err := queues.Add(ctx, "mail", 3, "welcome-17"); err != nil { // with 3 retries
			return err
		}
		captured, err := queues.Capture(ctx, "mail", 10)
		if errors.Is(err, queue.ErrNone) {
			return nil // nothing to do now
		}
		if err != nil {
			return err
		}
		for _, task := range captured {
			err := send(task)
			if err != nil {
				err = queues.Fail(ctx, task, err, time.Minute) // again in a minute
			} else {
				err = queues.Done(ctx, task)
			}
			if err != nil {
				return err // schedlock.ErrLost: it took longer than its time-out
			}
		}
		return nil
	}
	require.NoError(t, mail())
}

// docs/configuration.md: the options of the lock.
func TestTheOptionsOfTheLock(t *testing.T) {
	folder(t)
	ctx := whileHeld(t)
	app, err := startup.NewApp(startup.Config{
		Open:  sqlite.Opener("file:app.db"),
		Drain: time.Minute,
		Lock:  []schedlock.Option{schedlock.WithTTL(15 * time.Second)}, // a heartbeat every 2.5 s
	})
	require.NoError(t, err)
	require.NoError(t, app.Run(ctx))
	assert.Equal(t, 2500*time.Millisecond, app.Lock().Timing().HeartbeatInterval)
}

// docs/locks.md: workers of a queue.
func TestWorkersOfAQueue(t *testing.T) {
	app := start(t, open(t))
	ctx, stop := context.WithCancel(t.Context())
	queues := app.Queues()
	_, err := queues.Add(ctx, "mail", 3, "welcome-17")
	require.NoError(t, err)
	send := func(context.Context, string) error { stop(); return nil }
	err = queues.Work(ctx, "mail", func(ctx context.Context, task *queue.Task) error {
		return send(ctx, task.ID) // nil: done; an error or a panic: tried again, after a delay
	}, queue.WorkOptions{Workers: 4})
	require.NoError(t, err)
}

// docs/locks.md: run this once, ever.
func TestRunThisOnceEver(t *testing.T) {
	store := open(t)
	app, db := start(t, store), store.DB()
	_, err := db.ExecContext(t.Context(), `CREATE TABLE prices AS SELECT 100 AS cents`)
	require.NoError(t, err)
	queues := app.Queues()
	double := func(ctx context.Context) error {
		if _, err := queues.Add(ctx, "once", 10, "double the prices"); err != nil { // at every start; nothing happens the second time
			return err
		}
		return queues.Work(ctx, "once", func(ctx context.Context, task *queue.Task) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := queues.DoneTx(ctx, tx, task); err != nil {
				return err // its time is over, or another has it: nothing is written
			}
			if _, err := tx.ExecContext(ctx, `UPDATE prices SET cents = cents * 2`); err != nil {
				return err
			}
			return tx.Commit()
		}, queue.WorkOptions{})
	}
	for range 2 {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- double(ctx) }()
		eventually(t, func() bool {
			info, _, err := queues.Get(ctx, "once", "double the prices")
			return err == nil && info.State == queue.Done
		}, "it is done")
		stop()
		if err := <-ended; err != nil {
			require.ErrorIs(t, err, context.Canceled) // the second time it may be done before it is added
		}
	}
	var cents int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT cents FROM prices`).Scan(&cents))
	require.Equal(t, 200, cents)
}
