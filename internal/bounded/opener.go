package bounded

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// An Opener opens what may take longer than its caller has, such as a connection to a
// server. An attempt that its caller gives up goes on, and a later caller gets what it
// opens: on a machine so busy that no attempt ends in time, each would else begin from
// the start, and the load of all of them keep it busy. A later caller tries as well, since
// what began while the network was down may hang. Its methods are safe for concurrent use.
type Opener[T any] struct {
	Open  func(ctx context.Context) (T, error)
	Close func(T) // what nobody needs any more

	mu     sync.Mutex
	late   *attempt[T] // the oldest that was given up
	closed bool
	all    sync.WaitGroup
}

type attempt[T any] struct {
	cancel context.CancelFunc
	done   <-chan error // has one element
	value  T            // once done has said nil
}

// Get returns what opens first. An attempt may last for limit, or for as long as ctx if that
// is longer.
func (o *Opener[T]) Get(ctx context.Context, limit time.Duration) (T, error) {
	late := o.swap(nil)
	if late != nil {
		select {
		case err := <-late.done:
			if err == nil {
				return late.value, nil
			}
			late = nil
		default:
		}
	}
	fresh := o.begin(ctx, limit)
	for {
		var before <-chan error
		if late != nil {
			before = late.done
		}
		select {
		case err := <-fresh.done:
			if err == nil {
				o.leave(late)
			} else {
				o.keep(late)
			}
			return fresh.value, err
		case err := <-before:
			if err == nil {
				o.leave(fresh)
				return late.value, nil
			}
			late = nil
		case <-ctx.Done():
			if late == nil {
				late, fresh = fresh, nil
			}
			o.leave(fresh)
			o.keep(late)
			var none T
			return none, fmt.Errorf("not connected yet: %w", context.Cause(ctx))
		}
	}
}

func (o *Opener[T]) begin(ctx context.Context, limit time.Duration) *attempt[T] {
	if until, ok := ctx.Deadline(); ok {
		limit = max(limit, time.Until(until))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	a := &attempt[T]{cancel: cancel}
	a.done = Go(func() (err error) {
		defer cancel()
		a.value, err = o.Open(ctx)
		return err
	})
	return a
}

func (o *Opener[T]) swap(a *attempt[T]) (before *attempt[T]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, o.late = o.late, a
	return before
}

// keep keeps an attempt, which may be nil, for a later caller.
func (o *Opener[T]) keep(a *attempt[T]) {
	if a == nil {
		return
	}
	o.mu.Lock()
	if o.late == nil && !o.closed {
		o.late, a = a, nil
	}
	o.mu.Unlock()
	o.leave(a)
}

// leave ends an attempt, which may be nil, and what it has opened or still opens.
func (o *Opener[T]) leave(a *attempt[T]) {
	if a == nil {
		return
	}
	a.cancel()
	o.all.Go(func() {
		if <-a.done == nil {
			o.Close(a.value)
		}
	})
}

// End ends the attempts that no caller waits for; none may be in Get. No later attempt outlives
// its caller.
func (o *Opener[T]) End() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.leave(o.swap(nil))
	o.all.Wait()
}
