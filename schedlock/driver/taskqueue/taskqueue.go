package taskqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// State is the state of a task.
type State string

// The states of a task.
const (
	Pending    State = "pending"
	InProgress State = "in_progress"
	Done       State = "done"
	Failed     State = "failed" // no retry is left
)

// States are all of them, in the order of a task's life.
var States = []State{Pending, InProgress, Done, Failed}

// LostWorker is what stands as the error of an attempt whose worker has let the
// time-out pass.
const LostWorker = "the worker was lost: its time-out passed without a word"

// MaxError is how many characters of an error's text stay.
const MaxError = 1000

// Info is what the database knows of a task.
type Info struct {
	Queue       string
	ID          string
	State       State
	Attempts    int // how often it was captured, this time included
	RetriesLeft int // how many attempts may still follow
	// from when on it can be captured (again), for the reader; zero: at once, or never
	VisibleAt time.Time
	LastError string // of the latest attempt that failed; "" if none has
	AddedAt   time.Time
	UpdatedAt time.Time
}

// Count is how many tasks of a queue are in each state.
type Count struct {
	Queue      string
	Pending    int64 // that can be captured now
	Delayed    int64 // pending too, but their delay is not over
	InProgress int64
	Done       int64
	Failed     int64
}

// Store keeps tasks in a database. All methods are safe for concurrent use and
// honour the end of their context. A call that fails has written all or
// nothing. Package tasks/queue checks names, counts and durations before it calls, and
// cleans texts: a Store gets what is valid.
//
// Done, Extend, Release and Fail change a task only if it is in progress, bears
// the token, and its time-out has not passed by the database's clock.
type Store interface {
	// Add inserts tasks that are pending, in the order of ids, which has none
	// twice. One that the queue has already, in whatever state, stays as it
	// is. added are the others.
	Add(ctx context.Context, queue string, retries int, ids []string) (added []string, err error)

	// AddTx is Add in the caller's transaction. The error wraps ErrTx if tx is
	// none of the store's kind.
	AddTx(ctx context.Context, tx any, queue string, retries int, ids []string) (added []string,
		err error)

	// AddAfter is Add, or AddTx if tx is not nil, of tasks that nobody captures
	// before the delay has passed.
	AddAfter(ctx context.Context, tx any, queue string, retries int, delay time.Duration,
		ids []string) (added []string, err error)

	// Capture gives up to limit tasks to the token, for as long as hold, and
	// returns them as they then are, oldest first: pending ones whose delay is
	// over, and those in progress whose time-out has passed and that have a
	// retry left, which it costs. Those that have none left become failed. No
	// task is given to two callers. It waits for no other Capture. If more is left
	// of a time-out or a delay than its whole length, because the clock was set
	// back, it passes that length from then, or from soon after. If it
	// captures nothing the error is ErrAllHeld if there is a task that could
	// still be captured later, else ErrExhausted if this call has made one
	// failed, else ErrEmpty: what has ended before does not matter.
	Capture(ctx context.Context, queue string, token driver.Token, hold time.Duration,
		limit int) ([]Info, error)

	// Done ends tasks, durably. done are the ids for which it did; and those
	// that are done under this very token already, so that a call whose answer
	// was lost can be repeated.
	Done(ctx context.Context, queue string, token driver.Token, ids []string) (done []string,
		err error)

	// DoneTx is Done in the caller's transaction, but for those that are done
	// already: it returns only what it has ended itself. Until the transaction
	// ends nobody else gets these tasks, also if their time-out passes; the
	// server may end it when it was idle for hold. The error wraps ErrTx if tx
	// is none of the store's kind.
	DoneTx(ctx context.Context, tx any, queue string, token driver.Token, hold time.Duration,
		ids []string) (done []string, err error)

	// Extend lets the time-out of tasks pass after hold from now. extended are
	// the ids for which it did.
	Extend(ctx context.Context, queue string, token driver.Token, hold time.Duration,
		ids []string) (extended []string, err error)

	// Release makes tasks pending, at their old place and with all their
	// retries. released are the ids for which it did.
	Release(ctx context.Context, queue string, token driver.Token, ids []string) (released []string,
		err error)

	// Fail ends an attempt: the task is pending again after the delay, which
	// costs a retry, or failed if none is left. text is kept. ended tells
	// whether it did.
	Fail(ctx context.Context, queue string, token driver.Token, id, text string,
		delay time.Duration) (ended bool, err error)

	// Get returns a task; found is false if the queue has none with that id.
	Get(ctx context.Context, queue, id string) (info Info, found bool, err error)

	// List returns up to limit tasks of a queue that are in a state: pending ones
	// in their order, those with a delay last; those in progress by when their
	// time-out passes; those that have ended, the latest first.
	List(ctx context.Context, queue string, state State, limit int) ([]Info, error)

	// Count counts the tasks of each queue that has any, in the order of the
	// bytes of their names, of at most 1,000 queues.
	Count(ctx context.Context) ([]Count, error)

	// Requeue makes tasks pending that are done or failed, at their old place,
	// with so many retries and the error that they had. requeued are the ids for
	// which it did.
	Requeue(ctx context.Context, queue string, retries int, ids []string) (requeued []string,
		err error)

	// Prune deletes tasks that are done or failed and were last written at
	// least olderThan ago by the database's clock, at most limit.
	Prune(ctx context.Context, queue string, olderThan time.Duration, limit int) (deleted int64,
		err error)
}

// What Capture returns if it has captured nothing: Store.Capture says which. Each of
// the last three wraps the first.
var (
	ErrNone  = errors.New("no task to capture")
	ErrEmpty = fmt.Errorf("%w: the queue is empty", ErrNone)

	ErrAllHeld = fmt.Errorf("%w: all that is left is held, or waits for its next attempt", ErrNone)

	ErrExhausted = fmt.Errorf("%w: all that was left has failed", ErrNone)
)

// ErrTx: AddTx got something that is no transaction of the store's kind.
var ErrTx = errors.New("not a transaction of this store")
