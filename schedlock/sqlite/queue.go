package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks/queue"
)

// queueStore keeps tasks in table queue_tasks. Calls that come together share a
// transaction; see batch.
type queueStore struct{ s *Store }

// Queue returns the store of the task queues in this file, for queue.New. It
// uses the connection of the lock, so its transactions are short. A call that
// finds the file busy for half a second fails, and may be repeated.
func (s *Store) Queue() queue.Store { return queueStore{s} }

// sqlAddTasks inserts in the order of the list.
const sqlAddTasks = `
INSERT INTO queue_tasks (queue, id, state, retries_left, created_at, updated_at)
SELECT ?1, value, 'pending', ?2, ?3, ?3 FROM json_each(?4) WHERE true
ON CONFLICT (queue, id) DO NOTHING
RETURNING id`

// Add implements queue.Store.
func (q queueStore) Add(ctx context.Context, name string, retries int, ids []string) (added []string, err error) {
	err = q.s.share(ctx, func(ctx context.Context, tx tx) error {
		added, err = q.ids(ctx, tx, sqlAddTasks, name, retries, formatTime(q.s.now()), list(ids))
		return err
	})
	return added, q.explain(err)
}

// AddTx implements queue.Store; tx must be a *sql.Tx.
func (q queueStore) AddTx(ctx context.Context, tx any, name string, retries int, ids []string) (added []string, err error) {
	t, ok := tx.(*sql.Tx)
	if !ok {
		return nil, fmt.Errorf("%w: it is a %T, not a *sql.Tx", queue.ErrTx, tx)
	}
	rows, err := t.QueryContext(ctx, sqlAddTasks, name, retries, formatTime(q.s.now()), list(ids))
	if err != nil {
		return nil, q.explain(q.s.explain(err))
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, q.explain(q.s.explain(err))
		}
		added = append(added, id)
	}
	return added, q.explain(q.s.explain(rows.Err()))
}

const (
	// sqlOurs finds the tasks of a list that are the token's. The plus signs keep
	// SQLite from reading all that is held instead.
	sqlOurs = `queue = +?1 AND id IN (SELECT value FROM json_each(?2)) AND token = +?3
  AND +state = 'in_progress' AND +boot_id = +?4 AND +visible_ms > +?5`

	sqlDoneTasks = `
UPDATE queue_tasks SET state = 'done', boot_id = NULL, visible_ms = NULL, visible_at = NULL, updated_at = ?6
WHERE ` + sqlOurs

	sqlDoneBefore = `
SELECT id FROM queue_tasks
WHERE queue = ?1 AND id IN (SELECT value FROM json_each(?2)) AND token = ?3 AND +state = 'done'`
)

// Done implements queue.Store. Which tasks it has ended it asks only if it has
// not ended all.
func (q queueStore) Done(ctx context.Context, name string, token schedlock.Token, ids []string) (done []string, err error) {
	err = q.s.share(ctx, func(ctx context.Context, tx tx) error {
		ms, boot := bootNow()
		n, err := tx.exec(ctx, sqlDoneTasks, name, list(ids), token.String(), boot, ms, formatTime(q.s.now()))
		if err != nil {
			return err
		}
		if done = ids; n == int64(len(ids)) {
			return nil
		}
		// Those of just now among them.
		done, err = q.ids(ctx, tx, sqlDoneBefore, name, list(ids), token.String())
		return err
	})
	return done, q.explain(err)
}

const sqlExtendTasks = `
UPDATE queue_tasks SET visible_ms = ?5 + ?7, visible_at = ?8, updated_at = ?6
WHERE ` + sqlOurs + `
RETURNING id`

// Extend implements queue.Store.
func (q queueStore) Extend(ctx context.Context, name string, token schedlock.Token, hold time.Duration, ids []string) (extended []string, err error) {
	err = q.s.share(ctx, func(ctx context.Context, tx tx) error {
		now := q.s.now()
		ms, boot := bootNow()
		extended, err = q.ids(ctx, tx, sqlExtendTasks, name, list(ids), token.String(), boot, ms, formatTime(now), millis(hold), formatTime(now.Add(hold)))
		return err
	})
	return extended, q.explain(err)
}

const sqlReleaseTasks = `
UPDATE queue_tasks SET state = 'pending', token = NULL, boot_id = NULL, visible_ms = NULL, visible_at = NULL, updated_at = ?6
WHERE ` + sqlOurs + `
RETURNING id`

// Release implements queue.Store.
func (q queueStore) Release(ctx context.Context, name string, token schedlock.Token, ids []string) (released []string, err error) {
	err = q.s.share(ctx, func(ctx context.Context, tx tx) error {
		ms, boot := bootNow()
		released, err = q.ids(ctx, tx, sqlReleaseTasks, name, list(ids), token.String(), boot, ms, formatTime(q.s.now()))
		return err
	})
	return released, q.explain(err)
}

// A delay of 0 leaves the task where it was in the order; see queue_tasks_ready.
const sqlFailTask = `
UPDATE queue_tasks
SET state = CASE WHEN retries_left > 0 THEN 'pending' ELSE 'failed' END, retries_left = max(retries_left - 1, 0), token = NULL,
    boot_id    = CASE WHEN retries_left > 0 AND ?7 > 0 THEN ?4 END,
    visible_ms = CASE WHEN retries_left > 0 AND ?7 > 0 THEN ?5 + ?7 END,
    visible_at = CASE WHEN retries_left > 0 AND ?7 > 0 THEN ?8 END,
    last_error = ?9, updated_at = ?6
WHERE ` + sqlOurs

// Fail implements queue.Store.
func (q queueStore) Fail(ctx context.Context, name string, token schedlock.Token, id, text string, delay time.Duration) (ended bool, err error) {
	err = q.s.share(ctx, func(ctx context.Context, tx tx) error {
		now := q.s.now()
		ms, boot := bootNow()
		n, err := tx.exec(ctx, sqlFailTask, name, list([]string{id}), token.String(), boot, ms, formatTime(now),
			ceilMillis(delay), formatTime(now.Add(delay)), nullText(text))
		ended = n > 0
		return err
	})
	return ended && err == nil, q.explain(err)
}

const (
	taskColumns = `queue, id, state, attempts, retries_left, visible_at, last_error, created_at, updated_at`

	sqlTask = `
SELECT seq, ` + taskColumns + ` FROM queue_tasks WHERE queue = ?1 AND id = ?2`
)

// Get implements queue.Store.
func (q queueStore) Get(ctx context.Context, name, id string) (info queue.Info, found bool, err error) {
	err = q.s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		return q.s.each(ctx, sqlTask, []any{name, id}, func(r *sql.Rows) (err error) {
			var seq int64
			found = true
			info, err = scanTask(r, &seq)
			return err
		})
	})
	return info, found && err == nil, q.explain(q.s.explain(err))
}

const sqlPruneTasks = `
DELETE FROM queue_tasks WHERE seq IN (
    SELECT seq FROM queue_tasks INDEXED BY queue_tasks_ended WHERE queue = ?1 AND state IN ('done', 'failed') AND updated_at <= ?2 LIMIT ?3
)`

// Prune implements queue.Store. The age is by the wall clock.
func (q queueStore) Prune(ctx context.Context, name string, olderThan time.Duration, limit int) (deleted int64, err error) {
	err = q.s.write(ctx, func(ctx context.Context, tx tx) error {
		deleted, err = tx.exec(ctx, sqlPruneTasks, name, formatTime(q.s.now().Add(-olderThan)), limit)
		return err
	})
	if err != nil {
		return 0, q.explain(err)
	}
	return deleted, nil
}

// ids runs a statement that returns ids.
func (q queueStore) ids(ctx context.Context, tx tx, query string, args ...any) (ids []string, err error) {
	err = tx.s.each(ctx, query, args, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// list is the ids as json_each reads them.
func list(ids []string) string {
	text, _ := json.Marshal(ids) // strings, always possible
	return string(text)
}

// ceilMillis keeps a delay of less than a millisecond one.
func ceilMillis(d time.Duration) int64 { return millis(d + time.Millisecond - 1) }

// scanTask reads seq and taskColumns. Its times only inform.
func scanTask(rows *sql.Rows, seq *int64) (queue.Info, error) {
	var (
		t                queue.Info
		state            string
		visible, errText sql.NullString
		created, updated string
	)
	err := rows.Scan(seq, &t.Queue, &t.ID, &state, &t.Attempts, &t.RetriesLeft, &visible, &errText, &created, &updated)
	t.State, t.VisibleAt, t.LastError = queue.State(state), stamp(visible.String), errText.String
	t.AddedAt, t.UpdatedAt = stamp(created), stamp(updated)
	return t, err
}

// explain adds what to do where the table is missing.
func (q queueStore) explain(err error) error {
	if err != nil && strings.Contains(err.Error(), "no such table: queue_tasks") {
		return fmt.Errorf("%w; its migrations were not run (migrations.Up)", err)
	}
	return err
}
