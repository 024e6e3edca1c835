package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// sqlCaptureTasks locks what it chooses before it writes it, and passes over
// what others have locked: so no two take the same task, and none waits. The
// choice is materialized, since a subquery that locks may be run more than once.
//
// What is due because a time has come, and what is ready, are two indexes; of
// each as many as the limit are locked, and the oldest of both are taken. If
// there is none, what can be captured is about to be by others. Each look at an
// index asks for its first row: an EXISTS might read the table instead. For the
// same reason rows are found by an array of ids, and not by a join.
//
// The limit stands in the text, where the server can see that it is small: so
// it keeps one plan, instead of making one for each call.
const sqlCaptureTasks = `
WITH ` + sqlNow + `, exhausted AS MATERIALIZED (
    SELECT t.id FROM queue_tasks t
    WHERE t.queue = $1::text AND t.state = 'in_progress' AND t.retries_left = 0
      AND t.visible_at <= (SELECT now FROM settings)
    ORDER BY t.visible_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT t.id, t.seq FROM queue_tasks t
    WHERE t.queue = $1 AND (t.state = 'pending' OR t.retries_left > 0)
      AND t.visible_at <= (SELECT now FROM settings)
    ORDER BY t.visible_at LIMIT %[1]d FOR UPDATE SKIP LOCKED
), ready AS MATERIALIZED (
    SELECT t.id, t.seq FROM queue_tasks t
    WHERE t.queue = $1 AND t.state = 'pending' AND t.visible_at IS NULL
    ORDER BY t.seq LIMIT %[1]d FOR UPDATE SKIP LOCKED
), oldest AS MATERIALIZED (
    SELECT id, seq FROM due UNION ALL SELECT id, seq FROM ready ORDER BY seq LIMIT %[1]d
), buried AS (
    UPDATE queue_tasks t
    SET state = 'failed', token = NULL, visible_at = NULL, last_error = $4::text, updated_at = s.now
    FROM settings s WHERE t.queue = $1 AND t.id = ANY (ARRAY(SELECT id FROM exhausted))
), captured AS (
    UPDATE queue_tasks t
    SET state = 'in_progress', token = $2::text, attempts = t.attempts + 1,
        retries_left = t.retries_left - (t.state = 'in_progress')::integer,
        visible_at = s.now + $3::bigint * interval '1 microsecond',
        last_error = CASE t.state WHEN 'in_progress' THEN $4 ELSE t.last_error END,
        updated_at = s.now
    FROM settings s WHERE t.queue = $1 AND t.id = ANY (ARRAY(SELECT id FROM oldest))
    RETURNING t.seq, ` + columns.TaskColumns + `
)
SELECT CASE
           WHEN t.id IS NOT NULL THEN ''
           WHEN (SELECT k.seq FROM queue_tasks k
                 WHERE k.queue = $1 AND k.state = 'pending' AND k.visible_at IS NULL
                 ORDER BY k.seq LIMIT 1) IS NOT NULL
             OR (SELECT k.seq FROM queue_tasks k
                 WHERE k.queue = $1 AND k.visible_at IS NOT NULL
                   AND (k.state = 'pending' OR k.retries_left > 0)
                 ORDER BY k.visible_at LIMIT 1) IS NOT NULL
             OR (SELECT k.visible_at FROM queue_tasks k
                 WHERE k.queue = $1 AND k.state = 'in_progress' AND k.retries_left = 0
                 ORDER BY k.visible_at DESC LIMIT 1) > (SELECT now FROM settings) THEN 'held'
           WHEN EXISTS (SELECT FROM exhausted) THEN 'exhausted'
           ELSE 'empty'
       END, ` + columns.TaskColumns + `
FROM (SELECT) AS one LEFT JOIN captured t ON true
ORDER BY t.seq`

// sqlMendTasks begins the time-outs and delays anew of which more is left than
// their whole length: each was set when updated_at was, so the clock was set back
// since. Who has such a task has written it before now, by any clock: so its own
// clock ends it before. The clock is asked when the row is locked, as somebody may
// have extended it just now.
const sqlMendTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), waiting AS MATERIALIZED (
    SELECT t.id FROM queue_tasks t
    WHERE t.queue = $1::text AND (t.state = 'pending' OR t.retries_left > 0)
      AND t.visible_at > (SELECT now FROM settings)
      AND t.updated_at > (SELECT now FROM settings)
    ORDER BY t.visible_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), last AS MATERIALIZED (
    SELECT t.id FROM queue_tasks t
    WHERE t.queue = $1 AND t.state = 'in_progress' AND t.retries_left = 0
      AND t.visible_at > (SELECT now FROM settings)
      AND t.updated_at > (SELECT now FROM settings)
    ORDER BY t.visible_at LIMIT 1000 FOR UPDATE SKIP LOCKED
)
UPDATE queue_tasks t
SET visible_at = clock_timestamp() + (t.visible_at - t.updated_at), updated_at = clock_timestamp()
WHERE t.queue = $1 AND t.id = ANY (ARRAY(SELECT id FROM waiting UNION ALL SELECT id FROM last))
  AND t.updated_at > clock_timestamp()`

// mendTimeout bounds it: the capture that follows has a limit of its own.
const mendTimeout = 2 * time.Second

// mend does that. If it cannot, the capture that follows cannot either, or says
// why.
func (q queueStore) mend(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	tag, err := q.s.pool.Exec(ctx, sqlMendTasks, q.s.mode(), name)
	if n := tag.RowsAffected(); err == nil && n > 0 {
		q.s.log.Warn("the server's clock was set back: time-outs and delays of tasks begin anew",
			"queue", name, "tasks", n)
	}
}

// Capture implements taskqueue.Store: one statement, tried again where the server
// has rolled it back because of another, and now and then a look for what a step
// of the clock has left behind.
func (q queueStore) Capture(ctx context.Context, name string, token driver.Token,
	hold time.Duration, limit int) (tasks []taskqueue.Info, err error) {
	q.s.mending.Due(name, func() { q.mend(ctx, name) })
	err = q.s.insist(ctx, func(ctx context.Context) error {
		tasks, err = q.capture(ctx, name, token, hold, limit)
		return err
	})
	return tasks, err
}

func (q queueStore) capture(ctx context.Context, name string, token driver.Token,
	hold time.Duration, limit int) ([]taskqueue.Info, error) {
	var (
		tasks []taskqueue.Info
		why   pgtype.Text
		t     columns.Task
	)
	err := q.s.pool.each(ctx, append([]any{&why}, t.Dest()...), func() error {
		switch why.String {
		case "":
			tasks = append(tasks, t.Value())
		case "held":
			return taskqueue.ErrAllHeld
		case "exhausted":
			return taskqueue.ErrExhausted
		default:
			return taskqueue.ErrEmpty
		}
		return nil
	}, fmt.Sprintf(sqlCaptureTasks, limit), q.s.mode(), name, token.String(), hold.Microseconds(),
		taskqueue.LostWorker)
	switch {
	case errors.Is(err, taskqueue.ErrNone):
		return nil, err
	case err != nil:
		return nil, q.s.explain(err)
	}
	return tasks, nil
}
