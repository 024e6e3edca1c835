// Package turn lets one at a time do something, without making anybody wait for
// longer than it likes.
package turn

import "context"

// A Turn is free, or somebody's. Make it with New.
type Turn chan struct{}

// New returns a Turn that is free.
func New() Turn { return make(Turn, 1) }

// Take waits until the Turn is free, and takes it. If ctx ends first it returns the
// cause of that.
func (t Turn) Take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TryTake takes the Turn if it is free.
func (t Turn) TryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// Taken reports whether somebody has the Turn.
func (t Turn) Taken() bool { return len(t) > 0 }

// Give makes the Turn free. Only who has it may do so.
func (t Turn) Give() { <-t }
