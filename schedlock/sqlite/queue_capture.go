package sqlite

import (
	"cmp"
	"context"
	"slices"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
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

	// sqlMendTasks begins the time-outs and delays anew of which more is left than
	// their whole length, which the times as text tell: the clock of the machine
	// has gone back since, as with a snapshot of a virtual machine.
	sqlMendTasks = `
UPDATE queue_tasks
SET visible_ms = +?3 + ` + sqlWhole + `,
    visible_at = strftime('%Y-%m-%dT%H:%M:%f000Z',
                          julianday(?4) + julianday(visible_at) - julianday(updated_at)),
    updated_at = ?4
WHERE seq IN (
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting
                   WHERE ` + sqlAhead + ` AND ` + sqlMayRun + ` LIMIT 1000)
    UNION ALL
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_last
                   WHERE ` + sqlAhead + ` AND ` + sqlExhausted + ` LIMIT 1000)
)`

	// sqlRebootTasks lets delays go on that a restart of the machine has
	// interrupted: what is left is told by the wall clock, but is never more than
	// the whole delay. A worker did not outlive the restart: its task is due.
	sqlRebootTasks = `
UPDATE queue_tasks
SET boot_id = +?2, visible_ms = +?3 + min(` + sqlWhole + `, max(0, ` + sqlLeftByWall + `))
WHERE seq IN (
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting
                   WHERE ` + sqlBootBefore + ` AND ` + sqlMayRun + `
                     AND state = 'pending' LIMIT 1000)
    UNION ALL
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting
                   WHERE ` + sqlBootAfter + ` AND ` + sqlMayRun + `
                     AND state = 'pending' LIMIT 1000)
)`
	sqlLeftByWall = `CAST(round((julianday(visible_at) - julianday(?4)) * 86400000) AS INTEGER)`

	sqlAhead = `queue = +?1 AND boot_id = +?2 AND visible_ms > +?3 AND visible_ms > +?3 + ` +
		sqlWhole
	sqlWhole = `CAST(
        round((julianday(visible_at) - julianday(updated_at)) * 86400000) + 2 AS INTEGER)`

	// A bounded number, so that a capture stays short.
	sqlBuryTasks = `
UPDATE queue_tasks
SET state = 'failed', token = NULL, boot_id = NULL, visible_ms = NULL, visible_at = NULL,
    last_error = ?4, updated_at = ?5
WHERE seq IN (
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_last
                   WHERE ` + sqlPassed + ` AND ` + sqlExhausted + ` LIMIT 1000)
    UNION ALL
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_last
                   WHERE ` + sqlBootBefore + ` AND ` + sqlExhausted + ` LIMIT 1000)
    UNION ALL
    SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_last
                   WHERE ` + sqlBootAfter + ` AND ` + sqlExhausted + ` LIMIT 1000)
)`

	sqlCaptureTasks = `
UPDATE queue_tasks
SET state = 'in_progress', token = ?5, attempts = attempts + 1,
    retries_left = retries_left - (state = 'in_progress'),
    boot_id = ?2, visible_ms = ?3 + ?6, visible_at = ?7,
    last_error = CASE state WHEN 'in_progress' THEN ?8 ELSE last_error END, updated_at = ?9
WHERE seq IN (
    SELECT seq FROM (
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_ready
                       WHERE queue = +?1 AND state = 'pending' AND visible_ms IS NULL
                       ORDER BY seq LIMIT ?4 + 0)
        UNION ALL
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting
                       WHERE ` + sqlPassed + ` AND ` + sqlMayRun + `
                       ORDER BY visible_ms LIMIT ?4 + 0)
        UNION ALL
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting
                       WHERE ` + sqlBootBefore + ` AND ` + sqlMayRun + `
                         AND (state = 'in_progress' OR visible_at <= ?9) LIMIT ?4 + 0)
        UNION ALL
        SELECT * FROM (SELECT seq FROM queue_tasks INDEXED BY queue_tasks_waiting
                       WHERE ` + sqlBootAfter + ` AND ` + sqlMayRun + `
                         AND (state = 'in_progress' OR visible_at <= ?9) LIMIT ?4 + 0)
    ) ORDER BY seq LIMIT ?4 + 0
)
RETURNING seq, ` + columns.TaskColumns

	sqlWhyNoTask = `
SELECT EXISTS (SELECT 1 FROM queue_tasks INDEXED BY queue_tasks_waiting
               WHERE queue = +?1 AND ` + sqlMayRun + `)
    OR EXISTS (SELECT 1 FROM queue_tasks INDEXED BY queue_tasks_last
               WHERE queue = +?1 AND boot_id = +?2 AND visible_ms > +?3
                 AND ` + sqlExhausted + `)`
)

// Capture implements taskqueue.Store: one immediate transaction.
func (q queueStore) Capture(ctx context.Context, name string, token driver.Token,
	hold time.Duration, limit int) ([]taskqueue.Info, error) {
	type row struct {
		seq  int64
		info taskqueue.Info
	}
	var (
		seq          int64
		t            columns.Task
		rows         []row
		held, failed bool
	)
	err := q.s.share(ctx, func(ctx context.Context, tx tx) error {
		now := q.s.now()
		ms, boot := bootNow()
		var err error
		q.s.mending.Due(name, func() {
			if _, err = tx.exec(ctx, sqlMendTasks, name, boot, ms, formatTime(now)); err == nil {
				_, err = tx.exec(ctx, sqlRebootTasks, name, boot, ms, formatTime(now))
			}
		})
		if err != nil {
			return err
		}
		buried, err := tx.exec(ctx, sqlBuryTasks, name, boot, ms, taskqueue.LostWorker,
			formatTime(now))
		if err != nil {
			return err
		}
		failed = buried > 0
		err = q.s.each(ctx, sqlCaptureTasks, []any{name,
			boot, ms, limit, token.String(), hold.Milliseconds(), formatTime(now.Add(hold)),
			taskqueue.LostWorker, formatTime(now)}, append([]any{&seq}, t.Dest()...), func() error {
			rows = append(rows, row{seq, t.Value()})
			return nil
		})
		if err != nil || len(rows) > 0 {
			return err
		}
		return tx.row(ctx, sqlWhyNoTask, []any{name, boot, ms}, &held)
	})
	switch {
	case err != nil:
		return nil, err
	case len(rows) > 0:
	case held:
		return nil, taskqueue.ErrAllHeld
	case failed:
		return nil, taskqueue.ErrExhausted
	default:
		return nil, taskqueue.ErrEmpty
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	tasks := make([]taskqueue.Info, len(rows))
	for i, r := range rows {
		tasks[i] = r.info
	}
	return tasks, nil
}
