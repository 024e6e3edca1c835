package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

func TestQueueConformance(t *testing.T) {
	t.Parallel()
	locktest.RunQueue(t, func(testing.TB) locktest.QueueDatabase {
		db := memory.New()
		return locktest.QueueDatabase{
			Open:    func(testing.TB) queue.Store { return db.Queue() },
			Without: []locktest.Feature{locktest.Transactions},
		}
	})
}

// A bubble's clock moves the time-outs; the clock of the database does not.
func TestTimeOutsPassInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		noon := time.Now()
		db := memory.New(memory.WithClock(func() time.Time { return noon })).Queue()
		_, err := db.Add(ctx, "q", 1, []string{"a"})
		require.NoError(t, err)
		_, err = db.Capture(ctx, "q", schedlock.NewToken(), time.Minute, 1)
		require.NoError(t, err)
		time.Sleep(time.Minute - time.Nanosecond)
		_, err = db.Capture(ctx, "q", schedlock.NewToken(), time.Minute, 1)
		require.ErrorIs(t, err, queue.ErrAllHeld)
		time.Sleep(time.Nanosecond)
		tasks, err := db.Capture(ctx, "q", schedlock.NewToken(), time.Minute, 1)
		require.NoError(t, err)
		require.Len(t, tasks, 1)
	})
}

func TestABackupHasTheTasks(t *testing.T) {
	t.Parallel()
	db := memory.New()
	_, err := db.Queue().Add(ctx, "q", 1, []string{"a"})
	require.NoError(t, err)
	restore := db.Backup()
	for range 2 {
		tasks, err := db.Queue().Capture(ctx, "q", schedlock.NewToken(), time.Hour, 1)
		require.NoError(t, err)
		require.Len(t, tasks, 1)
		_, err = db.Queue().Add(ctx, "q", 1, []string{"b"})
		require.NoError(t, err)
		restore()
		_, found, err := db.Queue().Get(ctx, "q", "b")
		require.NoError(t, err)
		require.False(t, found)
	}
}
