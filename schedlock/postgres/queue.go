package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks/queue"
)

// queueStore keeps tasks in table queue_tasks. Every call but AddTx is one
// statement on the pool of the ledger, in a transaction of its own.
type queueStore struct{ s *Store }

// Queue returns the store of the task queues in this database, for queue.New.
// It shares a small pool with the run ledger.
func (s *Store) Queue() queue.Store { return queueStore{s} }

// The order of the list becomes that of seq: an identity column counts in the
// order of INSERT … SELECT … ORDER BY.
const (
	sqlAddTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
)` + sqlInsertTasks

	// A transaction of the caller's is as durable as the caller wants.
	sqlAddTasksTx = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)` + sqlInsertTasks

	sqlInsertTasks = `
INSERT INTO queue_tasks (queue, id, state, retries_left, created_at, updated_at)
SELECT $1::text, k.id, 'pending', $2::integer, s.now, s.now
FROM settings s CROSS JOIN unnest($3::text[]) WITH ORDINALITY AS k (id, place)
ORDER BY k.place
ON CONFLICT (queue, id) DO NOTHING
RETURNING id`
)

// codeDeadlock is deadlock_detected: two lists that have the same new ids in
// another order wait for each other, until the server ends one of them.
const codeDeadlock = "40P01"

// Add implements queue.Store. A deadlock is tried again: nothing was written.
func (q queueStore) Add(ctx context.Context, name string, retries int, ids []string) (added []string, err error) {
	for range 5 {
		if added, err = q.ids(ctx, sqlAddTasks, name, int32(retries), ids); code(err) != codeDeadlock {
			break
		}
	}
	return added, err
}

// AddTx implements queue.Store; tx must be a pgx.Tx or a *sql.Tx of pgx.
func (q queueStore) AddTx(ctx context.Context, tx any, name string, retries int, ids []string) (added []string, err error) {
	switch tx := tx.(type) {
	case pgx.Tx:
		rows, err := tx.Query(ctx, sqlAddTasksTx, name, int32(retries), ids)
		if err != nil {
			return nil, q.s.explain(err)
		}
		added, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return added, q.s.explain(err)
	case *sql.Tx:
		rows, err := tx.QueryContext(ctx, sqlAddTasksTx, name, int32(retries), ids)
		if err != nil {
			return nil, q.s.explain(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return nil, q.s.explain(err)
			}
			added = append(added, id)
		}
		return added, q.s.explain(rows.Err())
	}
	return nil, fmt.Errorf("%w: it is a %T, neither a pgx.Tx nor a *sql.Tx", queue.ErrTx, tx)
}

const (
	// sqlOurs finds the tasks of a list that are the token's.
	sqlOurs = `t.queue = $1::text AND t.id = ANY ($2::text[]) AND t.token = $3::text AND t.state = 'in_progress' AND t.visible_at > s.now`

	sqlDoneTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
)
UPDATE queue_tasks t SET state = 'done', visible_at = NULL, updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

	sqlDoneBefore = `
SELECT id FROM queue_tasks WHERE queue = $1::text AND id = ANY ($2::text[]) AND token = $3::text AND state = 'done'`
)

// Done implements queue.Store. Only if it misses some does it look for those
// that were done before.
func (q queueStore) Done(ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
	done, err := q.ids(ctx, sqlDoneTasks, name, ids, token.String())
	if err != nil || len(done) == len(ids) {
		return done, err
	}
	return q.ids(ctx, sqlDoneBefore, name, ids, token.String())
}

const sqlExtendTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
)
UPDATE queue_tasks t SET visible_at = s.now + $4::bigint * interval '1 microsecond', updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

// Extend implements queue.Store.
func (q queueStore) Extend(ctx context.Context, name string, token schedlock.Token, hold time.Duration, ids []string) ([]string, error) {
	return q.ids(ctx, sqlExtendTasks, name, ids, token.String(), hold.Microseconds())
}

const sqlReleaseTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
)
UPDATE queue_tasks t SET state = 'pending', token = NULL, visible_at = NULL, updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

// Release implements queue.Store.
func (q queueStore) Release(ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
	return q.ids(ctx, sqlReleaseTasks, name, ids, token.String())
}

// A delay of 0 leaves the task where it was in the order; see queue_tasks_ready.
const sqlFailTask = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
)
UPDATE queue_tasks t
SET state = CASE WHEN t.retries_left > 0 THEN 'pending' ELSE 'failed' END, retries_left = greatest(t.retries_left - 1, 0), token = NULL,
    visible_at = CASE WHEN t.retries_left > 0 AND $4::bigint > 0 THEN s.now + $4 * interval '1 microsecond' END,
    last_error = nullif($5::text, ''), updated_at = s.now
FROM settings s WHERE ` + sqlOurs + `
RETURNING t.id`

// Fail implements queue.Store.
func (q queueStore) Fail(ctx context.Context, name string, token schedlock.Token, id, text string, delay time.Duration) (ended bool, err error) {
	ids, err := q.ids(ctx, sqlFailTask, name, []string{id}, token.String(), (delay + time.Microsecond - 1).Microseconds(), text)
	return len(ids) > 0, err
}

// ids runs a statement that returns ids.
func (q queueStore) ids(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := q.s.pool.Query(ctx, query, append([]any{q.s.mode()}, args...)...)
	if err != nil {
		return nil, q.s.explain(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, q.s.explain(err)
	}
	return ids, nil
}

const (
	taskColumns = `t.queue, t.id, t.state, t.attempts, t.retries_left, t.visible_at, t.last_error, t.created_at, t.updated_at`

	sqlTask = `
SELECT ` + taskColumns + ` FROM queue_tasks t WHERE t.queue = $1::text AND t.id = $2::text`
)

// Get implements queue.Store.
func (q queueStore) Get(ctx context.Context, name, id string) (info queue.Info, found bool, err error) {
	var t taskRow
	err = q.s.pool.QueryRow(ctx, sqlTask, q.s.mode(), name, id).Scan(t.dest()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return queue.Info{}, false, nil
	}
	return t.info(), err == nil, q.s.explain(err)
}

// What has ended stays so, so nothing can come between the choice and the end.
// The order is that of the index, and makes the server use it.
const sqlPruneTasks = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() - $2::bigint * interval '1 microsecond' AS before
)
DELETE FROM queue_tasks t WHERE t.queue = $1::text AND t.id = ANY (ARRAY(
    (SELECT k.id FROM queue_tasks k WHERE k.queue = $1 AND k.state = 'done' AND k.updated_at <= (SELECT before FROM settings)
     ORDER BY k.updated_at LIMIT $3::bigint)
    UNION ALL
    (SELECT k.id FROM queue_tasks k WHERE k.queue = $1 AND k.state = 'failed' AND k.updated_at <= (SELECT before FROM settings)
     ORDER BY k.updated_at LIMIT $3)
    LIMIT $3))`

// Prune implements queue.Store.
func (q queueStore) Prune(ctx context.Context, name string, olderThan time.Duration, limit int) (int64, error) {
	tag, err := q.s.pool.Exec(ctx, sqlPruneTasks, name, olderThan.Microseconds(), int64(limit))
	return tag.RowsAffected(), q.s.explain(err)
}

// taskRow takes taskColumns: all NULL if there is no row.
type taskRow struct {
	name, id, state, err      pgtype.Text
	attempts, retries         pgtype.Int8
	visible, created, updated pgtype.Timestamptz
}

func (t *taskRow) dest() []any {
	return []any{&t.name, &t.id, &t.state, &t.attempts, &t.retries, &t.visible, &t.err, &t.created, &t.updated}
}

func (t *taskRow) info() queue.Info {
	return queue.Info{
		Queue:       t.name.String,
		ID:          t.id.String,
		State:       queue.State(t.state.String),
		Attempts:    int(t.attempts.Int64),
		RetriesLeft: int(t.retries.Int64),
		VisibleAt:   stamp(t.visible),
		LastError:   t.err.String,
		AddedAt:     stamp(t.created),
		UpdatedAt:   stamp(t.updated),
	}
}
