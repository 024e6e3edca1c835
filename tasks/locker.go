package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/schedlock/named"
)

type locker struct {
	locks           *named.Locks
	atLeast, atMost time.Duration
}

// NewLocker lets an app that has a gocron scheduler of its own on every replica
// run each of its jobs on one of them at a time, whichever comes first: it is
// for gocron.WithDistributedLocker, or for one job
// gocron.WithDistributedJobLocker. The lock of a job bears its name (by default
// that of its function: give jobs names of their own). gocron ignores lockers
// where it has an elector.
//
// The locks are held at least for atLeast, so that a replica whose clock is
// behind does not run the job again: make it longer than the clocks differ, and
// shorter than the period of every job. They are held at most for atMost: make it
// longer than any run, as a replica that dies keeps the others out until then.
// See named.Locks.TryTask for the bounds. A lock ends early, by loss, after ¾ of
// atMost.
//
// The error of a job that another replica has run, or is running, wraps
// schedlock.ErrHeld; gocron skips the run and tells gocron.AfterLockError.
//
// A locker chooses for each run anew, knows no missed runs, and cannot stop a job
// whose lock has ended: who can have one leader has a [Runner], or passes the
// lock of package schedlock to gocron.WithDistributedElector.
func NewLocker(locks *named.Locks, atLeast, atMost time.Duration) (gocron.Locker, error) {
	err := named.CheckTask(atLeast, atMost)
	if locks == nil {
		err = errors.Join(errors.New("locks are nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("locker: %w", err)
	}
	return &locker{locks: locks, atLeast: atLeast, atMost: atMost}, nil
}

// Lock implements gocron.Locker. Unlock works though gocron gives it a context
// that has ended.
func (l *locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := l.locks.TryTask(ctx, job, l.atLeast, l.atMost)
	if err != nil {
		return nil, err // no typed nil
	}
	return lock, nil
}
