package startup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrStopped is what Start returns after Stop was called, and the cause with
// which Stop ends a running Start.
var ErrStopped = errors.New("startup: Stop was called")

const (
	opStart = "start"
	opStop  = "stop"
)

// StageError says which stage failed, doing what.
type StageError struct {
	Stage string
	Op    string // "start" or "stop"
	Err   error
}

func (e *StageError) Error() string { return fmt.Sprintf("stage %q: %s: %v", e.Stage, e.Op, e.Err) }

func (e *StageError) Unwrap() error { return e.Err }

// limitError says which limit a stage has passed. It is a
// context.DeadlineExceeded.
type limitError struct{ text string }

func (e *limitError) Error() string { return e.text }

func (e *limitError) Unwrap() error { return context.DeadlineExceeded }

func startLimit(d time.Duration) error {
	return &limitError{fmt.Sprintf("not done within its StartTimeout of %v", d)}
}

func stopLimit(d time.Duration) error {
	return &limitError{fmt.Sprintf("not done within its StopTimeout of %v", d)}
}

var errBudget = &limitError{"not done when the budget of Stop was used up"}

// interrupted returns why ctx ended, and what the stage made of it if that says
// more than "my context ended".
func interrupted(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	why := cause
	if !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		why = fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	//nolint:errorlint // a wrapped one says more
	if err == nil || err == context.Canceled || err == context.DeadlineExceeded || err == cause {
		return why
	}
	return fmt.Errorf("%w: %w", why, err)
}
