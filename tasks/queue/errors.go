package queue

import (
	"fmt"
	"strings"

	"example.com/schedlock/schedlock"
)

// A LostError says which tasks are not the caller's any more: their time-out
// has passed, or they were ended before. errors.Is(err, schedlock.ErrLost) is
// true for it. After a call that failed for another reason, such as a lost
// connection, it may also mean that that call was carried out.
type LostError struct {
	Tasks []*Task
}

func (e *LostError) Error() string {
	return "lost: task " + some(e.Tasks, func(t *Task) string {
		return fmt.Sprintf("%q of queue %q", t.ID, t.Queue)
	}) + ": the time-out has passed, or it was ended before"
}

// some are the names of as many of a list as a message has room for.
func some[T any](list []T, name func(T) string) string {
	const most = 10
	var names []string
	for _, of := range list[:min(most, len(list))] {
		names = append(names, name(of))
	}
	if more := len(list) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// Is makes it a schedlock.ErrLost.
func (e *LostError) Is(target error) bool { return target == schedlock.ErrLost }
