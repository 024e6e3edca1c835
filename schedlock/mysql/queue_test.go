package mysql_test

import (
	"testing"
	"time"

	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
)

func TestConformanceOfQueues(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db := byHand(t, url)
	locktest.RunQueue(t, func(t testing.TB) locktest.QueueDatabase {
		exec(t, db, `DELETE FROM queue_tasks`)
		return locktest.QueueDatabase{
			Open:  func(t testing.TB) taskqueue.Store { return open(t, url).Queue() },
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
