package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks/queue"
)

// What stands around the parameters here and in sqlOurs, +?1 and ?4 + 0, hides
// their values from SQLite's planner. It would make a new plan for every call, if
// ever somebody runs ANALYZE, and always for a LIMIT: that takes longer than to
// capture a task.
const (
	// A time has come when it has passed, or is of another boot. Each condition
	// is one range of an index.
	sqlPassed     = `queue = +?1 AND boot_id = +?2 AND visible_ms <= +?3`
	sqlBootBefore = `queue = +?1 AND boot_id < +?2`
	sqlBootAfter  = `queue = +?1 AND boot_id > +?2`

	// The conditions of the indexes queue_tasks_last and queue_tasks_waiting, word
	// for word: else SQLite cannot use a partial index. That it does is not left to
	// it: an ANALYZE at a time when all tasks were pending would make it read the
	// whole table ever after.
	sqlExhausted = `state = 'in_progress' AND retries_left = 0`
	sqlMayRun    = `visible_ms IS NOT NULL AND (state = 'pending' OR retries_left > 0)`

	// A bounded number, so that a capture stays short.
	sqlBuryTasks = `
UPDATE queue_tasks
SET state = 'failed', token = NULL, boot_id = NULL, visible_ms = NULL, visible_at = NULL, last_error = ?4, updated_at = ?5
WHERE seq IN (
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_last WHERE ` + sqlPassed + ` AND ` + sqlExhausted + ` LIMIT 1000)
    UNION ALL
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_last WHERE ` + sqlBootBefore + ` AND ` + sqlExhausted + ` LIMIT 1000)
    UNION ALL
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_last WHERE ` + sqlBootAfter + ` AND ` + sqlExhausted + ` LIMIT 1000)
)`

	sqlCaptureTasks = `
UPDATE queue_tasks
SET state = 'in_progress', token = ?5, attempts = attempts + 1, retries_left = retries_left - (state = 'in_progress'),
    boot_id = ?2, visible_ms = ?3 + ?6, visible_at = ?7,
    last_error = CASE state WHEN 'in_progress' THEN ?8 ELSE last_error END, updated_at = ?9
WHERE seq IN (
    SELECT seq FROM (
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_ready WHERE queue = +?1 AND state = 'pending' AND visible_ms IS NULL ORDER BY seq LIMIT ?4 + 0)
        UNION ALL
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting WHERE ` + sqlPassed + ` AND ` + sqlMayRun + ` ORDER BY visible_ms LIMIT ?4 + 0)
        UNION ALL
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting WHERE ` + sqlBootBefore + ` AND ` + sqlMayRun + ` LIMIT ?4 + 0)
        UNION ALL
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting WHERE ` + sqlBootAfter + ` AND ` + sqlMayRun + ` LIMIT ?4 + 0)
    ) ORDER BY seq LIMIT ?4 + 0
)
RETURNING seq, ` + taskColumns

	sqlWhyNoTask = `
SELECT EXISTS (SELECT 1 FROM queue_tasks INDEXED BY queue_tasks_waiting WHERE queue = +?1 AND ` + sqlMayRun + `)
    OR EXISTS (SELECT 1 FROM queue_tasks INDEXED BY queue_tasks_last WHERE queue = +?1 AND boot_id = +?2 AND visible_ms > +?3 AND ` + sqlExhausted + `),
       EXISTS (SELECT 1 FROM queue_tasks INDEXED BY queue_tasks_ended WHERE queue = +?1 AND state IN ('done', 'failed') AND state = 'failed')`
)

// Capture implements queue.Store: one immediate transaction.
func (q queueStore) Capture(ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
	type row struct {
		seq  int64
		info queue.Info
	}
	var (
		rows         []row
		held, failed bool
	)
	err := q.s.share(ctx, func(ctx context.Context, tx tx) error {
		now := q.s.now()
		ms, boot := bootNow()
		if _, err := tx.exec(ctx, sqlBuryTasks, name, boot, ms, queue.LostWorker, formatTime(now)); err != nil {
			return err
		}
		err := q.s.each(ctx, sqlCaptureTasks, []any{name, boot, ms, limit, token.String(), millis(hold), formatTime(now.Add(hold)),
			queue.LostWorker, formatTime(now)}, func(r *sql.Rows) (err error) {
			var next row
			next.info, err = scanTask(r, &next.seq)
			rows = append(rows, next)
			return err
		})
		if err != nil || len(rows) > 0 {
			return err
		}
		return tx.row(ctx, sqlWhyNoTask, []any{name, boot, ms}, &held, &failed)
	})
	switch {
	case err != nil:
		return nil, q.explain(err)
	case len(rows) > 0:
	case held:
		return nil, queue.ErrAllHeld
	case failed:
		return nil, queue.ErrExhausted
	default:
		return nil, queue.ErrEmpty
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	tasks := make([]queue.Info, len(rows))
	for i, r := range rows {
		tasks[i] = r.info
	}
	return tasks, nil
}
