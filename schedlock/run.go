package schedlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/internal/bounded"
)

// Run campaigns, and calls lead whenever this replica leads; when lead has
// returned it releases the lock, and campaigns again, until ctx ends. One Run or
// Start is under way in a Lock at a time.
//
// The context that lead gets ends when leadership ends, when ctx ends, or when
// an operator tells this replica to leave; lead should return soon then. The
// lease is kept alive until it has returned, but not past a loss: then another
// replica leads TTL − renew deadline after the context has ended. An error of
// lead is logged, and does not end Run: other replicas, or this one after two
// retry intervals, have the next try. A panic of lead goes on to who has called Run,
// once the lock is released.
//
// That ctx ends is no error: Run returns what lead has returned then, if it is
// another error than the context's, and why the lock could not be released.
// After Stop it returns ErrStopped. While somebody holds a lease of Wait or Acquire
// the error wraps ErrUnreleased, and that lease stays theirs.
func (l *Lock) Run(ctx context.Context, lead func(ctx context.Context, lease *Lease) error) error {
	if lead == nil {
		return errors.New("schedlock: Run: lead is nil")
	}
	g, err := l.begin(ctx, false)
	if err != nil {
		return err
	}
	defer g.end()
	return l.lead(g, func(lease *Lease) error { return l.call(g.ctx, lease, lead) })
}

// Start campaigns in the background, until Stop, for those that ask IsLeader,
// such as a gocron scheduler:
//
//	lock.Start()
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(lock))
//	…
//	err = scheduler.Shutdown()  // first: its jobs return
//	err = lock.Stop(ctx)        // last: another replica leads at once
//
// Nobody tells the lock when such jobs have returned. So after a loss, and after
// an operator's order to leave, they have TTL − renew deadline to do so before
// another replica leads. A job that takes longer watches the context of Lease.
//
// Start may be called again, and does nothing then, nor while a Run is under way, nor
// after Stop.
func (l *Lock) Start() {
	g, err := l.begin(context.Background(), true)
	if err != nil {
		return
	}
	go func() {
		defer g.end()
		for {
			err := l.lead(g, func(lease *Lease) error { return l.serve(g.ctx, lease) })
			if g.ctx.Err() != nil || l.stopped() {
				return
			}
			l.log.Error("campaign refused: it is repeated while this process runs", "err", err)
			bounded.Sleep(g.ctx, l.timing.TTL)
		}
	}()
}

// Stop ends this replica's part: what Start has begun ends, and Run, Wait or
// Acquire return ErrStopped; none succeeds afterwards. It waits until the
// function that Run has called has returned, no longer than ctx lasts; the lock
// stays held if it has not (so that function must not call Stop). A lease of Wait
// or Acquire that is still held is released, so whoever works under it must have
// returned before; so is what an acquisition got whose answer never came. For an
// acquisition that is under way it waits, for 15 s at most. A release is tried for
// 5 s, as [Lease.Release] does. Stop may be called again.
//
// Stop the lock last: after the schedulers that ask it, and before its database
// is closed. If one still asks, a warning says so.
func (l *Lock) Stop(ctx context.Context) error {
	l.mu.Lock()
	l.stop(ErrStopped)
	g := l.going
	idle := g != nil && (g.asked || l.unreleased() == nil)
	l.mu.Unlock()
	if g != nil {
		if g.asked {
			l.asking.quit.Store(true)
		}
		g.cancel(ErrStopped)
		if err := g.wait(ctx, idle); err != nil {
			return err
		}
	}
	return errors.Join(l.noCampaign(ctx), l.giveBack(ctx, true))
}

// noCampaign waits for a Wait or an Acquire of somebody else, which Stop has ended: it gives back
// what it may have got. That is soon, so the caller's context does not count.
func (l *Lock) noCampaign(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*releaseBudget)
	defer cancel()
	if err := l.campaigning.Take(ctx); err != nil {
		return fmt.Errorf("scheduler lock: an acquisition has not ended: %w", err)
	}
	l.campaigning.Give()
	return nil
}

// giveBack releases the last lease, and what was never answered. A lease that an Acquire or a Wait
// of somebody else has got, and whose work may run, it releases only if it is told to.
func (l *Lock) giveBack(ctx context.Context, others bool) error {
	l.mu.Lock()
	last, unanswered, unreleased := l.last, len(l.claims) > 0, l.unreleased()
	l.mu.Unlock()
	switch {
	case unreleased != nil && !others:
		return unreleased
	case last != nil:
		return last.Release(ctx)
	case unanswered && others:
		return insist(ctx, l.dropLateClaim)
	case unanswered && l.campaigning.TryTake(): // else who campaigns does it, at its next look
		defer l.campaigning.Give()
		return insist(ctx, l.dropLateClaim)
	}
	return nil
}

// going is a Run or a Start that is under way.
type going struct {
	lock   *Lock
	asked  bool // it is a Start, for those that ask IsLeader
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
}

func (l *Lock) begin(ctx context.Context, asked bool) (*going, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped():
		return nil, ErrStopped
	case l.going != nil:
		return nil, errors.New("scheduler lock: Run or Start is under way: one at a time")
	}
	g := &going{lock: l, asked: asked, done: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	l.going = g
	return g, nil
}

func (g *going) end() {
	g.cancel(nil)
	g.lock.mu.Lock()
	g.lock.going = nil
	g.lock.mu.Unlock()
	close(g.done)
}

// wait waits until it has ended. If nothing of the app is under way in it, nor will be, it ends
// soon, and the caller's context does not count.
func (g *going) wait(ctx context.Context, idle bool) error {
	if idle {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 3*releaseBudget)
		defer cancel()
	}
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("scheduler lock: what works under the lock has not returned: %w",
			context.Cause(ctx))
	}
}

// lead leads again and again, until g ends.
func (l *Lock) lead(g *going, work func(*Lease) error) error {
	for {
		lease, err := l.Wait(g.ctx)
		if err != nil {
			switch {
			case g.ctx.Err() == nil:
				return err
			case l.stopped(): // not by the cause of g.ctx, which may be the end of another Lock
				return ErrStopped
			}
			return l.giveBack(g.ctx, false) // unless the campaign has made up for it
		}
		rest, failed, held := leadOnce(lease, work)
		switch {
		case l.stopped():
			return errors.Join(ErrStopped, failed)
		case g.ctx.Err() != nil:
			return errors.Join(failed, held)
		}
		if failed != nil {
			l.log.Error("the work under the lock has failed", "term", lease.Term(), "err", failed)
		}
		if held != nil {
			l.log.Warn("release failed; it is repeated while this process runs", "term",
				lease.Term(), "err", held)
		}
		bounded.Sleep(g.ctx, rest)
	}
}

// leadOnce works and releases, also if work panics. rest is how long to keep out
// of the next campaign.
func leadOnce(lease *Lease, work func(*Lease) error) (rest time.Duration, failed, held error) {
	defer func() {
		rest = lease.rest()
		held = lease.Release(context.Background())
	}()
	return 0, work(lease), nil
}

// call calls what an app does while it leads. An error that only says that its
// context has ended is none.
func (l *Lock) call(ctx context.Context, lease *Lease, lead func(context.Context,
	*Lease) error) error {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lease.ctx, func() { cancel(lease.Err()) })()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		select {
		case <-lease.revoked:
			lease.Drain()
			cancel(errRevoked)
		case <-work.Done():
			if ctx.Err() != nil {
				lease.Drain()
			}
		}
	}()
	err := lead(work, lease)
	why, ended := context.Cause(work), work.Err()
	cancel(nil)
	<-drained // observers are told of it before they are told of the release
	if why != nil && saysOnly(err, why, ended) {
		return nil
	}
	return err
}

// saysOnly reports whether err says that a context has ended, with this cause and error, and
// nothing else: of errors that were joined each has to.
func saysOnly(err, cause, ended error) bool {
	if errors.Is(cause, err) || errors.Is(ended, err) { // it is one of them, or a part
		return true
	}
	switch e := err.(type) { //nolint:errorlint // level by level
	case interface{ Unwrap() []error }:
		parts := e.Unwrap()
		return len(parts) > 0 && !slices.ContainsFunc(parts, func(part error) bool {
			return !saysOnly(part, cause, ended)
		})
	case interface{ Unwrap() error }:
		return saysOnly(e.Unwrap(), cause, ended)
	}
	return errors.Is(err, cause) || errors.Is(err, ended)
}

// serve holds the lock for those who ask. Once it cannot, they have the time to
// return that a loss gives.
func (l *Lock) serve(ctx context.Context, lease *Lease) error {
	var left time.Duration
	select {
	case <-ctx.Done():
		return nil // Stop: they have returned
	case <-lease.Done():
		left = l.timing.TTL - l.clock.Since(&lease.confirmed.Load().sent)
	case <-lease.revoked:
		lease.Drain()
		left = l.timing.TTL - l.timing.RenewDeadline
	}
	bounded.Sleep(ctx, left)
	return nil
}
