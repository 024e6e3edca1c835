//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks/queue"
)

const (
	workQueue   = "work"
	addEvery    = 150 * time.Millisecond
	mostCapture = 5
	mostRetries = 3
	workRest    = 20 * time.Millisecond // when there is nothing to capture
	workTime    = 15 * time.Millisecond // the longest for one task
	workNote    = 10 * time.Millisecond // every so often it is written down that a task is held
	workCall    = time.Second           // for one call of the queue
	lateEnough  = 5 * time.Millisecond  // for clocks that count milliseconds, and rates that differ
	workCalls   = 3                     // so often the end of a task is tried
)

// add adds tasks, each with a few retries or none.
func (u *lockUser) add(ctx context.Context) {
	for n := 1; sleep(ctx, rand.N(u.pause(2*addEvery))); n++ {
		r := Record{Kind: KindAdding, Job: fmt.Sprintf("%s-%d", u.Name, n),
			Attempt: rand.IntN(mostRetries + 1)}
		u.note(r)
		err := u.call(ctx, func(ctx context.Context) error {
			_, err := u.queues.Add(ctx, workQueue, r.Attempt, r.Job)
			return err
		})
		if err == nil {
			r.Kind = KindAdded
			u.note(r)
		}
	}
}

// call makes one call of the queue, which the end of the process does not cut
// off.
func (u *lockUser) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workCall)
	defer cancel()
	return do(ctx)
}

// workOff captures tasks and works on them, one after the other.
func (u *lockUser) workOff(ctx context.Context) {
	for ctx.Err() == nil {
		var captured []*queue.Task
		sent := bootTime()
		err := u.call(ctx, func(ctx context.Context) (err error) {
			captured, err = u.queues.Capture(ctx, workQueue, 1+rand.IntN(mostCapture))
			return err
		})
		switch {
		case errors.Is(err, queue.ErrNone):
			sleep(ctx, u.pause(workRest))
		case err != nil:
			u.complain("capture: %v", err)
			sleep(ctx, lockRetry)
		}
		for _, t := range captured {
			r := Record{Kind: KindCaptured, Job: t.ID, Attempt: t.Attempts, Tick: int64(sent)}
			if t.Left() > 0 {
				r.Term = 1
			}
			r.At = bootTime()
			u.note(r)
		}
		until := bootTime() + u.taskTimeout()
		for _, t := range captured {
			u.workOn(ctx, t, until)
		}
	}
}

// workOn works on a task for a moment, or for longer than its time-out, and
// ends it in one way or another. The time-out has passed by until.
func (u *lockUser) workOn(ctx context.Context, t *queue.Task, until time.Duration) {
	d, end, kind := rand.N(workTime), u.done, KindDoing
	switch rand.IntN(12) {
	case 0:
		end, kind = u.fail, KindFailing
	case 1:
		end, kind = u.release, KindReleasing
	case 2:
		d += u.taskTimeout() + lateEnough
	case 3:
		u.pretend(ctx, t, d)
		if u.call(ctx, func(ctx context.Context) error { return u.queues.Extend(ctx, t) }) == nil {
			until = bootTime() + u.taskTimeout()
		} else {
			until = math.MaxInt64 // it may have been extended, or not
		}
	}
	u.pretend(ctx, t, d)
	if ctx.Err() != nil {
		end, kind = u.release, KindReleasing
	}
	r := Record{At: bootTime(), Kind: kind, Job: t.ID, Attempt: t.Attempts}
	if r.At-until > lateEnough {
		r.Term = 1
	}
	u.note(r)
	r.At = 0
	for n := 1; ; n++ {
		err := u.call(ctx, func(ctx context.Context) error { return end(ctx, t) })
		switch {
		case err == nil:
			r.Kind = KindEnded
		case errors.Is(err, schedlock.ErrLost):
			r.Kind = KindGone
		case n < workCalls && ctx.Err() == nil:
			continue
		default:
			r.Kind = KindUnsure
		}
		u.note(r)
		return
	}
}

func (u *lockUser) done(ctx context.Context, t *queue.Task) error { return u.queues.Done(ctx, t) }

func (u *lockUser) release(ctx context.Context, t *queue.Task) error {
	return u.queues.Release(ctx, t)
}

func (u *lockUser) fail(ctx context.Context, t *queue.Task) error {
	return u.queues.Fail(ctx, t, errTold, rand.N(100*time.Millisecond))
}

// pretend works on a task, and writes down that it is held.
func (u *lockUser) pretend(ctx context.Context, t *queue.Task, d time.Duration) {
	end := bootTime() + d
	for {
		before := bootTime()
		if t.Left() > 0 {
			u.note(Record{At: before, Kind: KindWorks, Job: t.ID, Attempt: t.Attempts})
		}
		if left := end - before; left <= 0 || !sleep(ctx, min(left, workNote)) {
			return
		}
	}
}
