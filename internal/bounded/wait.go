// Package bounded keeps what may block, panic or never return from stopping the
// lock: a wait ends when something else does, a call of a function that an app has
// given is made on a goroutine of its own, and nobody waits for a log that blocks.
package bounded

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Context returns ctx, which ends after limit unless it has a deadline of its own.
func Context(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// Moment is how much longer a Patient context lasts than its limit.
const Moment = 100 * time.Millisecond

// Patient returns a context that ends as ctx, and else a Moment after it has seen the limit pass.
// For a process that was stopped the limit passes at once: the moment is for what has arrived.
// The cause of its end is not that of ctx, which a store may take for an answer of its own.
func Patient(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	p := &patient{Context: context.WithoutCancel(ctx), until: time.Now().Add(limit),
		done: make(chan struct{})}
	if d, ok := ctx.Deadline(); ok && d.Before(p.until) {
		p.until = d
	}
	seen := time.AfterFunc(limit, func() {
		time.AfterFunc(Moment, func() { p.end(context.DeadlineExceeded) })
	})
	stop := context.AfterFunc(ctx, func() { p.end(ctx.Err()) })
	return p, func() {
		stop()
		seen.Stop()
		p.end(context.Canceled)
	}
}

type patient struct {
	context.Context
	until time.Time
	done  chan struct{}
	once  sync.Once
	err   atomic.Pointer[error]
}

// Deadline implements context.Context: the limit, if that of ctx is not earlier.
func (p *patient) Deadline() (time.Time, bool) { return p.until, true }

func (p *patient) end(err error) {
	p.once.Do(func() {
		p.err.Store(&err)
		close(p.done)
	})
}

// Done implements context.Context.
func (p *patient) Done() <-chan struct{} { return p.done }

// Err implements context.Context.
func (p *patient) Err() error {
	if err := p.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Sleep lasts for d, or until ctx ends. It reports whether ctx goes on.
func Sleep(ctx context.Context, d time.Duration) bool {
	return !Wait(ctx.Done(), d)
}

// Wait lasts until done is closed, but not for longer than limit. It reports
// whether done is closed.
func Wait(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	}
	select {
	case <-done: // both at the same moment
		return true
	default:
		return false
	}
}

// A Turn lets one at a time do something. It is free, or somebody's. Make it with
// NewTurn.
type Turn chan struct{}

// NewTurn returns a Turn that is free.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits until the Turn is free, and takes it. If ctx ends first it returns the
// cause of that. A Turn that is free is taken also if ctx has ended.
func (t Turn) Take(ctx context.Context) error {
	if t.TryTake() {
		return nil
	}
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
