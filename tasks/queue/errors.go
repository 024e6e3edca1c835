package queue

import (
	"errors"
	"fmt"
	"strings"

	"example.com/schedlock/schedlock"
)

// What Capture returns if it has captured nothing. Each of the last three wraps
// the first.
var (
	// ErrNone: there is no task that could be captured now.
	ErrNone = errors.New("no task to capture")

	// ErrEmpty: the queue has no task, or all of them are done.
	ErrEmpty = fmt.Errorf("%w: the queue is empty", ErrNone)

	// ErrAllHeld: other workers have all that is left, or it waits for its
	// next attempt. Ask again later.
	ErrAllHeld = fmt.Errorf("%w: all that is left is held, or waits for its next attempt", ErrNone)

	// ErrExhausted: what is left has failed, with no retry left. Nothing will
	// come of asking again.
	ErrExhausted = fmt.Errorf("%w: all that is left has failed", ErrNone)
)

// ErrTx: AddTx got something that is no transaction of the store's kind.
var ErrTx = errors.New("not a transaction of this store")

// A LostError says which tasks are not the caller's any more: their time-out
// has passed, or they were ended before. errors.Is(err, schedlock.ErrLost) is
// true for it. After a call that failed for another reason, such as a lost
// connection, it may also mean that that call was carried out.
type LostError struct {
	Tasks []*Task
}

func (e *LostError) Error() string {
	const most = 10
	var names []string
	for i, t := range e.Tasks {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(e.Tasks)-most))
			break
		}
		names = append(names, fmt.Sprintf("%q of queue %q", t.ID, t.Queue))
	}
	return "lost: task " + strings.Join(names, ", ") + ": the time-out has passed, or it was ended before"
}

// Is makes it a schedlock.ErrLost.
func (e *LostError) Is(target error) bool { return target == schedlock.ErrLost }
