package prom_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/tasks/queue"
)

func TestTheLeaderTellsOfLocksAndQueues(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.join(), w.join()
		locks, err := named.New(w.db.Named())
		require.NoError(t, err)
		queues, err := queue.New(w.db.Queue())
		require.NoError(t, err)
		s := a.scrape()
		s.is(0, "schedlock_named_locks", "kind=lock")
		require.NotContains(t, s.families, "schedlock_queue_tasks", "there is no queue")

		held, err := locks.TryLock(ctx, "import")
		require.NoError(t, err)
		held.KeepAlive()
		_, err = locks.OncePer(ctx, "report", time.Hour)
		require.NoError(t, err)
		_, err = queues.Add(ctx, "mail", 0, "1", "2", "3", "4", "5", "6")
		require.NoError(t, err)
		_, err = queues.AddAfter(ctx, "mail", time.Hour, 0, "later")
		require.NoError(t, err)
		captured, err := queues.Capture(ctx, "mail", 3)
		require.NoError(t, err)
		require.NoError(t, queues.Done(ctx, captured[0]))
		require.NoError(t, queues.Fail(ctx, captured[1], errRefused, 0))
		a.scrape().is(0, "schedlock_named_locks", "kind=lock") // a scrape asks at most every 5 s
		sleep(5 * time.Second)
		s = a.scrape()
		require.Equal(t, map[string]float64{"lock": 1, "timeout": 1},
			s.all("schedlock_named_locks"))
		require.Equal(t, map[string]float64{"mail pending": 3, "mail delayed": 1,
			"mail in_progress": 1, "mail done": 1, "mail failed": 1},
			s.all("schedlock_queue_tasks"))
		require.NotContains(t, b.scrape().families, "schedlock_queue_tasks", "it does not lead")
		require.NotContains(t, b.scrape().families, "schedlock_named_locks")

		require.NoError(t, held.Unlock(ctx))
		for i := range 120 {
			_, err = queues.Add(ctx, fmt.Sprintf("of user %03d", i), 0, "1")
			require.NoError(t, err)
		}
		sleep(5 * time.Second)
		s = a.scrape()
		require.Equal(t, map[string]float64{"timeout": 1}, s.all("schedlock_named_locks"))
		require.Len(t, s.all("schedlock_queue_tasks"), 5+99,
			"a queue for each user shall not drown the server")
	})
}

func TestAQueueThatIsSlowToCountKeepsNothingElse(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.prepare(every("import", time.Hour, nothing))
		a.link.set(hang("count"))
		a.campaign()
		for i, want := range []time.Duration{time.Second, 0, 0, time.Second} {
			begin := time.Now()
			s := a.scrape()
			require.Equal(t, want, time.Since(begin), "scrape %d: "+
				"it may take a hundredth of the time", i)
			require.Contains(t, s.families, "schedlock_job_overdue_seconds")
			require.Contains(t, s.families, "schedlock_named_locks")
			require.NotContains(t, s.families, "schedlock_queue_tasks")
			sleep([]time.Duration{10 * time.Second, 89 * time.Second, 2 * time.Second, 0}[i])
		}

		const takes = 900 * time.Millisecond
		a.link.set(func(_ context.Context, op string) error {
			if op == "count" {
				time.Sleep(takes)
			}
			return nil
		})
		queues, err := queue.New(w.db.Queue())
		require.NoError(t, err)
		_, err = queues.Add(ctx, "mail", 0, "1")
		require.NoError(t, err)
		sleep(101 * time.Second)
		for _, want := range []time.Duration{takes, 0} {
			begin := time.Now()
			require.Contains(t, a.scrape().families, "schedlock_queue_tasks", "as of 80 s ago")
			require.Equal(t, want, time.Since(begin))
			sleep(80 * time.Second)
		}
	})
}
