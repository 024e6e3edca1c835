package schedlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// Acquire tries once; while a Wait, Run or Start of this Lock campaigns, it waits for its turn. It
// returns a *HeldError at once if the row's stamp is fresh; if the stamp is stale, or lies in the
// future, it watches the row for its holder's TTL first (a stamp proves nothing: clocks step), and
// returns a *HeldError as soon as the beat moves. A lock that is free, or whose holder
// is proven dead, is taken at once. The lease keeps itself alive until it is
// lost or the caller ends it with Release. While the last one was not released
// the error wraps ErrUnreleased, and after Stop it is ErrStopped.
func (l *Lock) Acquire(ctx context.Context) (*Lease, error) { return l.campaign(ctx, true) }

// Wait stands by until this replica leads, however long that takes. Outages of
// the database do not end it: it goes on looking, once a second (or every
// heartbeat interval, if that is shorter), and ten times more seldom while only an
// operator can mend the database. It returns when it leads, or with
// the cause of ctx's end; a cancelled waiter never leads afterwards. It does not
// wait at all while the last lease was not released (ErrUnreleased), and no
// longer than until Stop (ErrStopped). Both refuse to wait for another app: see
// WithApp.
func (l *Lock) Wait(ctx context.Context) (*Lease, error) { return l.campaign(ctx, false) }

// campaign is Acquire (once) and Wait: it looks, judges, and takes the lock or
// waits for the next look.
func (l *Lock) campaign(ctx context.Context, once bool) (*Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.stopping, func() { cancel(ErrStopped) })()
	if err := l.campaigning.Take(ctx); err != nil {
		return nil, err
	}
	defer l.campaigning.Give()
	if err := l.mayCampaign(); err != nil {
		return nil, err
	}
	l.asking.vain.Store(nil)
	var (
		seen *rules.WatchKey // the first row a one-shot Acquire saw
		view driver.Snapshot
		told driver.Release
	)
	for {
		alone := false // nothing ends the pause
		if err := l.ended(ctx); err != nil {
			return nil, err
		}
		l.settle(ctx)
		seeing, j, left, err := l.see(ctx, view, told)
		view = seeing
		if err == nil {
			if err := l.refused(l.other(view, j)); err != nil {
				return nil, err
			}
		}
		switch {
		case err != nil:
			if once || ctx.Err() != nil {
				return nil, errors.Join(l.ended(ctx), err)
			}
			left = l.retryAfter(err)
		case j.Verdict != rules.Wait || left <= 0:
			lease, err := l.take(ctx, view, j)
			if err == nil {
				return lease, nil
			}
			if ended := l.ended(ctx); ended != nil {
				return nil, ended
			}
			moved := errors.Is(err, driver.ErrConflict)
			l.unwritable.Store(!moved)
			l.mu.Lock()
			l.standby.claim = nil
			if !moved {
				l.standby.claim = err
			}
			l.mu.Unlock()
			if moved {
				left = time.Duration(1+rand.IntN(10)) * time.Millisecond
				break
			}
			l.observe(Event{Kind: EventStoreFailed, Err: err})
			if once && errors.Is(err, driver.ErrBlocked) && view.Row != nil {
				return nil, &HeldError{Info: *view.Info()}
			}
			if once {
				return nil, err
			}
			left = l.retryAfter(err)
			// Else the news of our own release would end each pause, as long as answers are lost.
			alone = l.gaveBack.Swap(false)
		case once && view.Row != nil:
			moved := seen != nil && (seen.Token != j.Key.Token || seen.Beat != j.Key.Beat)
			if moved || rules.Fresh(view, j.TTL) && (j.Grace == 0 || l.grace == 0) {
				return nil, &HeldError{Info: *view.Info()}
			}
			seen = &j.Key
		}
		if alone {
			told = driver.Release{}
			bounded.Sleep(ctx, left)
			continue
		}
		told = l.pause(ctx, view, left)
	}
}

// retryAfter is how long to leave a database alone that has failed: longer if
// only an operator can mend it.
func (l *Lock) retryAfter(err error) time.Duration {
	if errors.Is(err, driver.ErrPermanent) {
		return 10 * l.timing.RetryInterval()
	}
	return l.timing.RetryInterval()
}

// mayCampaign refuses a campaign while the last lease was not given back: its
// jobs may still run.
func (l *Lock) mayCampaign() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped() {
		return ErrStopped
	}
	return l.unreleased()
}

// unreleased is an error while work may run under the last lease; l.mu is held.
func (l *Lock) unreleased() error {
	if l.last == nil || l.last.returned.Load() {
		return nil
	}
	return fmt.Errorf("%w: call Release when its work has returned (term %d)", ErrUnreleased,
		l.last.ref.Term)
}

// ended is why a campaign must stop, nil if it may go on.
func (l *Lock) ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped() {
		return ErrStopped
	}
	return nil
}

// settle repeats the release of the last lease if that has failed, so that
// nobody waits for a TTL because of our own old row.
func (l *Lock) settle(ctx context.Context) {
	l.mu.Lock()
	last := l.last
	l.mu.Unlock()
	if last != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTry)
		defer cancel()
		_ = last.giveUp(ctx) // reported by its event; tried again at the next look
	}
}

// see is what a campaign goes by: what the store was told, or a look. left is how long
// until the next one.
func (l *Lock) see(ctx context.Context, before driver.Snapshot, told driver.Release) (
	v driver.Snapshot, j rules.Judgement, left time.Duration, err error) {
	if v, j, ok := l.believe(before, told); ok {
		return v, j, 0, nil
	}
	v, j, left, err = l.look(ctx)
	return v, j, min(left, l.timing.RetryInterval()), err
}

// believe is the look that is spared if the holder that was seen before has released its
// term, as the store was told. ok is false if that would not free the lock. The claim finds
// out whether it is true; so it is believed once for each term, and if it is false costs one
// statement.
func (l *Lock) believe(before driver.Snapshot, told driver.Release) (v driver.Snapshot,
	j rules.Judgement, ok bool) {
	r := before.Row
	if r == nil || told.Term != r.Term || told.Term == l.believed {
		return v, j, false
	}
	l.believed = told.Term
	v = driver.Snapshot{Now: before.Now, Incarnation: before.Incarnation,
		FailedOver: before.FailedOver,
		Newest: &driver.Term{Ref: r.Ref, AcquiredAt: r.CreatedAt, EndedAt: told.At,
			EndReason: driver.EndReleased, TTL: r.Timing.TTL, App: r.App}}
	l.mu.Lock()
	defer l.mu.Unlock()
	j = rules.Judge(v, l.known, l.timing.TTL)
	return v, j, j.Verdict == rules.Free
}

// look reads and judges. left is how much of the watch remains.
func (l *Lock) look(ctx context.Context) (v driver.Snapshot, j rules.Judgement, left time.Duration,
	err error) {
	opCtx, cancel := context.WithTimeout(ctx, l.opTimeout())
	defer cancel()
	sent := l.clock.Now()
	if l.grace > 0 {
		v, err = l.store.LookAtSession(opCtx)
	}
	if l.grace <= 0 || errors.Is(err, errors.ErrUnsupported) {
		v, err = l.store.Look(opCtx)
	}
	answered := l.clock.Now()
	if err != nil {
		err = fmt.Errorf("read the scheduler lock: %w", err)
		if ctx.Err() == nil {
			l.mu.Lock()
			l.standby.err = err
			l.mu.Unlock()
			l.observe(Event{Kind: EventStoreFailed, Took: answered.Sub(sent), Err: err})
		}
		return v, j, 0, err
	}
	if l.lateClaim(v.Row) && l.dropClaim(ctx, v.Row.Ref) == nil {
		return l.look(ctx)
	}

	l.mu.Lock()
	l.learn(v)
	j = rules.Judge(v, l.known, l.timing.TTL)
	l.watch = l.watch.Saw(j.Key, answered)
	left = l.watch.Remaining(j.TTL, sent)
	if l.grace > 0 && j.Grace > 0 {
		l.silence = l.silence.Saw(j.Key, answered)
		if soon := l.silence.Remaining(max(j.Grace, l.grace), sent); soon < left {
			left, j.Reason = soon, driver.EndSessionEnded
		}
	} else {
		l.silence = rules.Watch{}
	}
	news := v.Row != nil && (l.last == nil || l.last.ref.Token != v.Row.Token) &&
		(!l.standby.looked || l.standby.view.Row == nil ||
			l.standby.view.Row.RawToken != v.Row.RawToken)
	claim := l.standby.claim
	if j.Verdict == rules.Wait && left > 0 {
		claim = nil
	}
	l.standby = standby{looked: true, view: v, at: answered, judged: j, claim: claim}
	if l.last == nil && v.Row != nil && j.Verdict == rules.Wait && left > 0 {
		l.unwritable.Store(false) // another leads: there is nothing to write
	}
	l.mu.Unlock()
	if l.failing.Load() && !l.unwritable.Load() {
		l.observe(Event{Kind: EventStoreRecovered, Took: answered.Sub(sent)})
	}
	l.sayUnproven()
	l.sayOther(l.other(v, j))
	if news && j.Verdict == rules.Wait {
		l.observe(Event{Kind: EventStandby, Holder: v.Info()})
	}
	return v, j, left, nil
}

// pause waits until the next look is due, or the store has a hint.
func (l *Lock) pause(ctx context.Context, v driver.Snapshot, d time.Duration) driver.Release {
	if d <= 0 {
		return driver.Release{}
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return l.store.AwaitHint(ctx, v)
}
