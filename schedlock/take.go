package schedlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// take puts this replica in the place of the holder that was judged. If the
// answer is lost the row is looked up by its token. If the caller has gone
// meanwhile, or the answer came too late, the lock is given back.
func (l *Lock) take(ctx context.Context, v driver.Snapshot, j rules.Judgement) (*Lease, error) {
	claim := driver.Claim{
		Ref:      driver.Ref{Owner: l.owner, Token: driver.NewToken()},
		App:      l.app,
		Timing:   l.timing,
		Grace:    l.grace,
		Expected: v,
		Reason:   j.Reason,

		Watched: j.Verdict == rules.Wait,
	}
	l.mu.Lock()
	claim.MinTerm = l.known.Term + 1
	l.claims = append(l.claims[max(0, len(l.claims)-maxClaims+1):], claim.Token)
	l.mu.Unlock()

	opCtx, cancel := context.WithTimeout(ctx, l.opTimeout())
	defer cancel()
	sent := l.clock.Read()
	grant, err := l.store.Acquire(opCtx, claim)
	if errors.Is(err, driver.ErrConflict) {
		l.forget(claim.Token)
		return nil, err
	}
	if err != nil {
		found, lookErr := l.find(ctx, claim.Token)
		if lookErr != nil || found == nil {
			// Not there, or not known: should it appear later, the next look
			// drops it. In a database that is not the lock's any more nobody waits
			// for it. (A caller who is gone may have lost another lock.)
			if errors.Is(err, ErrLost) && ctx.Err() == nil {
				l.forget(claim.Token)
			}
			return nil, fmt.Errorf("acquire the scheduler lock: %w", err)
		}
		// On a session that has ended we seem dead to others. A term that the history does not
		// have was edited, and another may get it, too.
		if found.Grace > 0 || found.edited {
			return nil, errors.Join(fmt.Errorf("acquire the scheduler lock: %w", err),
				l.dropClaim(ctx, found.Ref))
		}
		grant = driver.Grant{Term: found.Term, Now: found.now}
	}
	answered := l.clock.Now()
	took := answered.Sub(sent.At)
	ref := claim.Ref
	ref.Term = grant.Term
	if ended := l.ended(ctx); ended != nil {
		return nil, errors.Join(ended, l.dropClaim(ctx, ref))
	}
	if rules.Over(l.clock.Since(&sent), l.timing.RenewDeadline) {
		err := fmt.Errorf("the answer came after %v, past the renew deadline of %v", took,
			l.timing.RenewDeadline)
		return nil, errors.Join(err, l.dropClaim(ctx, ref))
	}

	lease := newLease(l, ref, confirmation{sent: sent, answered: answered, dbNow: grant.Now},
		grant.Session)
	l.mu.Lock()
	if l.stopped() {
		l.mu.Unlock()
		lease.cancel(ErrStopped)
		return nil, errors.Join(ErrStopped, l.dropClaim(ctx, ref))
	}
	l.claims = nil // the views that the earlier ones judged have moved: none can land any more
	l.known = driver.Term{Ref: ref, AcquiredAt: grant.Now, TTL: l.timing.TTL}
	l.last = lease
	l.current.Store(lease)
	l.mu.Unlock()
	go lease.watch()
	e := Event{Kind: EventElected, Term: ref.Term, Took: took, Holder: v.Info(),
		Gap: gap(v, grant.Now)}
	switch {
	case j.Key.Open || j.Key.Held && v.Newest == nil:
		e.Reason = j.Reason
	case v.Newest != nil:
		e.Reason = v.Newest.EndReason
	}
	l.observe(e) // before a heartbeat, or the loss of the row
	close(lease.begun)
	if !l.byHand {
		lease.renewItself()
	}
	go lease.awaitLoss()
	l.sayUnproven() // the claim took what proves a death, or could not
	return lease, nil
}

// gap is for how long nobody led, at the most, before an acquisition at now.
func gap(v driver.Snapshot, now time.Time) time.Duration {
	var last time.Time
	switch t := v.Newest; {
	case v.Row != nil:
		last = v.Row.HeartbeatAt
	case t == nil:
		return 0
	case t.Open():
		last = t.AcquiredAt
	default:
		last = t.EndedAt
	}
	return max(now.Sub(last), 0)
}

// find looks an acquisition up whose answer was lost. It works for a cancelled
// caller too, so that what was acquired can be given back.
func (l *Lock) find(ctx context.Context, token driver.Token) (*found, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBudget)
	defer cancel()
	v, err := l.store.Look(ctx)
	if err != nil || v.Row == nil || v.Row.Token != token {
		return nil, err
	}
	edited := v.Newest == nil || v.Newest.Token != token || v.Newest.Term != v.Row.Term
	return &found{Row: *v.Row, now: v.Now, edited: edited}, nil
}

// found is the row of an acquisition whose answer was lost.
type found struct {
	driver.Row
	now    time.Time
	edited bool // by hand, since it was put in
}

func (l *Lock) forget(t driver.Token) {
	l.mu.Lock()
	l.claims = slices.DeleteFunc(l.claims, func(c driver.Token) bool { return c == t })
	l.mu.Unlock()
}

// lateClaim reports whether the row was put in by an acquisition of ours, after
// we had given up waiting for its answer.
func (l *Lock) lateClaim(r *driver.Row) bool {
	if r == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.claims, r.Token)
}

// dropLateClaim looks whether there is such a row, and gives it back. Its caller has the turn to
// campaign, or has stopped the Lock: else it could be a row whose answer is on its way to another
// goroutine, which would lead with it.
func (l *Lock) dropLateClaim(ctx context.Context) error {
	v, err := l.store.Look(ctx)
	if err == nil && l.lateClaim(v.Row) {
		err = l.dropClaim(ctx, v.Row.Ref)
	}
	if err != nil {
		return fmt.Errorf("give back an acquisition that was never answered: %w", err)
	}
	return nil
}

// dropClaim gives back what an acquisition got that will not be used.
func (l *Lock) dropClaim(ctx context.Context, ref driver.Ref) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBudget)
	defer cancel()
	l.gaveBack.Store(true) // also if that answer is lost
	_, err := l.store.Release(ctx, ref, driver.EndReleased)
	if err == nil {
		l.forget(ref.Token)
	}
	return err
}
