package startup_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// docs/testing.md shows this test.
func TestTheImportRunsOnceAMinuteWhoeverLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its time is not the machine's
		db := memory.New()
		imports := map[time.Time][]string{} // by the scheduled time: who ran it
		replica := func(name string) *startup.App {
			app, err := startup.NewApp(startup.Config{
				Open: func(context.Context) (driver.Store, error) { return db, nil },
				Log:  slog.New(slog.DiscardHandler),
				Jobs: []tasks.Job{{
					Name: "import",
					Spec: tasks.Every(time.Minute),
					Do: func(_ context.Context, run tasks.Run) error {
						imports[run.ScheduledAt] = append(imports[run.ScheduledAt], name)
						return nil
					},
				}},
			})
			require.NoError(t, err)
			require.NoError(t, app.Start(t.Context()))
			return app
		}
		first := replica("first")
		synctest.Wait() // until it leads
		second := replica("second")

		time.Sleep(150 * time.Minute)
		require.NoError(t, first.Stop(t.Context()))
		time.Sleep(150 * time.Minute)
		require.NoError(t, second.Stop(t.Context()))

		var by = map[string]int{}
		for at, runs := range imports {
			assert.Len(t, runs, 1, "the import of %v", at)
			by[runs[0]]++
		}
		assert.InDelta(t, 150, by["first"], 1)
		assert.InDelta(t, 150, by["second"], 1)
	})
}

// docs/testing.md shows this test.
func TestAWriteUnderAnOldLeaseIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		old := lead(t, db)
		db.DeleteRow() // as an operator's DELETE would
		lead(t, db)    // another replica, a TTL later

		tx := db.Begin()
		defer tx.Rollback()
		require.ErrorIs(t, old.Fence(t.Context(), tx), schedlock.ErrLost)
	})
}

// docs/testing.md shows this test.
func TestALeaderThatCrashedIsReplacedATTLLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		old := lead(t, db)
		require.NoError(t, old.TakeRenewal()) // from now on it sends no heartbeat
		crashed := time.Now()
		lead(t, db)
		require.Equal(t, time.Minute, time.Since(crashed).Round(time.Second))
		require.ErrorIs(t, old.Err(), schedlock.ErrLost)
	})
}

func lead(t *testing.T, db driver.Store) *schedlock.Lease {
	lock, err := schedlock.New(db, schedlock.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	lease, err := lock.Wait(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}
