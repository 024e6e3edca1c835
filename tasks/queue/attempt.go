package queue

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

var errNoText = errors.New("an error without a text")

// An attempt is one call of the handler.
type attempt struct {
	*workers
	task     *Task
	returned atomic.Bool // the handler has
}

// run calls the handler, keeps the task meanwhile, and ends it.
func (a *attempt) run() {
	if a.task.Left() <= 0 { // the capture was answered too late
		a.finish(Event{Task: a.task.Info}, nil)
		return
	}
	a.tell(Event{Kind: EventStarted, Task: a.task.Info})
	ctx, cancel := context.WithCancelCause(a.base)
	var keepers sync.WaitGroup
	returned := make(chan struct{})
	keepers.Go(func() { a.watch(ctx, returned, cancel) })
	keepers.Go(func() { a.keep(ctx, returned, cancel) })
	began := clock.StartStopwatch()
	err, panicked := a.call(ctx)
	took := began.Elapsed()
	a.returned.Store(true)
	cause := context.Cause(ctx) // before we end it ourselves
	close(returned)
	cancel(nil)
	keepers.Wait()
	a.finish(Event{Task: a.task.Info, Took: took, Err: err, Panic: panicked}, cause)
}

// call calls the handler, whatever it does.
func (a *attempt) call(ctx context.Context) (err error, panicked bool) {
	err = <-bounded.Go(func() error { return a.handle(ctx, a.task) })
	p, panicked := errors.AsType[*bounded.Panic](err)
	if panicked {
		a.log.Error("a handler has panicked", "task", a.task.ID, "panic", ledger.Cut(err.Error()),
			"stack", ledger.Cut(string(p.Stack)))
	}
	return err, panicked
}

// watch ends the handler's context when the task is lost, and when the limit has
// passed. It looks several times a time-out, because timers do not count the time
// for which the machine was suspended.
func (a *attempt) watch(ctx context.Context, returned <-chan struct{},
	cancel context.CancelCauseFunc) {
	began := clock.StartStopwatch()
	for ctx.Err() == nil {
		left := a.task.Left()
		switch {
		case a.task.ended():
			return // by the handler
		case left <= 0:
			cancel(&LostError{Tasks: []*Task{a.task}})
			a.stuck(returned)
			return
		case began.Elapsed() >= a.Limit:
			cancel(ErrLimit)
			a.stuck(returned)
			return
		}
		wait := min(left, a.Limit-began.Elapsed(), max(a.q.timeout/10, time.Millisecond),
			time.Second)
		select {
		case <-returned:
			return
		case <-ctx.Done():
		case <-time.After(max(wait, time.Millisecond)):
		}
	}
}

// stuck says so if a handler does not return.
func (a *attempt) stuck(returned <-chan struct{}) {
	if !bounded.Wait(returned, stuckAfter) {
		a.log.Error("a handler does not return: its task is left to its time-out, and its worker "+
			"stays busy", "task", a.task.ID)
		a.tell(Event{Kind: EventStuck, Task: a.task.Info})
	}
}

// keep extends the task while the handler runs, and for a while after its context
// has ended. It is apart from watch, which no statement that hangs delays.
func (a *attempt) keep(ctx context.Context, returned <-chan struct{},
	cancel context.CancelCauseFunc) {
	third, retry := a.q.timeout/3, min(max(a.q.timeout/20, time.Millisecond), time.Second)
	pause, failing := third, false
	over := ctx.Done()
	var end <-chan time.Time
	for {
		select {
		case <-returned:
			return
		case <-end:
			return
		case <-over:
			over, end = nil, time.After(stuckAfter)
			continue
		case <-time.After(pause):
		}
		left := a.task.Left()
		if left <= 0 {
			return
		}
		if a.task.completing.Load() { // until DoneTx has failed
			pause = retry
			continue
		}
		bounded, stop := context.WithTimeout(context.WithoutCancel(ctx),
			min(left, max(third, time.Second)))
		err := a.q.Extend(bounded, a.task)
		stop()
		pause = third
		switch {
		case err == nil:
			failing = false
		case errors.Is(err, schedlock.ErrLost):
			if !a.task.ended() {
				cancel(err)
			}
			return
		default:
			pause = retry
			if !failing {
				failing = true
				a.log.Warn("a task cannot be extended: it is tried again until the task is lost",
					"task", a.task.ID, "lost_in", left, "err", err)
				a.tell(Event{Kind: EventStoreErr, Task: a.task.Info, Err: err})
			}
		}
	}
}

// finish ends the task by what the handler has returned, unless the task has
// ended. It tries until the task is lost.
func (a *attempt) finish(e Event, cause error) {
	write := func(ctx context.Context) error { return a.q.Done(ctx, a.task) }
	switch {
	case a.task.ended():
		e.Kind = EventEnded
	case e.Err == nil:
		e.Kind = EventDone
	case errors.Is(cause, ErrDrained):
		e.Kind = EventReleased
		write = func(ctx context.Context) error { return a.q.Release(ctx, a.task) }
	default:
		e.Kind = EventFailed
		write = func(ctx context.Context) error {
			why := e.Err
			if why.Error() == "" { // by its text the next retryDelay knows that it has failed
				why = errNoText
			}
			return a.q.Fail(ctx, a.task, why, a.retryDelay(a.task.Info))
		}
	}
	if e.Kind != EventEnded {
		if err := a.insist(write); err != nil {
			e.Kind, e.Err = EventLost, errors.Join(err, e.Err)
		}
	}
	a.mu.Lock()
	switch e.Kind {
	case EventFailed, EventLost:
		a.failures++
	case EventDone, EventEnded:
		a.failures = 0
	}
	a.mu.Unlock()
	switch e.Kind {
	case EventFailed:
		a.log.Warn("a task has failed", "task", a.task.ID, "attempt", a.task.Attempts,
			"retries_left", a.task.RetriesLeft, "err", ledger.Cut(e.Err.Error()))
	case EventLost:
		a.log.Warn("a task was lost before its end was recorded: it may be done once more", "task",
			a.task.ID, "took", e.Took, "err", ledger.Cut(e.Err.Error()))
	}
	a.tell(e)
}

// insist repeats a write while the task is ours. After a DoneTx it asks once in any case: nobody
// else gets the task before that transaction ends, so its commit counts however late it comes.
func (a *attempt) insist(write func(context.Context) error) error {
	retry := min(max(a.q.timeout/20, time.Millisecond), time.Second)
	var last error
	for ask := a.task.completing.Load(); ; ask = false {
		left := a.task.Left()
		if left <= 0 && !ask {
			return errors.Join(&LostError{Tasks: []*Task{a.task}}, last)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.base), max(left, retry))
		err := write(ctx)
		cancel()
		if err == nil || errors.Is(err, schedlock.ErrLost) {
			return err
		}
		if last == nil {
			a.log.Warn("the end of a task cannot be recorded: it is tried again until the task is lost",
				"task", a.task.ID, "lost_in", left, "err", err)
			a.tell(Event{Kind: EventStoreErr, Task: a.task.Info, Err: err})
		}
		last = err
		time.Sleep(min(retry, left))
	}
}
