package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// queueStore keeps tasks in table queue_tasks. Calls that come together share a
// transaction; see batch.
type queueStore struct{ s *Store }

// Queue returns the store of the task queues in this file, for queue.New. It
// uses the connection of the lock, so its transactions are short. A call that
// finds the file busy for half a second fails, and may be repeated.
func (s *Store) Queue() taskqueue.Store { return queueStore{s} }

// sqlAddTasks inserts in the order of the list.
const sqlAddTasks = `
INSERT INTO queue_tasks
    (queue, id, state, retries_left, boot_id, visible_ms, visible_at, created_at, updated_at)
SELECT ?1, value, 'pending', ?2, ?5, ?6, ?7, ?3, ?3 FROM json_each(?4) WHERE true
ON CONFLICT (queue, id) DO NOTHING
RETURNING id`

// addArgs are those of sqlAddTasks.
func (q queueStore) addArgs(name string, retries int, delay time.Duration, ids []string) []any {
	now := q.s.now()
	args := []any{name, retries, formatTime(now), list(ids), nil, nil, nil}
	if delay > 0 {
		ms, boot := bootNow()
		args = append(args[:4], boot, ms+ceilMillis(delay), formatTime(now.Add(delay)))
	}
	return args
}

// Add implements taskqueue.Store.
func (q queueStore) Add(ctx context.Context, name string, retries int,
	ids []string) ([]string, error) {
	return q.AddAfter(ctx, nil, name, retries, 0, ids)
}

// AddTx implements taskqueue.Store; tx must be a *sql.Tx.
func (q queueStore) AddTx(ctx context.Context, tx any, name string, retries int,
	ids []string) ([]string, error) {
	return q.inside(ctx, tx, sqlAddTasks, q.addArgs(name, retries, 0, ids))
}

// AddAfter implements taskqueue.Store.
func (q queueStore) AddAfter(ctx context.Context, tx any, name string, retries int,
	delay time.Duration, ids []string) (added []string, err error) {
	if tx != nil {
		return q.inside(ctx, tx, sqlAddTasks, q.addArgs(name, retries, delay, ids))
	}
	return q.change(ctx, sqlAddTasks, func() []any { return q.addArgs(name, retries, delay, ids) })
}

// change runs a statement that returns ids; args are made when it is its turn.
func (q queueStore) change(ctx context.Context, query string,
	args func() []any) ([]string, error) {
	return within(ctx, q.s.share, func(ctx context.Context, _ tx) ([]string, error) {
		return q.ids(ctx, query, args()...)
	})
}

// inside runs a statement that returns ids in a caller's transaction.
func (q queueStore) inside(ctx context.Context, tx any, query string,
	args []any) ([]string, error) {
	t, ok := tx.(*sql.Tx)
	if !ok || t == nil {
		return nil, fmt.Errorf("%w: it is a %T, not a *sql.Tx", taskqueue.ErrTx, tx)
	}
	var id string
	rows, err := t.QueryContext(ctx, query, args...)
	ids, err := columns.All(rows, err, []any{&id}, func() string { return id })
	return ids, q.s.explain(err)
}

// ours are the first arguments of a statement with sqlOurs, the time among them.
func (q queueStore) ours(name string, token driver.Token, ids []string,
	more ...any) []any {
	ms, boot := bootNow()
	return append([]any{name, list(ids), token.String(), boot, ms, formatTime(q.s.now())}, more...)
}

const (
	// sqlOurs finds the tasks of a list that are the token's. The plus signs keep
	// SQLite from reading all that is held instead.
	sqlOurs = `queue = +?1 AND id IN (SELECT value FROM json_each(?2)) AND token = +?3
  AND +state = 'in_progress' AND +boot_id = +?4 AND +visible_ms > +?5`

	sqlDoneTasks = `
UPDATE queue_tasks
SET state = 'done', boot_id = NULL, visible_ms = NULL, visible_at = NULL, updated_at = ?6
WHERE ` + sqlOurs

	sqlDoneBefore = `
SELECT id FROM queue_tasks
WHERE queue = ?1 AND id IN (SELECT value FROM json_each(?2)) AND token = ?3 AND +state = 'done'`
)

// Done implements taskqueue.Store. Which tasks it has ended it asks only if it has
// not ended all.
func (q queueStore) Done(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	return within(ctx, q.s.share, func(ctx context.Context, tx tx) ([]string, error) {
		n, err := tx.exec(ctx, sqlDoneTasks, q.ours(name, token, ids)...)
		if err != nil || n == int64(len(ids)) {
			return ids, err
		}
		// Those of just now among them.
		return q.ids(ctx, sqlDoneBefore, name, list(ids), token.String())
	})
}

// DoneTx implements taskqueue.Store; tx must be a *sql.Tx. As it has written, nobody
// else writes before its end.
func (q queueStore) DoneTx(ctx context.Context, tx any, name string, token driver.Token,
	_ time.Duration, ids []string) ([]string, error) {
	return q.inside(ctx, tx, sqlDoneTasks+" RETURNING id", q.ours(name, token, ids))
}

const sqlExtendTasks = `
UPDATE queue_tasks SET visible_ms = ?5 + ?7, visible_at = ?8, updated_at = ?6
WHERE ` + sqlOurs + `
RETURNING id`

// Extend implements taskqueue.Store.
func (q queueStore) Extend(ctx context.Context, name string, token driver.Token, hold time.Duration,
	ids []string) ([]string, error) {
	return q.change(ctx, sqlExtendTasks, func() []any {
		return q.ours(name, token, ids, hold.Milliseconds(), formatTime(q.s.now().Add(hold)))
	})
}

const sqlReleaseTasks = `
UPDATE queue_tasks
SET state = 'pending', token = NULL,
    boot_id = NULL, visible_ms = NULL, visible_at = NULL, updated_at = ?6
WHERE ` + sqlOurs + `
RETURNING id`

// Release implements taskqueue.Store.
func (q queueStore) Release(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	return q.change(ctx, sqlReleaseTasks, func() []any { return q.ours(name, token, ids) })
}

// A delay of 0 leaves the task where it was in the order; see queue_tasks_ready.
const sqlFailTask = `
UPDATE queue_tasks
SET state = CASE WHEN retries_left > 0 THEN 'pending' ELSE 'failed' END,
    retries_left = max(retries_left - 1, 0), token = NULL,
    boot_id    = CASE WHEN retries_left > 0 AND ?7 > 0 THEN ?4 END,
    visible_ms = CASE WHEN retries_left > 0 AND ?7 > 0 THEN ?5 + ?7 END,
    visible_at = CASE WHEN retries_left > 0 AND ?7 > 0 THEN ?8 END,
    last_error = nullif(?9, ''), updated_at = ?6
WHERE ` + sqlOurs

// Fail implements taskqueue.Store.
func (q queueStore) Fail(ctx context.Context, name string, token driver.Token, id, text string,
	delay time.Duration) (ended bool, err error) {
	return within(ctx, q.s.share, func(ctx context.Context, tx tx) (bool, error) {
		n, err := tx.exec(ctx, sqlFailTask, q.ours(name, token, []string{id}, ceilMillis(delay),
			formatTime(q.s.now().Add(delay)), text)...)
		return n > 0, err
	})
}

const sqlTask = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks WHERE queue = ?1 AND id = ?2`

// Get implements taskqueue.Store.
func (q queueStore) Get(ctx context.Context, name,
	id string) (info taskqueue.Info, found bool, err error) {
	var t columns.Task
	err = q.s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		return q.s.each(ctx, sqlTask, []any{name, id}, t.Dest(), func() error {
			info, found = t.Value(), true
			return nil
		})
	})
	return info, found && err == nil, err
}

// Each order is that of an index, so that a list reads no more than it returns.
const (
	sqlListReady = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks INDEXED BY queue_tasks_ready
WHERE queue = ?1 AND state = 'pending' AND visible_ms IS NULL ORDER BY seq LIMIT ?2`

	sqlListDelayed = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks INDEXED BY queue_tasks_waiting
WHERE queue = ?1 AND ` + sqlMayRun + ` AND state = 'pending' ORDER BY visible_at, seq LIMIT ?2`

	sqlListHeld = `
SELECT ` + columns.TaskColumns + ` FROM (
    SELECT seq, ` + columns.TaskColumns + ` FROM queue_tasks INDEXED BY queue_tasks_waiting
    WHERE queue = ?1 AND ` + sqlMayRun + ` AND state = 'in_progress'
    UNION ALL
    SELECT seq, ` + columns.TaskColumns + ` FROM queue_tasks INDEXED BY queue_tasks_last
    WHERE queue = ?1 AND ` + sqlExhausted + `
) ORDER BY visible_at, seq LIMIT ?2`

	sqlListEnded = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks INDEXED BY queue_tasks_ended
WHERE queue = ?1 AND state = ?3 AND state IN ('done', 'failed')
ORDER BY updated_at DESC, seq DESC LIMIT ?2`
)

// readLimit is how long a list or a count may keep the connection of the lock.
const readLimit = time.Second

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
	var t columns.Task
	err = q.read(ctx, func(ctx context.Context) error {
		for _, query := range queries {
			args := []any{name, limit - len(tasks)}
			if query == sqlListEnded {
				args = append(args, string(state))
			}
			err := q.s.each(ctx, query, args, t.Dest(), func() error {
				tasks = append(tasks, t.Value())
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return tasks, err
}

const sqlCountTasks = `
SELECT queue, sum(state = 'pending' AND (visible_at IS NULL OR visible_at <= ?1)),
       coalesce(sum(state = 'pending' AND visible_at > ?1), 0),
       sum(state = 'in_progress'), sum(state = 'done'), sum(state = 'failed')
FROM queue_tasks GROUP BY queue ORDER BY queue LIMIT 1000`

// Count implements taskqueue.Store.
func (q queueStore) Count(ctx context.Context) (counts []taskqueue.Count, err error) {
	var c taskqueue.Count
	err = q.read(ctx, func(ctx context.Context) error {
		return q.s.each(ctx, sqlCountTasks, []any{formatTime(q.s.now())}, []any{&c.Queue,
			&c.Pending, &c.Delayed, &c.InProgress, &c.Done, &c.Failed}, func() error {
			counts = append(counts, c)
			return nil
		})
	})
	return counts, err
}

// read reads, but not for long.
func (q queueStore) read(ctx context.Context, do func(context.Context) error) error {
	return q.s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, readLimit)
		defer cancel()
		return do(ctx)
	})
}

const sqlRequeueTasks = `
UPDATE queue_tasks SET state = 'pending', retries_left = ?2, token = NULL, updated_at = ?3
WHERE queue = +?1 AND id IN (SELECT value FROM json_each(?4)) AND +state IN ('done', 'failed')
RETURNING id`

// Requeue implements taskqueue.Store.
func (q queueStore) Requeue(ctx context.Context, name string, retries int,
	ids []string) ([]string, error) {
	return q.change(ctx, sqlRequeueTasks, func() []any {
		return []any{name, retries, formatTime(q.s.now()), list(ids)}
	})
}

const sqlPruneTasks = `
DELETE FROM queue_tasks WHERE seq IN (
    SELECT seq FROM queue_tasks INDEXED BY queue_tasks_ended
    WHERE queue = ?1 AND state IN ('done', 'failed') AND updated_at <= ?2 LIMIT ?3
)`

// Prune implements taskqueue.Store. The age is by the wall clock.
func (q queueStore) Prune(ctx context.Context, name string, olderThan time.Duration,
	limit int) (deleted int64, err error) {
	return within(ctx, q.s.write, func(ctx context.Context, tx tx) (int64, error) {
		return tx.exec(ctx, sqlPruneTasks, name, formatTime(q.s.now().Add(-olderThan)), limit)
	})
}

// ids runs a statement that returns ids; the turn is held.
func (q queueStore) ids(ctx context.Context, query string, args ...any) (ids []string, err error) {
	var id string
	err = q.s.each(ctx, query, args, []any{&id}, func() error {
		ids = append(ids, id)
		return nil
	})
	return ids, err
}

// list is the ids as json_each reads them.
func list(ids []string) string {
	text, _ := json.Marshal(ids) // strings, always possible
	return string(text)
}

// ceilMillis keeps a delay of less than a millisecond one.
func ceilMillis(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }
