package named

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// TryTask takes the lock of periodic work that several replicas wake up for,
// each by its own clock. It is held at least for atLeast, even if it is
// released before, so that a replica whose clock is behind does not do the work
// again: make atLeast longer than the clocks differ, and shorter than the
// period. It is held at most for atMost unless it is extended: make that longer
// than the work takes, as a replica that dies keeps the others out until then.
// The holder trusts it for ¾ of atMost; then its context ends.
//
// 0 ≤ atLeast ≤ atMost ≤ 24 h, in whole milliseconds. If the lock is not free
// the error is a *HeldError: somebody does the work, or has done it. After a
// fail-over of the server nobody gets it for atMost; then work that was done, but
// was lost with the old primary, may be done again.
func (l *Locks) TryTask(ctx context.Context, name string, atLeast,
	atMost time.Duration) (*Lock, error) {
	if err := CheckTask(atLeast, atMost); err != nil {
		return nil, err
	}
	return l.try(ctx, Key{Kind: KindTask, Name: name}, atMost, atLeast)
}

// CheckTask returns the error that TryTask would return for its times.
func CheckTask(atLeast, atMost time.Duration) error {
	if err := checkTTL("time that a task lock is held at most", atMost,
		namedlock.MaxTTL); err != nil {
		return err
	}
	switch {
	case atLeast < 0:
		return fmt.Errorf("time that a task lock is held at least %v is below 0", atLeast)
	case atLeast > atMost:
		return fmt.Errorf("time that a task lock is held at least %v "+
			"is above the time that it is held at most %v", atLeast, atMost)
	case atLeast%time.Millisecond != 0:
		return fmt.Errorf("time that a task lock is held at least %v "+
			"is not a whole number of milliseconds", atLeast)
	}
	return nil
}

// WithTask runs fn under the lock of TryTask and releases it, also if fn
// panics. ran is false, without an error, if the lock was not free. The context
// of fn is a child of ctx and ends when the lock does: it is not kept alive.
// Else see WithLock.
func (l *Locks) WithTask(ctx context.Context, name string, atLeast, atMost time.Duration,
	fn func(ctx context.Context, lock *Lock) error) (ran bool, err error) {
	lock, err := l.TryTask(ctx, name, atLeast, atMost)
	switch {
	case errors.Is(err, schedlock.ErrHeld):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, lock.with(ctx, false, fn)
}

// OncePer takes a time-out lock: nobody can take that name again before d has
// passed, and nobody releases it. It is for what shall happen at most once in a
// time, whoever does it and whatever becomes of them: a report a day. It
// returns the term, and a *HeldError if d of the last one has not passed.
//
// 40 ms ≤ d ≤ 366 days, in whole milliseconds. After an error other than a
// *HeldError it is not known whether it was taken; OncePer has tried to give it
// back.
//
// After a fail-over of a PostgreSQL server nobody takes a time-out lock for d, or a
// day if d is longer: so one that was lost with the old primary can be taken again
// too early only if d is longer than a day.
//
// On SQLite, after the machine was restarted, the wall clock decides when it
// can be taken again; else no wall clock does.
func (l *Locks) OncePer(ctx context.Context, name string, d time.Duration) (term int64, err error) {
	if err := checkTTL("time of a time-out lock", d, maxTimeout); err != nil {
		return 0, err
	}
	return l.takeFor(ctx, Key{Kind: KindTimeout, Name: name}, d)
}
