package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// queueStore keeps tasks in table queue_tasks. Every call but AddTx is one
// statement on the shared pool, in a transaction of its own.
type queueStore struct{ s *Store }

// Queue returns the store of the task queues in this database, for queue.New.
// It shares a small pool with named locks: see WithSharedConnections.
func (s *Store) Queue() taskqueue.Store { return queueStore{s} }

// The order of the list becomes that of seq: an identity column counts in the
// order of INSERT … SELECT … ORDER BY.
const (
	// It waits for a transaction that has added one of the ids, in short turns.
	sqlAddTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('lock_timeout', '100ms', true), ` + sqlDurable + `
)
INSERT INTO queue_tasks` + sqlInsertTasks

	sqlInsertTasks = ` (queue, id, state, retries_left, visible_at, created_at, updated_at)
SELECT $1::text, k.id, 'pending', $2::integer,
       CASE WHEN $4::bigint > 0 THEN s.now + $4 * interval '1 microsecond' END,
       s.now, s.now
FROM settings s CROSS JOIN unnest($3::text[]) WITH ORDINALITY AS k (id, place)
ORDER BY k.place
ON CONFLICT (queue, id) DO NOTHING
RETURNING id`
)

// A transaction of the caller's is as durable as the caller wants.
func sqlAddTasksTx(tasks string) string {
	return `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
INSERT INTO ` + tasks + sqlInsertTasks
}

// Add implements taskqueue.Store. While another transaction has added one of the
// ids it waits, without keeping a connection from others.
func (q queueStore) Add(ctx context.Context, name string, retries int,
	ids []string) ([]string, error) {
	return q.AddAfter(ctx, nil, name, retries, 0, ids)
}

// AddTx implements taskqueue.Store; tx must be a pgx.Tx or a *sql.Tx of pgx.
func (q queueStore) AddTx(ctx context.Context, tx any, name string, retries int,
	ids []string) ([]string, error) {
	return q.inside(ctx, tx, sqlAddTasksTx(q.s.table("queue_tasks")), name, int32(retries), ids,
		int64(0))
}

// AddAfter implements taskqueue.Store.
func (q queueStore) AddAfter(ctx context.Context, tx any, name string, retries int,
	delay time.Duration, ids []string) ([]string, error) {
	if tx != nil {
		return q.inside(ctx, tx, sqlAddTasksTx(q.s.table("queue_tasks")), name, int32(retries), ids,
			ceilMicros(delay))
	}
	return q.ids(ctx, q.s.patient, sqlAddTasks, name, int32(retries), ids, ceilMicros(delay))
}

// ceilMicros keeps a delay of less than a microsecond one.
func ceilMicros(d time.Duration) int64 { return (d + time.Microsecond - 1).Microseconds() }

// inside runs a statement that returns ids in a caller's transaction.
func (q queueStore) inside(ctx context.Context, tx any, query string,
	args ...any) (ids []string, err error) {
	var id string
	add := func() error { ids = append(ids, id); return nil }
	switch tx := tx.(type) {
	case pgx.Tx:
		rows, queryErr := tx.Query(ctx, query, args...)
		if err = queryErr; err == nil {
			_, err = pgx.ForEachRow(rows, []any{&id}, add)
		}
	case *sql.Tx:
		rows, queryErr := tx.QueryContext(ctx, query, args...)
		err = columns.Each(rows, queryErr, []any{&id}, add)
	default:
		return nil, fmt.Errorf("%w: it is a %T, neither a pgx.Tx nor a *sql.Tx", taskqueue.ErrTx,
			tx)
	}
	return ids, q.s.explainTheirs(err)
}

const (
	// sqlOurs finds the tasks of a list that are the token's.
	sqlOurs = `t.queue = $1::text AND t.id = ANY ($2::text[])
  AND t.token = $3::text AND t.state = 'in_progress' AND t.visible_at > s.now`

	sqlDoneTasks = `
WITH ` + sqlNow + `
UPDATE queue_tasks t SET state = 'done', visible_at = NULL, updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

	sqlDoneBefore = `
SELECT id FROM queue_tasks
WHERE queue = $1::text AND id = ANY ($2::text[]) AND token = $3::text AND state = 'done'`
)

// Done implements taskqueue.Store. Only if it misses some does it look for those
// that were done before.
func (q queueStore) Done(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	done, err := q.ids(ctx, q.s.patient, sqlDoneTasks, name, ids, token.String())
	if err != nil || len(done) == len(ids) {
		return done, err
	}
	return q.ids(ctx, q.s.pool, sqlDoneBefore, name, ids, token.String())
}

// sqlDoneTasksTx locks the rows, which Capture passes over then. The server ends
// the transaction when it is idle for the time-out.
func sqlDoneTasksTx(tasks string) string {
	return `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlIdle("$4::bigint") + `
)
UPDATE ` + tasks + ` t SET state = 'done', visible_at = NULL, updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`
}

// DoneTx implements taskqueue.Store; tx must be a pgx.Tx or a *sql.Tx of pgx.
func (q queueStore) DoneTx(ctx context.Context, tx any, name string, token driver.Token,
	hold time.Duration, ids []string) ([]string, error) {
	return q.inside(ctx, tx, sqlDoneTasksTx(q.s.table("queue_tasks")), name, ids, token.String(),
		hold.Milliseconds())
}

const sqlExtendTasks = `
WITH ` + sqlNow + `
UPDATE queue_tasks t
SET visible_at = s.now + $4::bigint * interval '1 microsecond', updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

// Extend implements taskqueue.Store.
func (q queueStore) Extend(ctx context.Context, name string, token driver.Token, hold time.Duration,
	ids []string) ([]string, error) {
	return q.ids(ctx, q.s.patient, sqlExtendTasks, name, ids, token.String(), hold.Microseconds())
}

const sqlReleaseTasks = `
WITH ` + sqlNow + `
UPDATE queue_tasks t SET state = 'pending', token = NULL, visible_at = NULL, updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

// Release implements taskqueue.Store.
func (q queueStore) Release(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	return q.ids(ctx, q.s.patient, sqlReleaseTasks, name, ids, token.String())
}

// A delay of 0 leaves the task where it was in the order; see queue_tasks_ready.
const sqlFailTask = `
WITH ` + sqlNow + `
UPDATE queue_tasks t
SET state = CASE WHEN t.retries_left > 0 THEN 'pending' ELSE 'failed' END,
    retries_left = greatest(t.retries_left - 1, 0), token = NULL,
    visible_at = CASE WHEN t.retries_left > 0 AND $4::bigint > 0
                      THEN s.now + $4 * interval '1 microsecond' END,
    last_error = nullif($5::text, ''), updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

// Fail implements taskqueue.Store.
func (q queueStore) Fail(ctx context.Context, name string, token driver.Token, id, text string,
	delay time.Duration) (ended bool, err error) {
	ids, err := q.ids(ctx, q.s.patient, sqlFailTask, name, []string{id}, token.String(),
		ceilMicros(delay), text)
	return len(ids) > 0, err
}

// ids runs a statement that returns ids.
func (q queueStore) ids(ctx context.Context, pool statementPool, query string,
	args ...any) (ids []string, err error) {
	err = q.s.insist(ctx, func(ctx context.Context) error {
		var id string
		ids, err = all(ctx, pool, []any{&id}, func() string { return id }, query,
			append([]any{q.s.mode()}, args...)...)
		return err
	})
	return ids, err
}

const sqlTask = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks t WHERE t.queue = $1::text AND t.id = $2::text`

// Get implements taskqueue.Store.
func (q queueStore) Get(ctx context.Context, name,
	id string) (info taskqueue.Info, found bool, err error) {
	var t columns.Task
	err = q.s.pool.QueryRow(ctx, sqlTask, q.s.mode(), name, id).Scan(t.Dest()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return taskqueue.Info{}, false, nil
	}
	return t.Value(), err == nil, q.s.explain(err)
}

// Each order is that of an index, so that a list reads no more than it returns.
const (
	sqlListReady = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks t
WHERE t.queue = $1::text AND t.state = 'pending' AND t.visible_at IS NULL
ORDER BY t.seq LIMIT $2::bigint`

	sqlListDelayed = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks t
WHERE t.queue = $1::text AND t.visible_at IS NOT NULL
  AND (t.state = 'pending' OR t.retries_left > 0) AND t.state = 'pending'
ORDER BY t.visible_at, t.seq LIMIT $2::bigint`

	sqlListHeld = `
SELECT ` + columns.TaskColumns + ` FROM (
    (SELECT * FROM queue_tasks k
     WHERE k.queue = $1::text AND k.visible_at IS NOT NULL
       AND (k.state = 'pending' OR k.retries_left > 0) AND k.state = 'in_progress'
     ORDER BY k.visible_at, k.seq LIMIT $2::bigint)
    UNION ALL
    (SELECT * FROM queue_tasks k
     WHERE k.queue = $1 AND k.state = 'in_progress' AND k.retries_left = 0
     ORDER BY k.visible_at, k.seq LIMIT $2)
) AS t ORDER BY t.visible_at, t.seq LIMIT $2`

	sqlListEnded = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks t
WHERE t.queue = $1::text AND t.state = $3::text
  AND t.state IN ('done', 'failed')
ORDER BY t.updated_at DESC, t.seq DESC LIMIT $2::bigint`
)

// List implements taskqueue.Store.
func (q queueStore) List(ctx context.Context, name string, state taskqueue.State,
	limit int) (tasks []taskqueue.Info, err error) {
	queries := []string{sqlListEnded}
	switch state {
	case taskqueue.Pending:
		queries = []string{sqlListReady, sqlListDelayed}
	case taskqueue.InProgress:
		queries = []string{sqlListHeld}
	}
	for _, query := range queries {
		args := []any{q.s.mode(), name, int64(limit - len(tasks))}
		if query == sqlListEnded {
			args = append(args, string(state))
		}
		var t columns.Task
		more, err := all(ctx, q.s.pool, t.Dest(), t.Value, query, args...)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, more...)
	}
	return tasks, nil
}

const sqlCountTasks = `
SELECT t.queue,
       count(*) FILTER (WHERE t.state = 'pending' AND coalesce(t.visible_at <= s.now, true)),
       count(*) FILTER (WHERE t.state = 'pending' AND t.visible_at > s.now),
       count(*) FILTER (WHERE t.state = 'in_progress'),
       count(*) FILTER (WHERE t.state = 'done'),
       count(*) FILTER (WHERE t.state = 'failed')
FROM queue_tasks t CROSS JOIN (SELECT clock_timestamp() AS now) AS s
GROUP BY t.queue ORDER BY t.queue LIMIT 1000`

// Count implements taskqueue.Store.
func (q queueStore) Count(ctx context.Context) ([]taskqueue.Count, error) {
	var c taskqueue.Count
	return all(ctx, q.s.pool, []any{&c.Queue, &c.Pending, &c.Delayed, &c.InProgress, &c.Done,
		&c.Failed}, func() taskqueue.Count { return c }, sqlCountTasks, q.s.mode())
}

const sqlRequeueTasks = `
WITH ` + sqlNow + `
UPDATE queue_tasks t
SET state = 'pending', retries_left = $2::integer, token = NULL, updated_at = s.now
FROM settings s
WHERE t.queue = $1::text AND t.id = ANY ($3::text[]) AND t.state IN ('done', 'failed')
RETURNING t.id`

// Requeue implements taskqueue.Store.
func (q queueStore) Requeue(ctx context.Context, name string, retries int,
	ids []string) ([]string, error) {
	return q.ids(ctx, q.s.patient, sqlRequeueTasks, name, int32(retries), ids)
}

// What was requeued since the choice stays.
// The order is that of the index, and makes the server use it.
const sqlPruneTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() - $2::bigint * interval '1 microsecond' AS before
)
DELETE FROM queue_tasks t WHERE t.queue = $1::text AND t.id = ANY (ARRAY(
    (SELECT k.id FROM queue_tasks k
     WHERE k.queue = $1 AND k.state = 'done' AND k.updated_at <= (SELECT before FROM settings)
     ORDER BY k.updated_at LIMIT $3::bigint)
    UNION ALL
    (SELECT k.id FROM queue_tasks k
     WHERE k.queue = $1 AND k.state = 'failed' AND k.updated_at <= (SELECT before FROM settings)
     ORDER BY k.updated_at LIMIT $3)
    LIMIT $3)) AND t.state IN ('done', 'failed')`

// Prune implements taskqueue.Store.
func (q queueStore) Prune(ctx context.Context, name string, olderThan time.Duration,
	limit int) (int64, error) {
	tag, err := q.s.pool.Exec(ctx, sqlPruneTasks, name, olderThan.Microseconds(), int64(limit))
	return tag.RowsAffected(), q.s.explain(err)
}
