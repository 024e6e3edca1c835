package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/schedlock"
)

// DefaultTimeout is how long a captured task is the worker's, unless it says
// more.
const DefaultTimeout = time.Minute

// The bounds of what a caller may ask for.
const (
	MinTimeout = 10 * time.Millisecond
	MaxTimeout = 24 * time.Hour
	MaxDelay   = 366 * 24 * time.Hour // of [Queues.Fail]
	MaxRetries = 1_000_000
	MaxLimit   = 10_000 // of [Queues.Capture]
)

// Queues are the queues in one database. A queue exists as soon as it has a
// task. All methods are safe for concurrent use.
type Queues struct {
	store   Store
	timeout time.Duration
}

// An Option sets something on New.
type Option func(*Queues) error

// WithTimeout sets for how long a captured or extended task is the worker's:
// whole milliseconds, from 10 ms to 24 h, default 1 min. It is the captor's
// own: workers with other time-outs may work on the same queue.
func WithTimeout(d time.Duration) Option {
	return func(q *Queues) error {
		if d < MinTimeout || d > MaxTimeout || d%time.Millisecond != 0 {
			return fmt.Errorf("option WithTimeout: %v is not a whole number of milliseconds from %v to %v", d, MinTimeout, MaxTimeout)
		}
		q.timeout = d
		return nil
	}
}

// New makes a handle on the queues in a store. It does not use the store yet.
func New(store Store, opts ...Option) (*Queues, error) {
	if store == nil {
		return nil, errors.New("queue: the Store is nil")
	}
	q := &Queues{store: store, timeout: DefaultTimeout}
	for _, opt := range opts {
		if err := opt(q); err != nil {
			return nil, fmt.Errorf("queue: %w", err)
		}
	}
	return q, nil
}

// Add adds tasks to a queue, pending, in the order of their ids, each with so
// many retries: with 0 it is attempted once, with 3 up to four times. An id
// that the queue has already, in whatever state, is not added again, and its
// task stays as it is: added are the ids that were not there, in their order,
// so len(added) == len(ids) says that all were new. To run a task again that
// has ended, take another id, or Prune it first.
//
// The names of queues and tasks have 1 to 200 bytes of UTF-8 without NUL.
func (q *Queues) Add(ctx context.Context, queue string, retries int, ids ...string) (added []string, err error) {
	return q.add(queue, retries, ids, func(unique []string) ([]string, error) {
		return q.store.Add(ctx, queue, retries, unique)
	})
}

// AddTx is Add in the caller's own transaction: the tasks are there when that
// has been committed, together with the rows that they are about. tx is a
// *sql.Tx, or on PostgreSQL also a pgx.Tx, on the store's database; the error
// wraps [ErrTx] if it is neither. After any error roll it back. Whoever adds
// the same id at the same time waits for the end of the transaction; on SQLite
// every other writer does.
func (q *Queues) AddTx(ctx context.Context, tx any, queue string, retries int, ids ...string) (added []string, err error) {
	return q.add(queue, retries, ids, func(unique []string) ([]string, error) {
		return q.store.AddTx(ctx, tx, queue, retries, unique)
	})
}

func (q *Queues) add(queue string, retries int, ids []string, add func([]string) ([]string, error)) ([]string, error) {
	errs := []error{checkName("the name of the queue", queue)}
	if retries < 0 || retries > MaxRetries {
		errs = append(errs, fmt.Errorf("%d retries are not from 0 to %d", retries, MaxRetries))
	}
	unique, seen := make([]string, 0, len(ids)), make(map[string]bool, len(ids))
	for _, id := range ids {
		errs = append(errs, checkName("the id of the task", id))
		if !seen[id] {
			unique, seen[id] = append(unique, id), true
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("queue: add: %w", err)
	}
	if len(unique) == 0 {
		return nil, nil
	}
	added, err := add(unique)
	if err != nil {
		return nil, fmt.Errorf("queue %q: add: %w", queue, err)
	}
	clear(seen)
	for _, id := range added {
		seen[id] = true
	}
	ordered := make([]string, 0, len(added))
	for _, id := range unique {
		if seen[id] {
			ordered = append(ordered, id)
		}
	}
	return ordered, nil
}

// Capture takes up to limit tasks of a queue, oldest first, for the time-out of
// this handle, and gives none of them to anybody else meanwhile. It does not
// wait for tasks. If it captures none the error wraps [ErrNone]: it is
// [ErrEmpty], [ErrAllHeld] or [ErrExhausted]. limit is from 1 to 10,000: take
// no more than can be done within the time-out.
//
// After an error whose outcome is unknown, such as a lost connection, tasks may
// be captured for nobody: they come back after the time-out, as if the worker
// had been lost.
func (q *Queues) Capture(ctx context.Context, queue string, limit int) ([]*Task, error) {
	err := checkName("the name of the queue", queue)
	if limit < 1 || limit > MaxLimit {
		err = errors.Join(err, fmt.Errorf("the limit %d is not from 1 to %d", limit, MaxLimit))
	}
	if err != nil {
		return nil, fmt.Errorf("queue: capture: %w", err)
	}
	token := schedlock.NewToken()
	sent := schedlock.StartStopwatch()
	infos, err := q.store.Capture(ctx, queue, token, q.timeout, limit)
	if err != nil {
		return nil, fmt.Errorf("queue %q: capture: %w", queue, err)
	}
	tasks := make([]*Task, len(infos))
	for i, info := range infos {
		tasks[i] = &Task{Info: info, token: token}
		tasks[i].hold(sent, q.timeout)
	}
	return tasks, nil
}

// Done ends tasks for good. When it has returned nil they are done, durably.
// With many tasks of one Capture it costs little more than with one. The error
// is a [*LostError] that names the tasks which are not ours any more, if the
// others are done. It may be repeated after any other error.
func (q *Queues) Done(ctx context.Context, tasks ...*Task) error {
	return q.each(tasks, "done", func(queue string, token schedlock.Token, ids []string) ([]string, error) {
		return q.store.Done(ctx, queue, token, ids)
	}, (*Task).end)
}

// Release gives tasks back that were not worked on: they are pending again, at
// their old place, and it costs no retry. Its errors are those of Done.
func (q *Queues) Release(ctx context.Context, tasks ...*Task) error {
	return q.each(tasks, "release", func(queue string, token schedlock.Token, ids []string) ([]string, error) {
		return q.store.Release(ctx, queue, token, ids)
	}, (*Task).end)
}

// Extend lets the time-out of tasks begin anew. It never brings a task back
// whose time-out has passed. Its errors are those of Done.
func (q *Queues) Extend(ctx context.Context, tasks ...*Task) error {
	sent := schedlock.StartStopwatch()
	return q.each(tasks, "extend", func(queue string, token schedlock.Token, ids []string) ([]string, error) {
		return q.store.Extend(ctx, queue, token, q.timeout, ids)
	}, func(t *Task) { t.hold(sent, q.timeout) })
}

// Fail ends an attempt that has failed: the task is pending again once the
// delay has passed (from 0 to 366 days), which costs a retry, or it is failed
// if none is left. The first 1,000 characters of the cause's text stay with it.
// The error is a [*LostError] if the task is not ours any more.
func (q *Queues) Fail(ctx context.Context, task *Task, cause error, delay time.Duration) error {
	if delay < 0 || delay > MaxDelay {
		return fmt.Errorf("queue %q: fail: the delay %v is not from 0 to %v", task.Queue, delay, MaxDelay)
	}
	text := ""
	if cause != nil {
		text = clean(cause.Error())
	}
	ended, err := q.store.Fail(ctx, task.Queue, task.token, task.ID, text, delay)
	if err != nil {
		return fmt.Errorf("queue %q: fail: %w", task.Queue, err)
	}
	task.end()
	if !ended {
		return &LostError{Tasks: []*Task{task}}
	}
	return nil
}

// each calls do for the tasks of each capture, and then succeeded for each task
// for which it did what it should.
func (q *Queues) each(tasks []*Task, what string, do func(queue string, token schedlock.Token, ids []string) ([]string, error), succeeded func(*Task)) error {
	type capture struct {
		queue string
		token schedlock.Token
	}
	var (
		order  []capture
		groups = map[capture][]*Task{}
		errs   []error
		lost   []*Task
	)
	for _, t := range tasks {
		c := capture{t.Queue, t.token}
		if groups[c] == nil {
			order = append(order, c)
		}
		groups[c] = append(groups[c], t)
	}
	for _, c := range order {
		ids := make([]string, len(groups[c]))
		for i, t := range groups[c] {
			ids[i] = t.ID
		}
		did, err := do(c.queue, c.token, ids)
		if err != nil {
			errs = append(errs, fmt.Errorf("queue %q: %s: %w", c.queue, what, err))
			continue
		}
		is := make(map[string]bool, len(did))
		for _, id := range did {
			is[id] = true
		}
		for _, t := range groups[c] {
			if is[t.ID] {
				succeeded(t)
			} else {
				t.end()
				lost = append(lost, t)
			}
		}
	}
	if len(lost) > 0 {
		errs = append(errs, &LostError{Tasks: lost})
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Get returns what the database knows of a task; found is false if the queue
// has none with that id.
func (q *Queues) Get(ctx context.Context, queue, id string) (info Info, found bool, err error) {
	if err := errors.Join(checkName("the name of the queue", queue), checkName("the id of the task", id)); err != nil {
		return Info{}, false, fmt.Errorf("queue: get: %w", err)
	}
	info, found, err = q.store.Get(ctx, queue, id)
	if err != nil {
		return Info{}, false, fmt.Errorf("queue %q: get: %w", queue, err)
	}
	return info, found, nil
}

// Prune deletes tasks of a queue that are done or failed, and have been so for
// olderThan at least, by the database's clock; at most batch of them, so that
// it holds up nobody for long: call it again while deleted == batch. The ids
// can then be added anew.
func (q *Queues) Prune(ctx context.Context, queue string, olderThan time.Duration, batch int) (deleted int64, err error) {
	err = checkName("the name of the queue", queue)
	if olderThan < 0 {
		err = errors.Join(err, fmt.Errorf("the age %v is negative", olderThan))
	}
	if batch < 1 {
		err = errors.Join(err, fmt.Errorf("the batch %d is below 1", batch))
	}
	if err != nil {
		return 0, fmt.Errorf("queue: prune: %w", err)
	}
	if deleted, err = q.store.Prune(ctx, queue, olderThan, batch); err != nil {
		return 0, fmt.Errorf("queue %q: prune: %w", queue, err)
	}
	return deleted, nil
}
