package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// queueStore keeps tasks in table queue_tasks. Its statements ask for the time by
// UTC_TIMESTAMP, since some run in sessions of the app, which may have another time zone.
// MariaDB sets the columns from left to right: what others depend on comes last.
type queueStore struct{ s *Store }

// Queue returns the store of the task queues in this database, for queue.New. It shares
// a small pool with named locks.
func (s *Store) Queue() taskqueue.Store { return queueStore{s} }

// sqlAddTasks inserts in the order of the list. IGNORE leaves those alone that are there
// already; all else that it might hide was checked before.
const (
	sqlAddTasks = `
INSERT IGNORE INTO %s.queue_tasks
    (queue, id, state, retries_left, visible_at, created_at, updated_at)
VALUES %s
RETURNING id`

	sqlNewTask = `
(?, ?, 'pending', ?, CASE WHEN ? > 0 THEN UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND END,
 UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))`

	// addAtOnce keeps the statement of an app's session below 65,535 placeholders.
	addAtOnce = 1000
)

// Add implements taskqueue.Store.
func (q queueStore) Add(ctx context.Context, name string, retries int,
	ids []string) ([]string, error) {
	return q.AddAfter(ctx, nil, name, retries, 0, ids)
}

// AddTx implements taskqueue.Store; t must be a *sql.Tx.
func (q queueStore) AddTx(ctx context.Context, t any, name string, retries int,
	ids []string) ([]string, error) {
	var added []string
	err := q.inside(ctx, t, func(t tx) (err error) {
		added, err = q.add(ctx, t, name, retries, 0, ids)
		return err
	}, slices.Concat(ids, []string{name})...)
	return added, err
}

// AddAfter implements taskqueue.Store. While another transaction has added one of the
// ids it waits for that.
func (q queueStore) AddAfter(ctx context.Context, t any, name string, retries int,
	delay time.Duration, ids []string) (added []string, err error) {
	add := func(t tx) (err error) {
		added, err = q.add(ctx, t, name, retries, delay, ids)
		return err
	}
	if t != nil {
		err = q.inside(ctx, t, add, slices.Concat(ids, []string{name})...)
		return added, err
	}
	err = q.write(ctx, func(_ context.Context, t tx) error { return add(t) })
	return added, err
}

func (q queueStore) add(ctx context.Context, t tx, name string, retries int,
	delay time.Duration, ids []string) (added []string, err error) {
	us := ceilMicros(delay)
	for some := range slices.Chunk(ids, addAtOnce) {
		var args []any
		for _, id := range some {
			args = append(args, name, id, retries, us, us)
		}
		rows := strings.Repeat(sqlNewTask+",", len(some)-1) + sqlNewTask
		list, err := t.ids(ctx, fmt.Sprintf(sqlAddTasks, quote(q.s.config.DBName), rows), args...)
		if err != nil {
			return nil, err
		}
		added = append(added, list...)
	}
	return added, nil
}

// ceilMicros keeps a delay of less than a microsecond one.
func ceilMicros(d time.Duration) int64 { return (d + time.Microsecond - 1).Microseconds() }

// inside calls f, which sends texts, with a transaction of the caller's, if the server still
// has it.
func (q queueStore) inside(ctx context.Context, t any, f func(tx) error, texts ...string) error {
	return q.s.explainTheirs(inside(t, taskqueue.ErrTx, func(t tx) error {
		if err := t.takes(ctx, texts...); err != nil {
			return err
		}
		return f(t)
	}))
}

// write runs f in a transaction, and again while that of somebody else is in its way.
func (q queueStore) write(ctx context.Context, f func(context.Context, tx) error) error {
	ctx, cancel := bounded.Context(ctx, statementTimeout)
	defer cancel()
	for {
		err := q.s.patient.write(ctx, f)
		if number(err) != errLockTimeout || ctx.Err() != nil {
			return q.s.explain(err)
		}
	}
}

// ids runs a statement that returns ids.
func (t tx) ids(ctx context.Context, query string, args ...any) ([]string, error) {
	var id string
	rows, err := t.QueryContext(ctx, query, args...)
	return columns.All(rows, err, []any{&id}, func() string { return id })
}

// in is a list of ids as SQL has it, and its arguments after those given.
func in(ids []string, args ...any) (string, []any) {
	for _, id := range ids {
		args = append(args, id)
	}
	return "(" + strings.Repeat("?, ", max(len(ids)-1, 0)) + "?)", args
}

const (
	// sqlOurs finds the tasks of a list that are the token's, and keeps them.
	sqlOurs = `
SELECT t.id FROM %[1]s.queue_tasks t
WHERE t.queue = ? AND t.token = ? AND t.state = 'in_progress'
  AND t.visible_at > UTC_TIMESTAMP(6) AND t.id IN %[2]s FOR UPDATE`

	sqlDoneTasks = `
UPDATE %[1]s.queue_tasks
SET state = 'done', visible_at = NULL, updated_at = UTC_TIMESTAMP(6)
WHERE queue = ? AND id IN %[2]s`

	sqlDoneBefore = `
SELECT t.id FROM queue_tasks t
WHERE t.queue = ? AND t.token = ? AND t.state = 'done' AND t.id IN %s`
)

// change changes those of the tasks that a query finds, and returns their ids. first are
// the arguments of the update that come first.
func (q queueStore) change(ctx context.Context, t tx, find string, found []any, update string,
	first []any, name string, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	database := quote(q.s.config.DBName)
	list, args := in(ids, found...)
	ids, err := t.ids(ctx, fmt.Sprintf(find, database, list), args...)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	list, args = in(ids, append(first, name)...)
	_, err = t.exec(ctx, fmt.Sprintf(update, database, list), args...)
	return ids, err
}

// ours changes those of the tasks that are the token's.
func (q queueStore) ours(ctx context.Context, t tx, update string, first []any, name string,
	token driver.Token, ids []string) ([]string, error) {
	return q.change(ctx, t, sqlOurs, []any{name, token.String()}, update, first, name, ids)
}

// Done implements taskqueue.Store. Only if it misses some does it look for those that
// were done before.
func (q queueStore) Done(ctx context.Context, name string, token driver.Token,
	ids []string) (done []string, err error) {
	err = q.write(ctx, func(ctx context.Context, t tx) (err error) {
		done, err = q.ours(ctx, t, sqlDoneTasks, nil, name, token, ids)
		if err != nil || len(done) == len(ids) {
			return err
		}
		list, args := in(ids, name, token.String())
		done, err = t.ids(ctx, fmt.Sprintf(sqlDoneBefore, list), args...)
		return err
	})
	return done, err
}

// DoneTx implements taskqueue.Store; t must be a *sql.Tx. It locks the rows, which
// Capture passes over then. The server ends the transaction after the app's own
// idle_transaction_timeout, not after hold.
func (q queueStore) DoneTx(ctx context.Context, t any, name string, token driver.Token,
	_ time.Duration, ids []string) (done []string, err error) {
	err = q.inside(ctx, t, func(t tx) (err error) {
		done, err = q.ours(ctx, t, sqlDoneTasks, nil, name, token, ids)
		return err
	}, slices.Concat(ids, []string{name})...)
	return done, err
}

// update is ours in a transaction of the store's own.
func (q queueStore) update(ctx context.Context, update string, first []any, name string,
	token driver.Token, ids []string) (changed []string, err error) {
	err = q.write(ctx, func(ctx context.Context, t tx) (err error) {
		changed, err = q.ours(ctx, t, update, first, name, token, ids)
		return err
	})
	return changed, err
}

const sqlExtendTasks = `
UPDATE %[1]s.queue_tasks
SET visible_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, updated_at = UTC_TIMESTAMP(6)
WHERE queue = ? AND id IN %[2]s`

// Extend implements taskqueue.Store.
func (q queueStore) Extend(ctx context.Context, name string, token driver.Token, hold time.Duration,
	ids []string) ([]string, error) {
	return q.update(ctx, sqlExtendTasks, []any{hold.Microseconds()}, name, token, ids)
}

const sqlReleaseTasks = `
UPDATE %[1]s.queue_tasks
SET state = 'pending', token = NULL, visible_at = NULL, updated_at = UTC_TIMESTAMP(6)
WHERE queue = ? AND id IN %[2]s`

// Release implements taskqueue.Store.
func (q queueStore) Release(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	return q.update(ctx, sqlReleaseTasks, nil, name, token, ids)
}

// A delay of 0 leaves the task where it was in the order; see queue_tasks_ready.
const sqlFailTask = `
UPDATE %[1]s.queue_tasks
SET visible_at = CASE WHEN retries_left > 0 AND ? > 0
                      THEN UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND END,
    state = CASE WHEN retries_left > 0 THEN 'pending' ELSE 'failed' END,
    retries_left = greatest(retries_left - 1, 0), token = NULL,
    last_error = nullif(?, ''), updated_at = UTC_TIMESTAMP(6)
WHERE queue = ? AND id IN %[2]s`

// Fail implements taskqueue.Store.
func (q queueStore) Fail(ctx context.Context, name string, token driver.Token, id, text string,
	delay time.Duration) (ended bool, err error) {
	us := ceilMicros(delay)
	ids, err := q.update(ctx, sqlFailTask, []any{us, us, text}, name, token, []string{id})
	return len(ids) > 0 && err == nil, err
}

const sqlTask = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks WHERE queue = ? AND id = ?`

// Get implements taskqueue.Store.
func (q queueStore) Get(ctx context.Context, name,
	id string) (info taskqueue.Info, found bool, err error) {
	var t columns.Task
	err = q.s.shared.row(ctx, sqlTask, []any{name, id}, t.Dest()...)
	if errors.Is(err, sql.ErrNoRows) {
		return taskqueue.Info{}, false, nil
	}
	return t.Value(), err == nil, q.s.explain(err)
}

// Each order is that of an index, so that a list reads no more than it returns.
const (
	sqlListReady = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks
WHERE queue = ? AND state = ? AND visible_at IS NULL ORDER BY seq LIMIT ?`

	sqlListTimed = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks
WHERE queue = ? AND state = ? AND visible_at IS NOT NULL ORDER BY visible_at, seq LIMIT ?`

	sqlListEnded = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks
WHERE queue = ? AND state = ? ORDER BY updated_at DESC, seq DESC LIMIT ?`
)

// List implements taskqueue.Store.
func (q queueStore) List(ctx context.Context, name string, state taskqueue.State,
	limit int) (tasks []taskqueue.Info, err error) {
	queries := []string{sqlListEnded}
	switch state {
	case taskqueue.Pending:
		queries = []string{sqlListReady, sqlListTimed}
	case taskqueue.InProgress:
		queries = []string{sqlListTimed}
	}
	for _, query := range queries {
		var t columns.Task
		more, err := all(ctx, q.s, q.s.shared, t.Dest(), t.Value, query, name, string(state),
			limit-len(tasks))
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, more...)
	}
	return tasks, nil
}

const sqlCountTasks = `
SELECT queue, sum(state = 'pending' AND coalesce(visible_at <= UTC_TIMESTAMP(6), true)),
       sum(state = 'pending' AND coalesce(visible_at > UTC_TIMESTAMP(6), false)),
       sum(state = 'in_progress'), sum(state = 'done'), sum(state = 'failed')
FROM queue_tasks GROUP BY queue ORDER BY queue LIMIT 1000`

// Count implements taskqueue.Store.
func (q queueStore) Count(ctx context.Context) ([]taskqueue.Count, error) {
	var c taskqueue.Count
	return all(ctx, q.s, q.s.shared, []any{&c.Queue, &c.Pending, &c.Delayed, &c.InProgress,
		&c.Done, &c.Failed}, func() taskqueue.Count { return c }, sqlCountTasks)
}

const (
	sqlEndedTasks = `
SELECT t.id FROM %[1]s.queue_tasks t
WHERE t.queue = ? AND t.state IN ('done', 'failed') AND t.id IN %[2]s FOR UPDATE`

	sqlRequeueTasks = `
UPDATE %[1]s.queue_tasks
SET state = 'pending', retries_left = ?, token = NULL, updated_at = UTC_TIMESTAMP(6)
WHERE queue = ? AND id IN %[2]s`
)

// Requeue implements taskqueue.Store.
func (q queueStore) Requeue(ctx context.Context, name string, retries int,
	ids []string) (requeued []string, err error) {
	err = q.write(ctx, func(ctx context.Context, t tx) (err error) {
		requeued, err = q.change(ctx, t, sqlEndedTasks, []any{name}, sqlRequeueTasks,
			[]any{retries}, name, ids)
		return err
	})
	return requeued, err
}

const sqlPruneTasks = `
DELETE FROM queue_tasks
WHERE queue = ? AND state = ? AND updated_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
ORDER BY updated_at LIMIT ?`

// Prune implements taskqueue.Store.
func (q queueStore) Prune(ctx context.Context, name string, olderThan time.Duration,
	limit int) (deleted int64, err error) {
	for _, state := range []taskqueue.State{taskqueue.Done, taskqueue.Failed} {
		n, err := q.s.shared.exec(ctx, sqlPruneTasks, name, string(state),
			olderThan.Microseconds(), int64(limit)-deleted)
		if err != nil {
			return deleted, q.s.explain(err)
		}
		deleted += n
	}
	return deleted, nil
}
