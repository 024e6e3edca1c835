package columns

import (
	"database/sql"

	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Of a task in a queue.
const TaskColumns = `queue, id, state, attempts, retries_left, visible_at, last_error,
       created_at, updated_at`

// Task takes TaskColumns.
type Task struct {
	queue, id, state, err     sql.NullString
	attempts, retries         sql.NullInt64
	visible, created, updated Time
}

// Dest returns the places of TaskColumns.
func (c *Task) Dest() []any {
	return []any{&c.queue, &c.id, &c.state, &c.attempts, &c.retries, &c.visible, &c.err,
		&c.created, &c.updated}
}

// Value returns the task.
func (c *Task) Value() taskqueue.Info {
	return taskqueue.Info{
		Queue:       c.queue.String,
		ID:          c.id.String,
		State:       taskqueue.State(c.state.String),
		Attempts:    int(c.attempts.Int64),
		RetriesLeft: int(c.retries.Int64),
		VisibleAt:   c.visible.Time,
		LastError:   c.err.String,
		AddedAt:     c.created.Time,
		UpdatedAt:   c.updated.Time,
	}
}
