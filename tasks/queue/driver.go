package queue

import "example.com/schedlock/schedlock/driver/taskqueue"

// What an app sees of the rows of a queue.
type (
	// State is the state of a task.
	State = taskqueue.State
	// Info is what the database knows of a task.
	Info = taskqueue.Info
	// Count is how many tasks of a queue are in each state.
	Count = taskqueue.Count
)

// The states of a task.
const (
	Pending    = taskqueue.Pending
	InProgress = taskqueue.InProgress
	Done       = taskqueue.Done
	Failed     = taskqueue.Failed // no retry is left
)

// States are all of them, in the order of a task's life.
var States = taskqueue.States

// What Capture returns if it has captured nothing. Each of the last three wraps
// the first.
var (
	// ErrNone: there is no task that could be captured now.
	ErrNone = taskqueue.ErrNone

	// ErrEmpty: there is nothing to wait for: the queue has no task, or all of
	// them have ended.
	ErrEmpty = taskqueue.ErrEmpty

	// ErrAllHeld: other workers have all that is left, or it waits for its
	// next attempt. Ask again later.
	ErrAllHeld = taskqueue.ErrAllHeld

	// ErrExhausted: the last that there was to wait for has failed just now: its
	// worker was lost, and it has no retry left. Nothing will come of asking
	// again; who does gets ErrEmpty.
	ErrExhausted = taskqueue.ErrExhausted
)

// ErrTx: AddTx or DoneTx got something that is no transaction of the store's kind.
var ErrTx = taskqueue.ErrTx
