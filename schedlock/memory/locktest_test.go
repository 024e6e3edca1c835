package memory_test

import (
	"cmp"
	"database/sql"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t testing.TB) locktest.Database {
		t.(*testing.T).Parallel()
		var ahead time.Duration
		db := memory.New(memory.WithClock(func() time.Time { return time.Now().Add(ahead) }))
		empty := db.Backup()
		return locktest.Database{
			Open:   func(testing.TB) driver.Store { return db },
			Backup: func(testing.TB) func() { return db.Backup() },
			Begin: func(testing.TB) locktest.Tx {
				tx := db.Begin()
				return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
			},
			HeartbeatsPassFence: true,
			Without:             []locktest.Feature{locktest.Hints},
			Edit: func(_ testing.TB, e locktest.Edit) {
				if ahead += e.For; e.Silent != "" {
					return
				}
				if e.CursorOf != "" {
					raw := "edited"
					if e.CursorAt.IsZero() {
						raw = "yesterday"
					}
					db.EditCursor(e.CursorOf, e.CursorAt, raw)
					return
				}
				db.Edit(func(r *driver.Row) {
					r.Term, r.Beat, r.State = cmp.Or(e.Term, r.Term), cmp.Or(e.Beat,
						r.Beat), cmp.Or(e.State, r.State)
					r.RawToken = cmp.Or(e.Token, r.RawToken)
				})
				if e.DeleteRow {
					db.DeleteRow()
				}
				if e.EmptyTerms {
					empty()
				}
			},
		}
	})
}

func TestConformanceOfNamedLocks(t *testing.T) {
	t.Parallel()
	locktest.RunNamed(t, func(t testing.TB) locktest.NamedDatabase {
		t.(*testing.T).Parallel()
		db := memory.New()
		return locktest.NamedDatabase{
			Open: func(testing.TB) namedlock.Store { return db.Named() },
			Age:  func(_ testing.TB, d time.Duration) { db.AgeNamed(d) },
			Edit: func(_ testing.TB, key namedlock.Key, term int64) {
				db.SetNamedTerm(key, term)
			},
			FailOver: func(testing.TB) { db.FailOverNamed() },
			Begin: func(testing.TB) locktest.Tx {
				tx := db.Begin()
				return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
			},
			ExtendPassesFence: true,
		}
	})
}

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
	require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
	_, err = q.AddTx(ctx, tx, "q", 0, []string{"d"})
	require.ErrorIs(t, err, sql.ErrTxDone)
	tasks, err := q.Capture(ctx, "q", driver.NewToken(), time.Minute, 9)
	require.NoError(t, err)
	require.Len(t, tasks, 2)
	require.Equal(t, "a", tasks[0].ID)
}
