package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
)

func TestQueueConformance(t *testing.T) {
	t.Parallel()
	locktest.RunQueue(t, func(t testing.TB) locktest.QueueDatabase {
		t.(*testing.T).Parallel()
		db := memory.New()
		return locktest.QueueDatabase{
			Open:    func(testing.TB) taskqueue.Store { return db.Queue() },
			SetBack: func(_ testing.TB, d time.Duration) { db.AgeTasks(-d) },
			Begin: func(testing.TB) locktest.Tx {
				tx := db.Begin()
				return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
			},
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
		_, err = db.Capture(ctx, "q", driver.NewToken(), time.Minute, 1)
		require.NoError(t, err)
		time.Sleep(time.Minute - time.Nanosecond)
		_, err = db.Capture(ctx, "q", driver.NewToken(), time.Minute, 1)
		require.ErrorIs(t, err, taskqueue.ErrAllHeld)
		time.Sleep(time.Nanosecond)
		tasks, err := db.Capture(ctx, "q", driver.NewToken(), time.Minute, 1)
		require.NoError(t, err)
		require.Len(t, tasks, 1)
	})
}

func TestWhatACallerDoesToAnAnswerChangesNoTransaction(t *testing.T) {
	t.Parallel()
	db := memory.New()
	q := db.Queue()
	tx := db.Begin()
	added, err := q.AddTx(ctx, tx, "q", 0, []string{"a", "b"})
	require.NoError(t, err)
	added[0] = "c"
	require.NoError(t, tx.Commit())
	tasks, err := q.Capture(ctx, "q", driver.NewToken(), time.Minute, 9)
	require.NoError(t, err)
	require.Len(t, tasks, 2)
	require.Equal(t, "a", tasks[0].ID)
}
