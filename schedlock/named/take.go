package named

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

const (
	// takeTimeout bounds one acquisition, and giveBackTimeout what follows if
	// its outcome is unknown.
	takeTimeout     = 10 * time.Second
	giveBackTimeout = 2 * time.Second

	// lookTimeout bounds one look or extension, and maxUnanswered how many statements in a
	// row a wait gives up before it gives up itself.
	lookTimeout   = 10 * time.Second
	maxUnanswered = 3

	// cleanTimeout bounds the clean-up by the way.
	cleanTimeout = time.Second
)

// try makes one attempt, after which a lock that is held gives a *HeldError.
func (l *Locks) try(ctx context.Context, key Key, ttl, hold time.Duration) (*Lock, error) {
	if err := l.begin(ctx, key); err != nil {
		return nil, err
	}
	return l.take(ctx, key, ttl, hold)
}

// takeFor is try for a lock that nobody holds: it only rests.
func (l *Locks) takeFor(ctx context.Context, key Key, d time.Duration) (term int64, err error) {
	if err := l.begin(ctx, key); err != nil {
		return 0, err
	}
	ref, _, err := l.claim(ctx, key, d, d)
	return ref.Term, err
}

func (l *Locks) begin(ctx context.Context, key Key) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if l.cleaning() {
		l.cleanByTheWay(ctx)
	}
	return nil
}

// take asks the store, and makes a Lock of its answer.
func (l *Locks) take(ctx context.Context, key Key, ttl, hold time.Duration) (*Lock, error) {
	ref, sent, err := l.claim(ctx, key, ttl, hold)
	if err != nil {
		return nil, err
	}
	if took := sent.Elapsed(); took >= trusted(ttl) {
		l.giveBack(ctx, ref)
		return nil, fmt.Errorf("take %s: the database answered after %v, "+
			"when it could not be trusted any more", key, took.Round(time.Millisecond))
	}
	return newLock(l, ref, ttl, sent), nil
}

// claim asks the store until the lock is taken, or somebody else holds it. If the
// answer is neither, the holder has left meanwhile, and it asks again.
func (l *Locks) claim(ctx context.Context, key Key, ttl,
	hold time.Duration) (namedlock.Ref, clock.Stopwatch, error) {
	var sent clock.Stopwatch
	if ctx.Err() != nil {
		return namedlock.Ref{}, sent, broken("take", key, context.Cause(ctx))
	}
	bounded, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	for {
		c := namedlock.Claim{Key: key, Owner: l.owner, Token: driver.NewToken(), TTL: ttl,
			Hold: hold}
		sent = clock.StartStopwatch()
		term, holder, err := l.store.Take(bounded, c)
		ref := namedlock.Ref{Key: key, Token: c.Token, Term: term}
		switch {
		case err != nil:
			l.giveBack(ctx, ref)
			return namedlock.Ref{}, sent, broken("take", key, err)
		case term != 0:
			return ref, sent, nil
		case holder != nil:
			return namedlock.Ref{}, sent, &HeldError{Info: holder.Info}
		}
	}
}

// giveBack frees what nobody will use: what an acquisition may have got whose
// answer never came, or came too late. If it fails too, the TTL frees it.
func (l *Locks) giveBack(ctx context.Context, ref namedlock.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	_, _ = l.store.Release(ctx, ref, false)
}

func (l *Locks) cleanByTheWay(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	if _, err := l.store.Clean(ctx, cleanLimit); err != nil {
		l.log.Debug("named locks were not cleaned up", "err", err)
	}
}

// wait tries until it has the lock or ctx ends. failed, if it is not nil, is
// told of errors of the store, which then do not end the wait, and nil once the
// store has answered again.
func (l *Locks) wait(ctx context.Context, key Key, failed func(error)) (*Lock, error) {
	var (
		inTheWay   *HeldError // the last
		notBefore  time.Time  // by our own clock
		unanswered int        // in a row
	)
	lock, err := l.try(ctx, key, l.ttl, 0)
	for longest := minPause; ; longest = min(longest*3/2, l.maxPause) {
		held, isHeld := errors.AsType[*HeldError](err)
		if isHeld {
			inTheWay = held
		}
		// Nobody gives up what was forgotten, so we know how long it takes.
		if isHeld && held.Info.FailedOver {
			notBefore = time.Now().Add(held.Info.Left)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			unanswered++
		} else {
			unanswered = 0
		}
		switch {
		case err == nil:
			return lock, nil
		case ctx.Err() != nil:
			return nil, gaveUp(ctx, key, inTheWay, err)
		case unanswered > 0 && unanswered < maxUnanswered && failed == nil:
		case isHeld && failed != nil:
			failed(nil)
		case !isHeld && failed != nil:
			failed(err)
		case !isHeld:
			return nil, err
		}
		if !bounded.Sleep(ctx, pause(longest, held)) {
			return nil, gaveUp(ctx, key, inTheWay, err)
		}
		// A database whose clock is set forward now must not shorten that.
		if left := time.Until(notBefore); left > 0 {
			err = &HeldError{Info: Info{Key: key, Left: left, FailedOver: true}}
			continue
		}
		// A look is cheaper than an attempt, and does not write.
		row, lookErr := l.look(ctx, key)
		switch {
		case lookErr != nil:
			err = lookErr
		case row != nil && !row.Unsure:
			err = &HeldError{Info: row.Info}
		default:
			lock, err = l.take(ctx, key, l.ttl, 0)
		}
	}
}

func gaveUp(ctx context.Context, key Key, inTheWay *HeldError, err error) error {
	if inTheWay != nil {
		err = inTheWay
	}
	return fmt.Errorf("wait for %s: %w: %w", key, context.Cause(ctx), err)
}

// pause is how long to wait before the next look: with jitter, so that those
// who wait do not all look at once, and not much longer than the holder has
// left.
func pause(longest time.Duration, held *HeldError) time.Duration {
	d := longest/2 + rand.N(longest/2)
	if held != nil {
		d = min(d, max(held.Info.Left, 0)+time.Millisecond+rand.N(5*time.Millisecond))
	}
	return d
}
