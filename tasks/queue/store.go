package queue

import (
	"context"
	"time"

	"example.com/schedlock/schedlock"
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
	Attempts    int       // how often it was captured, this time included
	RetriesLeft int       // how many attempts may still follow
	VisibleAt   time.Time // from when on it can be captured (again), for the reader; zero: at once, or never
	LastError   string    // of the latest attempt that failed; "" if none has
	AddedAt     time.Time
	UpdatedAt   time.Time
}

// Store keeps tasks in a database. All methods are safe for concurrent use and
// honour the end of their context. A call that fails has written all or
// nothing. [Queues] checks names, counts and durations before it calls, and
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
	AddTx(ctx context.Context, tx any, queue string, retries int, ids []string) (added []string, err error)

	// Capture gives up to limit tasks to the token, for as long as hold, and
	// returns them as they then are, oldest first: pending ones whose delay is
	// over, and those in progress whose time-out has passed and that have a
	// retry left, which it costs. Those that have none left become failed. No
	// task is given to two callers. It waits for no other Capture. If it
	// captures nothing the error is ErrEmpty, ErrAllHeld or ErrExhausted.
	Capture(ctx context.Context, queue string, token schedlock.Token, hold time.Duration, limit int) ([]Info, error)

	// Done ends tasks, durably. done are the ids for which it did; and those
	// that are done under this very token already, so that a call whose answer
	// was lost can be repeated.
	Done(ctx context.Context, queue string, token schedlock.Token, ids []string) (done []string, err error)

	// Extend lets the time-out of tasks pass after hold from now. extended are
	// the ids for which it did.
	Extend(ctx context.Context, queue string, token schedlock.Token, hold time.Duration, ids []string) (extended []string, err error)

	// Release makes tasks pending, at their old place and with all their
	// retries. released are the ids for which it did.
	Release(ctx context.Context, queue string, token schedlock.Token, ids []string) (released []string, err error)

	// Fail ends an attempt: the task is pending again after the delay, which
	// costs a retry, or failed if none is left. text is kept. ended tells
	// whether it did.
	Fail(ctx context.Context, queue string, token schedlock.Token, id, text string, delay time.Duration) (ended bool, err error)

	// Get returns a task; found is false if the queue has none with that id.
	Get(ctx context.Context, queue, id string) (info Info, found bool, err error)

	// Prune deletes tasks that are done or failed and were last written at
	// least olderThan ago by the database's clock, at most limit.
	Prune(ctx context.Context, queue string, olderThan time.Duration, limit int) (deleted int64, err error)
}
