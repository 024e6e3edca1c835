package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks/queue"
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
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
), exhausted AS MATERIALIZED (
    SELECT t.id FROM queue_tasks t
    WHERE t.queue = $1::text AND t.state = 'in_progress' AND t.retries_left = 0 AND t.visible_at <= (SELECT now FROM settings)
    ORDER BY t.visible_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT t.id, t.seq FROM queue_tasks t
    WHERE t.queue = $1 AND (t.state = 'pending' OR t.retries_left > 0) AND t.visible_at <= (SELECT now FROM settings)
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
        last_error = CASE t.state WHEN 'in_progress' THEN $4 ELSE t.last_error END, updated_at = s.now
    FROM settings s WHERE t.queue = $1 AND t.id = ANY (ARRAY(SELECT id FROM oldest))
    RETURNING t.seq, ` + taskColumns + `
)
SELECT CASE
           WHEN t.id IS NOT NULL THEN ''
           WHEN (SELECT k.seq FROM queue_tasks k WHERE k.queue = $1 AND k.state = 'pending' AND k.visible_at IS NULL
                 ORDER BY k.seq LIMIT 1) IS NOT NULL
             OR (SELECT k.seq FROM queue_tasks k WHERE k.queue = $1 AND k.visible_at IS NOT NULL AND (k.state = 'pending' OR k.retries_left > 0)
                 ORDER BY k.visible_at LIMIT 1) IS NOT NULL
             OR (SELECT k.visible_at FROM queue_tasks k WHERE k.queue = $1 AND k.state = 'in_progress' AND k.retries_left = 0
                 ORDER BY k.visible_at DESC LIMIT 1) > (SELECT now FROM settings) THEN 'held'
           WHEN EXISTS (SELECT FROM exhausted)
             OR (SELECT k.seq FROM queue_tasks k WHERE k.queue = $1 AND k.state = 'failed'
                 ORDER BY k.updated_at LIMIT 1) IS NOT NULL THEN 'exhausted'
           ELSE 'empty'
       END, ` + taskColumns + `
FROM (SELECT) AS one LEFT JOIN captured t ON true
ORDER BY t.seq`

// Capture implements queue.Store: one statement.
func (q queueStore) Capture(ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
	rows, err := q.s.pool.Query(ctx, fmt.Sprintf(sqlCaptureTasks, limit), q.s.mode(), name, token.String(), hold.Microseconds(), queue.LostWorker)
	if err != nil {
		return nil, q.s.explain(err)
	}
	var (
		tasks []queue.Info
		why   pgtype.Text
		t     taskRow
	)
	_, err = pgx.ForEachRow(rows, append([]any{&why}, t.dest()...), func() error {
		switch why.String {
		case "":
			tasks = append(tasks, t.info())
		case "held":
			return queue.ErrAllHeld
		case "exhausted":
			return queue.ErrExhausted
		default:
			return queue.ErrEmpty
		}
		return nil
	})
	switch {
	case errors.Is(err, queue.ErrNone):
		return nil, err
	case err != nil:
		return nil, q.s.explain(err)
	}
	return tasks, nil
}
