package schedlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock/driver"
)

const (
	// releaseBudget bounds a release, whatever the caller's context says.
	releaseBudget = 5 * time.Second
	// releaseTry bounds one statement of it: one that hangs leaves time for
	// another, on a new connection.
	releaseTry = releaseBudget / 2
	// releasePause is the first pause between two of them; the next are longer,
	// up to a second.
	releasePause = 50 * time.Millisecond
)

// Release gives the lock back. Call it when all work under the lease has
// returned; also after a loss, so that nobody has to wait for the TTL of a row
// that its owner has no use for. Order: no longer leader, context cancelled,
// row deleted and the end of the term written. It works with a cancelled
// context, within a budget of its own (5 s), in which it is repeated with
// pauses; an error is what the last try said. It may be called again: after a
// success it does nothing, after an error it tries again.
func (l *Lease) Release(ctx context.Context) error {
	l.returned.Store(true)
	return insist(ctx, l.giveUp)
}

// giveUp is one try of a release.
func (l *Lease) giveUp(ctx context.Context) error {
	e, first := l.end(ErrReleased)
	if first {
		close(l.told) // there is no loss to tell of
	}
	return e.release(ctx)
}

// insist repeats what gives a row up, with pauses, until it has succeeded, or
// cannot, or the budget of a release is over; also for a cancelled caller.
func insist(ctx context.Context, giveUp func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBudget)
	defer cancel()
	for pause := releasePause; ; pause = min(2*pause, time.Second) {
		try, done := context.WithTimeout(ctx, releaseTry)
		err := giveUp(try)
		done()
		if err == nil || errors.Is(err, driver.ErrPermanent) || errors.Is(err, ErrCorrupt) {
			return err
		}
		if !bounded.Sleep(ctx, pause) {
			return err
		}
	}
}

// An endedLease is a lease that leads no more and whose context is cancelled.
// Only end makes one, and only through it can a row be given up: so the order
// "cancel first, database second" is not left to care.
type endedLease struct{ *Lease }

// end ends the lease: no longer leader, then context cancelled. first is true
// for the one call that did it.
func (l *Lease) end(cause error) (e endedLease, first bool) {
	l.ending.Do(func() {
		first = true
		l.finished.Store(true)
		l.lock.current.CompareAndSwap(l, nil)
		l.cancel(cause)
	})
	return endedLease{l}, first
}

func (e endedLease) release(ctx context.Context) error {
	if err := e.busy.Take(ctx); err != nil {
		return fmt.Errorf("release term %d: %w", e.ref.Term, err)
	}
	defer e.busy.Give()
	if e.settled {
		return nil
	}
	<-e.told // soon: the look of a loss has a second
	reason := driver.EndReleased
	switch {
	case e.wasRevoked():
		reason = driver.EndRevoked
	case errors.Is(e.Err(), ErrLost):
		reason = driver.EndLost
	}
	start := e.lock.clock.Now()
	deleted, err := e.lock.store.Release(ctx, e.ref, reason)
	took := e.lock.clock.Now().Sub(start)
	if err != nil {
		err = fmt.Errorf("release term %d: %w", e.ref.Term, err)
		e.unsure = true
		e.observe(Event{Kind: EventReleaseFailed, Took: took, Err: err})
		return err
	}
	e.settled = true
	e.lock.mu.Lock()
	if e.lock.last == e.Lease {
		e.lock.last = nil
		e.lock.standby = standby{after: e.Lease} // what was seen before is no reason any more
		e.lock.asking.vain.Store(nil)
	}
	if e.lock.known.Term == e.ref.Term {
		e.lock.known.EndedAt, e.lock.known.EndReason = start, reason
	}
	e.lock.mu.Unlock()
	if !deleted && !e.unsure && reason != driver.EndLost {
		e.lock.log.Warn("nothing to release: the row is not ours", "term", e.ref.Term)
	}
	e.observe(Event{Kind: EventReleased, Took: took, Reason: reason})
	return nil
}

// successor is who stands in our place, nil if nobody does or we cannot tell.
func (e endedLease) successor(ctx context.Context) *LockInfo {
	v, err := e.lookToTell(ctx)
	if err != nil || v.Row != nil && v.Row.Token == e.ref.Token && v.Row.Term == e.ref.Term {
		return nil
	}
	return v.Info()
}

// lookToTell reads what others see, for what is told of a change. It has a retry interval, as
// heartbeats wait for it.
func (l *Lease) lookToTell(ctx context.Context) (driver.Snapshot, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		l.lock.timing.RetryInterval())
	defer cancel()
	return l.lock.store.Look(ctx)
}
