package mysql_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/mysql"
)

func TestConformanceOfQueues(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db := byHand(t, url)
	again := servertest.Reopened(t, func(t testing.TB) *mysql.Store { return open(t, url) })
	locktest.RunQueue(t, func(t testing.TB) locktest.QueueDatabase {
		exec(t, db, `DELETE FROM queue_tasks`)
		return locktest.QueueDatabase{
			Open:  func(t testing.TB) taskqueue.Store { return again(t).Queue() },
			Begin: func(t testing.TB) locktest.Tx { return begin(t, db, nil) },
			SetBack: func(t testing.TB, d time.Duration) {
				exec(t, db, `UPDATE queue_tasks
					SET visible_at = visible_at + INTERVAL ? MICROSECOND,
					updated_at = updated_at + INTERVAL ? MICROSECOND`,
					d.Microseconds(), d.Microseconds())
			},
		}
	})
}

func TestManyTasksAreAddedAtOnce(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	q, db := open(t, url).Queue(), mytest.Shared(t).Open(t, url)
	var ids []string
	for i := range 20_000 {
		ids = append(ids, strconv.Itoa(i))
	}
	_, err := q.Add(ctx, "q", 1, ids[:1])
	require.NoError(t, err)
	tx := begin(t, db, nil)
	added, err := q.AddTx(ctx, tx.Tx, "q", 1, ids)
	require.NoError(t, err)
	require.Equal(t, ids[1:], added)
	require.NoError(t, tx.Commit())
	require.Equal(t, len(ids), value[int](t, db, `SELECT count(*) FROM queue_tasks`))
}
