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
	const most = 10
	var names []string
	for i, t := range e.Tasks {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(e.Tasks)-most))
			break
		}
		names = append(names, fmt.Sprintf("%q of queue %q", t.ID, t.Queue))
	}
	return "lost: task " + strings.Join(names, ", ") +
		": the time-out has passed, or it was ended before"
}

// Is makes it a schedlock.ErrLost.
func (e *LostError) Is(target error) bool { return target == schedlock.ErrLost }
