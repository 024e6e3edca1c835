package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// defaultTimeout is how long a captured task is the worker's, unless it says
// more.
const defaultTimeout = time.Minute

// The bounds of what a caller may ask for.
const (
	minTimeout = 10 * time.Millisecond
	maxTimeout = 24 * time.Hour
	maxDelay   = 366 * 24 * time.Hour // of [Queues.Fail] and [Queues.AddAfter]
)

const (
	// MaxRetries is how many retries a task may have.
	MaxRetries = 1_000_000
	// MaxLimit is how many tasks one call of [Queues.Capture] or [Queues.List] may return.
	MaxLimit = 10_000
)

// Queues are the queues in one database. A queue exists as soon as it has a
// task. All methods are safe for concurrent use.
type Queues struct {
	store   taskqueue.Store
	timeout time.Duration
}

// An Option sets something on New.
type Option func(*Queues) error

// WithTimeout sets for how long a captured or extended task is the worker's:
// whole milliseconds, from 10 ms to 24 h, default 1 min. It is the captor's
// own: workers with other time-outs may work on the same queue.
func WithTimeout(d time.Duration) Option {
	return func(q *Queues) error {
		if d < minTimeout || d > maxTimeout || d%time.Millisecond != 0 {
			return fmt.Errorf("time-out %v is not a whole number of milliseconds "+
				"from %v to %v", d, minTimeout, maxTimeout)
		}
		q.timeout = d
		return nil
	}
}

// New makes a handle on the queues in a store. It touches no database. The error
// names every option that is wrong, with its value and the rule.
func New(store taskqueue.Store, opts ...Option) (*Queues, error) {
	q := &Queues{store: store, timeout: defaultTimeout}
	var errs []error
	if store == nil {
		errs = append(errs, errors.New("store is nil"))
	}
	for _, opt := range opts {
		errs = append(errs, opt(q))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	return q, nil
}

// Add adds tasks to a queue, pending, in the order of their ids, each with so
// many retries, from 0 to 1,000,000: with 0 it is attempted once, with 3 up to
// four times. An id
// that the queue has already, in whatever state, is not added again, and its
// task stays as it is: added are the ids that were not there, in their order,
// so len(added) == len(ids) says that all were new. To run a task again that
// has ended, take another id, or Prune it first.
//
// The names of queues and tasks have 1 to 200 bytes of UTF-8 without control
// characters and those that set the direction of writing.
func (q *Queues) Add(ctx context.Context, queue string, retries int,
	ids ...string) (added []string, err error) {
	return q.add("add", queue, retries, ids, func(unique []string) ([]string, error) {
		return q.store.Add(ctx, queue, retries, unique)
	})
}

// AddTx is Add in the caller's own transaction: the tasks are there when that
// has been committed, together with the rows that they are about. tx is a
// *sql.Tx, or on PostgreSQL also a pgx.Tx, on the store's database; the error
// wraps [ErrTx] if it is neither. After any error roll it back. Whoever adds
// the same id at the same time waits for the end of the transaction: on
// PostgreSQL until its own context ends, or for 10 s if that has no deadline. On
// SQLite every other writer waits.
func (q *Queues) AddTx(ctx context.Context, tx any, queue string, retries int,
	ids ...string) (added []string, err error) {
	return q.add("add", queue, retries, ids, func(unique []string) ([]string, error) {
		return q.store.AddTx(ctx, tx, queue, retries, unique)
	})
}

// AddAfter is Add of tasks that nobody captures before the delay has passed,
// from 0 to 366 days, by the database's clock. Then they have their place by
// when they were added.
func (q *Queues) AddAfter(ctx context.Context, queue string, delay time.Duration, retries int,
	ids ...string) (added []string, err error) {
	return q.addAfter(ctx, nil, queue, delay, retries, ids)
}

// AddAfterTx is [Queues.AddAfter] in the caller's own transaction, as AddTx is Add.
func (q *Queues) AddAfterTx(ctx context.Context, tx any, queue string, delay time.Duration,
	retries int, ids ...string) (added []string, err error) {
	if tx == nil {
		return nil, fmt.Errorf("queue %q: add: %w: it is nil", queue, ErrTx)
	}
	return q.addAfter(ctx, tx, queue, delay, retries, ids)
}

func (q *Queues) addAfter(ctx context.Context, tx any, queue string, delay time.Duration,
	retries int, ids []string) ([]string, error) {
	if delay < 0 || delay > maxDelay {
		return nil, fmt.Errorf("queue %q: add: the delay %v is not from 0 to %v", queue, delay,
			maxDelay)
	}
	return q.add("add", queue, retries, ids, func(unique []string) ([]string, error) {
		return q.store.AddAfter(ctx, tx, queue, retries, delay, unique)
	})
}

func (q *Queues) add(what, queue string, retries int, ids []string,
	add func([]string) ([]string, error)) ([]string, error) {
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
		return nil, fmt.Errorf("queue: %s: %w", what, err)
	}
	if len(unique) == 0 {
		return nil, nil
	}
	added, err := add(unique)
	if err != nil {
		return nil, fmt.Errorf("queue %q: %s: %w", queue, what, err)
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
	token := driver.NewToken()
	sent := clock.StartStopwatch()
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
	return q.each(tasks, "done", func(queue string, token driver.Token,
		ids []string) ([]string, error) {
		return q.store.Done(ctx, queue, token, ids)
	}, (*Task).end)
}

// DoneTx ends tasks for good in the caller's own transaction, so that what else it
// writes happens once: if it is committed both have happened, else neither has.
// It fails with a [*LostError] if a task's time is over, or it is another's: roll
// the transaction back after any error. tx is that of AddTx. Do not call Done for
// the task as well; under [Queues.Work] return nil after the commit, and the
// error of a commit that has failed.
//
// From this call until the transaction ends nobody else gets the task, even if its
// time-out passes. Once the call has succeeded the task is not extended any more, not
// even after a rollback. So commit soon: PostgreSQL ends the transaction when it was
// idle for the time-out of this handle. On SQLite every other writer waits. Under
// REPEATABLE READ or SERIALIZABLE the call fails if the task was extended since the
// transaction's first statement: call DoneTx first.
func (q *Queues) DoneTx(ctx context.Context, tx any, tasks ...*Task) error {
	for _, t := range tasks {
		t.completing.Store(true)
	}
	err := q.each(tasks, "done", func(queue string, token driver.Token,
		ids []string) ([]string, error) {
		return q.store.DoneTx(ctx, tx, queue, token, q.timeout, ids)
	}, func(*Task) {}) // it has ended with the commit
	if err != nil {
		for _, t := range tasks {
			t.completing.Store(false)
		}
	}
	return err
}

// Release gives tasks back that were not worked on: they are pending again, at
// their old place, and it costs no retry. Its errors are those of Done.
func (q *Queues) Release(ctx context.Context, tasks ...*Task) error {
	return q.each(tasks, "release", func(queue string, token driver.Token,
		ids []string) ([]string, error) {
		return q.store.Release(ctx, queue, token, ids)
	}, (*Task).end)
}

// Extend lets the time-out of tasks begin anew. It never brings a task back
// whose time-out has passed. Its errors are those of Done.
func (q *Queues) Extend(ctx context.Context, tasks ...*Task) error {
	sent := clock.StartStopwatch()
	return q.each(tasks, "extend", func(queue string, token driver.Token,
		ids []string) ([]string, error) {
		return q.store.Extend(ctx, queue, token, q.timeout, ids)
	}, func(t *Task) { t.hold(sent, q.timeout) })
}

// Fail ends an attempt that has failed: the task is pending again once the
// delay has passed (from 0 to 366 days), which costs a retry, or it is failed
// if none is left. At most 1,000 characters of the cause's text stay with it; it
// says if it was cut.
// The error is a [*LostError] if the task is not ours any more.
func (q *Queues) Fail(ctx context.Context, task *Task, cause error, delay time.Duration) error {
	if delay < 0 || delay > maxDelay {
		return fmt.Errorf("queue %q: fail: the delay %v is not from 0 to %v", task.Queue, delay,
			maxDelay)
	}
	text := ""
	if cause != nil {
		text = clean(cause.Error())
	}
	ended, err := q.store.Fail(ctx, task.Queue, task.token, task.ID, text, delay)
	if err != nil {
		return fmt.Errorf("queue %q: fail: %w", task.Queue, err)
	}
	if !ended {
		task.lose()
		return &LostError{Tasks: []*Task{task}}
	}
	task.end()
	return nil
}

// each calls do for the tasks of each capture, and then succeeded for each task
// for which it did what it should.
func (q *Queues) each(tasks []*Task, what string, do func(queue string,
	token driver.Token, ids []string) ([]string, error), succeeded func(*Task)) error {
	type capture struct {
		queue string
		token driver.Token
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
				t.lose()
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
	if err := errors.Join(checkName("the name of the queue", queue),
		checkName("the id of the task", id)); err != nil {
		return Info{}, false, fmt.Errorf("queue: get: %w", err)
	}
	info, found, err = q.store.Get(ctx, queue, id)
	if err != nil {
		return Info{}, false, fmt.Errorf("queue %q: get: %w", queue, err)
	}
	return info, found, nil
}

// List returns up to limit tasks of a queue that are in a state: pending ones in
// the order in which they are captured, those with a delay last; those in
// progress by when their time-out passes; those that have ended, the latest first.
// limit is from 1 to 10,000.
func (q *Queues) List(ctx context.Context, queue string, state State, limit int) ([]Info, error) {
	err := checkName("the name of the queue", queue)
	if !slices.Contains(States, state) {
		err = errors.Join(err, fmt.Errorf("the state %.40q is none of %q", state, States))
	}
	if limit < 1 || limit > MaxLimit {
		err = errors.Join(err, fmt.Errorf("the limit %d is not from 1 to %d", limit, MaxLimit))
	}
	if err != nil {
		return nil, fmt.Errorf("queue: list: %w", err)
	}
	tasks, err := q.store.List(ctx, queue, state, limit)
	if err != nil {
		return nil, fmt.Errorf("queue %q: list: %w", queue, err)
	}
	return tasks, nil
}

// Count tells how many tasks each queue has that has any, by state, of at most
// 1,000 queues, by name. It reads the whole table: on SQLite, where it uses the
// connection of the lock, it gives up after a second.
func (q *Queues) Count(ctx context.Context) ([]Count, error) {
	counts, err := q.store.Count(ctx)
	if err != nil {
		return nil, fmt.Errorf("queue: count: %w", err)
	}
	return counts, nil
}

// Requeue makes tasks pending again that are done or failed, at their old place,
// with so many retries; the error of the last attempt stays. requeued are those
// for which it did, in their order: the others are not there, or have not ended.
func (q *Queues) Requeue(ctx context.Context, queue string, retries int,
	ids ...string) (requeued []string, err error) {
	return q.add("requeue", queue, retries, ids, func(unique []string) ([]string, error) {
		return q.store.Requeue(ctx, queue, retries, unique)
	})
}

// Prune deletes tasks of a queue that are done or failed, and have been so for
// olderThan at least, by the database's clock; at most batch of them, so that
// it holds up nobody for long: call it again while deleted == batch. The ids
// can then be added anew.
func (q *Queues) Prune(ctx context.Context, queue string, olderThan time.Duration,
	batch int) (deleted int64, err error) {
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
