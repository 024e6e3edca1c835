package mysql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// A capture locks what it chooses before it writes it, and passes over what others have
// locked: so no two take the same task, and none waits. Each choice reads one range of
// queue_tasks_ready. Of each kind as many as the limit are locked, and the oldest of all
// are taken.
const (
	sqlExhausted = `
SELECT t.id FROM queue_tasks t
WHERE t.queue = ? AND t.state = 'in_progress' AND t.visible_at <= UTC_TIMESTAMP(6)
  AND t.retries_left = 0
ORDER BY t.visible_at LIMIT 1000 FOR UPDATE SKIP LOCKED`

	sqlDue = `
SELECT t.seq, t.id FROM queue_tasks t
WHERE t.queue = ? AND t.state = ? AND t.visible_at <= UTC_TIMESTAMP(6)
  AND (t.state = 'pending' OR t.retries_left > 0)
ORDER BY t.visible_at LIMIT ? FOR UPDATE SKIP LOCKED`

	sqlReady = `
SELECT t.seq, t.id FROM queue_tasks t
WHERE t.queue = ? AND t.state = ? AND t.visible_at IS NULL
ORDER BY t.seq LIMIT ? FOR UPDATE SKIP LOCKED`

	sqlBuryTasks = `
UPDATE queue_tasks
SET state = 'failed', token = NULL, visible_at = NULL, last_error = ?,
    updated_at = UTC_TIMESTAMP(6)
WHERE queue = ? AND id IN %s`

	sqlCaptureTasks = `
UPDATE queue_tasks
SET last_error = CASE state WHEN 'in_progress' THEN ? ELSE last_error END,
    retries_left = retries_left - (state = 'in_progress'), attempts = attempts + 1, token = ?,
    visible_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, updated_at = UTC_TIMESTAMP(6),
    state = 'in_progress'
WHERE queue = ? AND id IN %s`

	sqlCaptured = `
SELECT ` + columns.TaskColumns + ` FROM queue_tasks WHERE queue = ? AND id IN %s ORDER BY seq`

	sqlWhyNoTask = `
SELECT EXISTS (SELECT 1 FROM queue_tasks t WHERE t.queue = ? AND t.state = 'pending')
    OR EXISTS (SELECT 1 FROM queue_tasks t WHERE t.queue = ? AND t.state = 'in_progress'
               AND (t.retries_left > 0 OR t.visible_at > UTC_TIMESTAMP(6)))`
)

// Capture implements taskqueue.Store.
func (q queueStore) Capture(ctx context.Context, name string, token driver.Token,
	hold time.Duration, limit int) (tasks []taskqueue.Info, err error) {
	q.s.mending.Due(name, func() { q.mend(ctx, name) })
	var held, failed bool
	err = q.write(ctx, func(ctx context.Context, t tx) error {
		lost, err := t.ids(ctx, sqlExhausted, name)
		if failed = len(lost) > 0; err == nil && failed {
			list, args := in(lost, taskqueue.LostWorker, name)
			_, err = t.exec(ctx, fmt.Sprintf(sqlBuryTasks, list), args...)
		}
		if err != nil {
			return err
		}
		ids, err := oldest(ctx, t, name, limit)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			tasks = nil
			return t.row(ctx, sqlWhyNoTask, []any{name, name}, &held)
		}
		list, args := in(ids, taskqueue.LostWorker, token.String(), hold.Microseconds(), name)
		if _, err := t.exec(ctx, fmt.Sprintf(sqlCaptureTasks, list), args...); err != nil {
			return err
		}
		var c columns.Task
		list, args = in(ids, name)
		rows, err := t.QueryContext(ctx, fmt.Sprintf(sqlCaptured, list), args...)
		tasks, err = columns.All(rows, err, c.Dest(), c.Value)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case len(tasks) > 0:
		return tasks, nil
	case held:
		return nil, taskqueue.ErrAllHeld
	case failed:
		return nil, taskqueue.ErrExhausted
	}
	return nil, taskqueue.ErrEmpty
}

// oldest chooses tasks that can be captured.
func oldest(ctx context.Context, t tx, name string, limit int) (ids []string, err error) {
	type task struct {
		seq int64
		id  string
	}
	var (
		found []task
		one   task
	)
	for _, choice := range []struct {
		query string
		state taskqueue.State
	}{{sqlReady, taskqueue.Pending}, {sqlDue, taskqueue.Pending}, {sqlDue, taskqueue.InProgress}} {
		rows, err := t.QueryContext(ctx, choice.query, name, string(choice.state), limit)
		if err := columns.Each(rows, err, []any{&one.seq, &one.id}, func() error {
			found = append(found, one)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(found, func(a, b task) int { return cmp.Compare(a.seq, b.seq) })
	for _, task := range found[:min(limit, len(found))] {
		ids = append(ids, task.id)
	}
	return ids, nil
}

const (
	sqlAhead = `
SELECT t.id FROM queue_tasks t
WHERE t.queue = ? AND t.state IN ('pending', 'in_progress')
  AND t.visible_at > UTC_TIMESTAMP(6) AND t.updated_at > UTC_TIMESTAMP(6)
ORDER BY t.visible_at LIMIT 1000 FOR UPDATE SKIP LOCKED`

	sqlMendTasks = `
UPDATE queue_tasks
SET visible_at = UTC_TIMESTAMP(6)
        + INTERVAL timestampdiff(MICROSECOND, updated_at, visible_at) MICROSECOND,
    updated_at = UTC_TIMESTAMP(6)
WHERE queue = ? AND id IN %s`
)

// mend begins the time-outs and delays anew of which more is left than their whole
// length: each was set when updated_at was, so the clock was set back since. Who has such
// a task has written it before now, by any clock: so its own clock ends it before. If it
// cannot, the capture that follows cannot either, or says why.
func (q queueStore) mend(ctx context.Context, name string) {
	_ = q.s.shared.write(ctx, func(ctx context.Context, t tx) error {
		ids, err := t.ids(ctx, sqlAhead, name)
		if err == nil && len(ids) > 0 {
			list, args := in(ids, name)
			_, err = t.exec(ctx, fmt.Sprintf(sqlMendTasks, list), args...)
		}
		return err
	})
}
