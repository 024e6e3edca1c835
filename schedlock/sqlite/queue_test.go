package sqlite

import (
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/sqlitetest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
)

func TestQueueConformance(t *testing.T) {
	t.Parallel()
	locktest.RunQueue(t, func(t testing.TB) locktest.QueueDatabase {
		t.(*testing.T).Parallel()
		first := newStore(t)
		db := sqlitetest.Database{DB: first.DB(), Conn: foreign(t, first)}.Queue()
		db.Open = func(t testing.TB) taskqueue.Store { return mustOpen(t, first.Path()).Queue() }
		return db
	})
}

// A replica whose wall clock is an hour ahead neither takes what another holds,
// nor loses what it has, nor waits less for a delay.
func TestAWallClockAnHourAheadMattersToNobody(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		s := newStore(t)
		right := s.Queue()
		wrong := mustOpen(t, s.Path(), WithClock(func() time.Time {
			return time.Now().Add(by)
		})).Queue()
		addTasks(t, right, 1, "a", "b", "c")
		tokenA, ids := captureTasks(t, right, time.Minute, 1)
		require.Equal(t, []string{"a"}, ids)
		tokenB, ids := captureTasks(t, wrong, time.Minute, 1)
		require.Equal(t, []string{"b"}, ids)
		tokenC, ids := captureTasks(t, wrong, time.Minute, 9)
		require.Equal(t, []string{"c"}, ids)
		ended, err := wrong.Fail(bg, "q", tokenC, "c", "", time.Minute)
		require.NoError(t, err)
		require.True(t, ended)
		for _, q := range []taskqueue.Store{right, wrong} {
			_, err := q.Capture(bg, "q", driver.NewToken(), time.Minute, 9)
			require.ErrorIs(t, err, taskqueue.ErrAllHeld, "%v", by)
		}
		done, err := right.Done(bg, "q", tokenA, []string{"a"})
		require.NoError(t, err)
		require.Len(t, done, 1)
		extended, err := wrong.Extend(bg, "q", tokenB, time.Minute, []string{"b"})
		require.NoError(t, err)
		require.Len(t, extended, 1)
		_, err = right.Capture(bg, "q", driver.NewToken(), time.Minute, 9)
		require.ErrorIs(t, err, taskqueue.ErrAllHeld, "%v", by)
		done, err = wrong.Done(bg, "q", tokenB, []string{"b"})
		require.NoError(t, err)
		require.Len(t, done, 1)
	}
}

// What was held when the machine was restarted can be captured at once, however
// the ids of the boots compare. A delay goes on, by the wall clock: a reminder for
// tomorrow does not come early.
func TestARestartOfTheMachineEndsAllHoldsAndNoDelay(t *testing.T) {
	missing.Long(t, "takes a second")
	t.Parallel()
	for _, boot := range []string{"0", "zzz", ""} {
		t.Run(boot, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			q := s.Queue()
			addTasks(t, q, 1, "lost", "delayed")
			token, _ := captureTasks(t, q, time.Hour, 2)
			_, err := q.Fail(bg, "q", token, "delayed", "", time.Hour)
			require.NoError(t, err)
			addTasks(t, q, 0, "exhausted")
			_, ids := captureTasks(t, q, time.Hour, 1)
			require.Equal(t, []string{"exhausted"}, ids)
			run(t, foreign(t, s),
				`UPDATE queue_tasks SET boot_id = ?, visible_ms = visible_ms +
					CASE id WHEN 'lost' THEN 1000000000 ELSE -1000000000 END`, boot)

			done, err := q.Done(bg, "q", token, []string{"lost"})
			require.NoError(t, err)
			require.Empty(t, done, "by a worker that cannot have survived")
			_, ids = captureTasks(t, q, time.Hour, 9)
			require.Equal(t, []string{"lost"}, ids, "%q", boot)
			var left int64
			conn := foreign(t, s)
			// A capture looks for it once a second, or later if the last look was slow.
			require.Eventually(t, func() bool {
				_, err := q.Capture(bg, "q", driver.NewToken(), time.Hour, 9)
				require.ErrorIs(t, err, taskqueue.ErrAllHeld)
				ms, now := bootNow()
				return conn.QueryRowContext(bg,
					`SELECT visible_ms - ? FROM queue_tasks WHERE id = 'delayed' AND boot_id = ?`,
					ms, now).Scan(&left) == nil
			}, 2*time.Minute, 50*time.Millisecond)
			require.InDelta(t, time.Hour.Milliseconds(), left, float64(time.Minute.Milliseconds()),
				"on the clock of this boot")
			run(t, foreign(t, s), `UPDATE queue_tasks
				SET boot_id = ?, visible_at = '2020-01-01T00:00:00.000000Z'
				WHERE id = 'delayed'`, boot)
			_, ids = captureTasks(t, q, time.Hour, 9)
			require.Equal(t, []string{"delayed"}, ids, "it is over by the wall clock")
			info, _, err := q.Get(bg, "q", "exhausted")
			require.NoError(t, err)
			require.Equal(t, taskqueue.Failed, info.State)
		})
	}
}

// Each part of a capture reads one of the small indexes, in its order, and never
// what has ended. The few that it has chosen it sorts.
func TestNothingReadsAllTasks(t *testing.T) {
	missing.Long(t, "fills tables")
	t.Parallel()
	s := newStore(t)
	conn := foreign(t, s)
	scan := regexp.MustCompile(`SCAN queue_tasks.*`)
	part := regexp.MustCompile(`(?s)CO-ROUTINE.*?SCAN`)
	byID := "USING INDEX sqlite_autoindex_queue_tasks_1 (queue=? AND id=?)"
	check := func(t *testing.T) {
		for query, uses := range map[string][]string{
			sqlMendTasks: {"queue_tasks_last (queue=? AND boot_id=? AND visible_ms>?)",
				"queue_tasks_waiting (queue=? AND boot_id=? AND visible_ms>?)",
				"INTEGER PRIMARY KEY"},
			sqlBuryTasks: {"queue_tasks_last (queue=? AND boot_id=? AND visible_ms<?)",
				"queue_tasks_last (queue=? AND boot_id<?)",
				"queue_tasks_last (queue=? AND boot_id>?)", "INTEGER PRIMARY KEY"},
			sqlCaptureTasks: {"queue_tasks_ready (queue=?)",
				"queue_tasks_waiting (queue=? AND boot_id=? AND visible_ms",
				"queue_tasks_waiting (queue=? AND boot_id<?)",
				"queue_tasks_waiting (queue=? AND boot_id>?)", "INTEGER PRIMARY KEY"},
			sqlWhyNoTask: {"queue_tasks_waiting (queue=?)",
				"queue_tasks_last (queue=? AND boot_id=? AND visible_ms>?)"},
			sqlDoneTasks:    {byID},
			sqlDoneBefore:   {byID},
			sqlExtendTasks:  {byID},
			sqlReleaseTasks: {byID},
			sqlFailTask:     {byID},
			sqlTask:         {byID},
			sqlPruneTasks: {"queue_tasks_ended (queue=? AND state=? AND updated_at<?)",
				"INTEGER PRIMARY KEY"},
		} {
			plan := queryPlan(t, conn, query)
			assert.Empty(t, scan.FindAllString(plan, -1), "%s\n%s", query, plan)
			for _, index := range uses {
				assert.Contains(t, plan, index, "%s", query)
			}
			for _, part := range part.FindAllString(plan, -1) {
				assert.NotContains(t, part, "TEMP B-TREE", "%s sorts before it chooses:\n%s",
					query, plan)
			}
		}
		assert.NotEmpty(t, scan.FindString(queryPlan(t, conn,
			`DELETE FROM queue_tasks WHERE last_error = 'x'`)), "the test sees a scan")
	}
	t.Run("as it begins", check)
	run(t, conn, `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
INSERT INTO queue_tasks (queue, id, state, retries_left, created_at, updated_at)
SELECT 'q', i, 'pending', 0, '', '' FROM n`)
	run(t, conn, `ANALYZE`)
	t.Run("after ANALYZE, when all are pending", check)
	run(t, conn, `UPDATE queue_tasks SET state = 'done'`)
	run(t, conn, `ANALYZE`)
	t.Run("after ANALYZE, when all are done", check)
	run(t, conn, `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000)
INSERT INTO queue_tasks (queue, id, state, retries_left, token,
    boot_id, visible_ms, visible_at, created_at, updated_at)
SELECT 'queue ' || (i % 3), i, s.state, 1, CASE s.state WHEN 'in_progress' THEN 't' END,
       CASE s.state WHEN 'in_progress' THEN 'b' END,
       CASE s.state WHEN 'in_progress' THEN i END,
       CASE s.state WHEN 'in_progress' THEN '' END, '', ''
FROM n JOIN (SELECT 0 AS k, 'pending' AS state
             UNION ALL SELECT 1, 'in_progress' UNION ALL SELECT 2, 'failed') AS s
ON k = min(i % 100, 3) - 1
UNION ALL
SELECT 'queue ' || (i % 3), 'done ' || i, 'done', 1, NULL, NULL, NULL, NULL, '', '' FROM n`)
	run(t, conn, `ANALYZE`)
	t.Run("after ANALYZE, with all states", check)
}

// What came with one transaction is committed with one.
func TestCallsOfManyWorkersShareACommit(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q := s.Queue()
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint(i))
	}
	addTasks(t, q, 0, ids...)
	token, _ := captureTasks(t, q, time.Hour, 100)
	release := held(t, s)
	var wg sync.WaitGroup
	gather(t, s, &wg, len(ids), func(i int) {
		done, err := q.Done(bg, "q", token, ids[i:i+1])
		assert.NoError(t, err)
		assert.Len(t, done, 1)
	})
	done := func() int {
		return ask[int](t, s.DB(), `SELECT count(*) FROM queue_tasks WHERE state = 'done'`)
	}
	require.Zero(t, done())
	release()
	wg.Wait()
	require.Equal(t, 100, done())
}

// What is called for each task is planned once, also after an ANALYZE.
func TestTheCallsForATaskAreNotPlannedAnew(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var ids []string
	for i := range 1000 {
		ids = append(ids, fmt.Sprint(i))
	}
	addTasks(t, s.Queue(), 3, ids...)
	captureTasks(t, s.Queue(), time.Hour, 500)
	conn := foreign(t, s)
	run(t, conn, `ANALYZE`)
	const now, hold = int64(1), int64(1)
	for query, args := range map[string][]any{
		sqlBuryTasks:    {"q", "b", now, "lost", "t"},
		sqlCaptureTasks: {"q", "b", now, int64(1), "t", hold, "t", "lost", "t"},
		sqlWhyNoTask:    {"q", "b", now},
		sqlDoneTasks:    {"q", `["1"]`, "t", "b", now, "t"},
		sqlExtendTasks:  {"q", `["1"]`, "t", "b", now, "t", hold, "t"},
		sqlReleaseTasks: {"q", `["1"]`, "t", "b", now, "t"},
		sqlFailTask:     {"q", `["1"]`, "t", "b", now, "t", int64(0), "t", "why"},
		sqlTask:         {"q", "1"},
	} {
		require.NoError(t, conn.Raw(func(raw any) error {
			stmt, _, err := raw.(sqlite3driver.Conn).Raw().Prepare(query)
			if err != nil {
				return err
			}
			defer stmt.Close()
			for range 3 {
				for i, arg := range args {
					switch v := arg.(type) {
					case int64:
						err = stmt.BindInt64(i+1, v)
					case string:
						err = stmt.BindText(i+1, v)
					}
					if err != nil {
						return err
					}
				}
				for stmt.Step() {
				}
				if err := stmt.Reset(); err != nil {
					return err
				}
			}
			assert.Zero(t, stmt.Status(sqlite3.STMTSTATUS_REPREPARE, false), "%s", query)
			return nil
		}))
	}
}
