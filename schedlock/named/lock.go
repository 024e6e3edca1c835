package named

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

const (
	// unlockTimeout bounds a release, whatever the caller's context says.
	unlockTimeout = 5 * time.Second
	// extendRest is how long an extension goes on when the lock has ended meanwhile: to
	// cut it short costs the connection that the release needs next. One that hangs must
	// not take all of the release's time.
	extendRest = unlockTimeout / 5
)

// A Lock is one acquisition, from when it was taken to its end: by Unlock, or
// by loss, when ¾ TTL have passed since it was taken or last extended, or the
// database says that it is no longer ours. Either way the order is the same: no
// longer ours, context cancelled, and only then the database. A Lock that has
// ended stays so. All methods are safe for concurrent use.
type Lock struct {
	locks  *Locks
	ref    namedlock.Ref
	ttl    time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc

	also      atomic.Pointer[context.CancelCauseFunc] // of the context of a function under the lock
	confirmed atomic.Pointer[clock.Stopwatch]         // when the last success was sent
	finished  atomic.Bool
	ending    sync.Once
	keeping   sync.Once
	keepAlive chan struct{} // closed: extend it
	busy      bounded.Turn  // one statement at a time
	settled   bool          // the row is not ours any more; guarded by busy
	gone      error         // what the release found: the row was not ours; guarded by busy
	unsure    bool          // a release had no answer, so the row may be free; guarded by busy
}

func newLock(l *Locks, ref namedlock.Ref, ttl time.Duration, sent clock.Stopwatch) *Lock {
	k := &Lock{locks: l, ref: ref, ttl: ttl, keepAlive: make(chan struct{}),
		busy: bounded.NewTurn()}
	k.ctx, k.cancel = context.WithCancelCause(context.Background())
	k.confirmed.Store(&sent)
	go k.watch()
	go k.keep()
	return k
}

// trusted is for how long after it was sent a success is trusted. The rest of
// the TTL is what the holder's work has to stop; 10 % of it allow for clock
// rates that differ.
func trusted(ttl time.Duration) time.Duration { return ttl * 3 / 4 }

// Name returns the name that was locked.
func (k *Lock) Name() string { return k.ref.Name }

// Term is the fencing token: of one name it grows with every acquisition. An
// outside system that can compare numbers accepts a write only if its term is
// not below the highest it has seen.
func (k *Lock) Term() int64 { return k.ref.Term }

// Ref names the acquisition in the database.
func (k *Lock) Ref() namedlock.Ref { return k.ref }

// Context ends when the lock does; work under it gets this context or a child
// of it. Its cause wraps schedlock.ErrLost or schedlock.ErrReleased.
func (k *Lock) Context() context.Context { return k.ctx }

// Done is closed when the lock has ended; Err then says why.
func (k *Lock) Done() <-chan struct{} { return k.ctx.Done() }

// Err is nil while the lock lasts, and then the cause of its end: an error that
// wraps schedlock.ErrLost or schedlock.ErrReleased.
func (k *Lock) Err() error { return context.Cause(k.ctx) }

// Confirmed is how long ago the lock was taken or last extended, counted from
// when that was sent. Below ¾ TTL it is trusted.
func (k *Lock) Confirmed() time.Duration { return k.confirmed.Load().Elapsed() }

// Check returns nil while the lock is held and trusted, else Err. It asks no
// database and allocates nothing: use it in a loop.
func (k *Lock) Check() error {
	if k.holds() {
		return nil
	}
	return k.ended()
}

// ended is the cause of the end of a lock that is not held any more: of one
// that another goroutine is just ending, too.
func (k *Lock) ended() error {
	<-k.ctx.Done()
	return k.Err()
}

// holds is the holder's rule.
func (k *Lock) holds() bool {
	if k.finished.Load() {
		return false
	}
	if k.Confirmed() >= trusted(k.ttl) {
		k.expire()
		return false
	}
	return true
}

// Owned asks the database whether the row is this lock's. It ends nothing.
func (k *Lock) Owned(ctx context.Context) (bool, error) {
	row, err := k.locks.look(ctx, k.ref.Key)
	if err != nil {
		return false, err
	}
	return row != nil && row.Token == k.ref.Token && row.Term == k.ref.Term, nil
}

// watch ends the lock when its time is over, even if nobody asks. It looks
// several times a second at the most, because timers do not count the time for
// which the machine was suspended.
func (k *Lock) watch() {
	tick := time.NewTicker(max(min(time.Second, (k.ttl-trusted(k.ttl))/4), time.Millisecond))
	defer tick.Stop()
	for k.holds() {
		deadline := time.NewTimer(trusted(k.ttl) - k.Confirmed())
		select {
		case <-k.ctx.Done():
		case <-tick.C:
		case <-deadline.C:
		}
		deadline.Stop()
	}
}

func (k *Lock) expire() {
	k.end(lost(k.ref.Key, k.ref.Term, fmt.Sprintf("it was not extended within %v",
		trusted(k.ttl)), nil))
}

// end ends the lock: no longer ours, then context cancelled.
func (k *Lock) end(cause error) {
	k.ending.Do(func() {
		k.finished.Store(true)
		k.cancel(cause)
		if cancel := k.also.Load(); cancel != nil {
			(*cancel)(cause)
		}
	})
}

// Extend lets the lock last a whole TTL from now: one statement. nil: it does,
// counted from when it was sent. An error that wraps schedlock.ErrLost or
// schedlock.ErrReleased: the lock has ended. Any other: the lock lasts as long
// as before; try again soon. A lock that has ended is never revived, neither by
// an answer that comes too late nor because nobody else has taken it.
func (k *Lock) Extend(ctx context.Context) error {
	caller := ctx
	if k.busy.Take(caller) != nil {
		return broken("extend", k.ref.Key, caller.Err())
	}
	defer k.busy.Give()
	if err := k.Check(); err != nil {
		return err
	}
	sent := clock.StartStopwatch()
	ctx, cancel := context.WithTimeout(caller, min(trusted(k.ttl)-k.Confirmed(),
		max(k.ttl/3, time.Second), lookTimeout))
	defer cancel()
	defer context.AfterFunc(k.ctx, func() { time.AfterFunc(extendRest, cancel) })()
	ours, err := k.locks.store.Extend(ctx, k.ref, k.ttl)
	switch {
	case !k.holds(): // whatever the answer says
	case err != nil && caller.Err() != nil: // the cause of that may be the loss of another lock
		return broken("extend", k.ref.Key, caller.Err())
	case errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrCorrupt):
		k.end(lost(k.ref.Key, k.ref.Term, "it could not be extended", err))
	case err != nil:
		return broken("extend", k.ref.Key, err)
	case !ours:
		cause := lost(k.ref.Key, k.ref.Term, "its row has expired, or is another's", nil)
		k.end(cause) // another may hold it already, and the database may not answer again
		k.explain(ctx, cause)
	default:
		k.confirmed.Store(&sent)
	}
	return k.Check()
}

// KeepAlive extends the lock in the background until it ends: whenever a third of the
// TTL has passed since the last success was sent. An extension that fails is repeated
// until the lock is lost; the first one of an outage is in the log, at WARN. It may be
// called again, and does nothing then.
func (k *Lock) KeepAlive() {
	k.keeping.Do(func() { close(k.keepAlive) })
}

// keep is apart from watch: a statement that hangs must not keep the lock from
// ending.
func (k *Lock) keep() {
	select {
	case <-k.keepAlive:
	case <-k.ctx.Done():
		return
	}
	retry := min(max(k.ttl/20, 5*time.Millisecond), time.Second)
	failing := false
	for {
		// From the last success, as that is what the lock lasts from: it may have been
		// long before KeepAlive was called, or its answer slow.
		pause := k.ttl/3 - k.Confirmed()
		if failing {
			pause = retry
		}
		if !bounded.Sleep(k.ctx, pause) {
			return
		}
		// Not with the lock's context, which would cut it off at once: see extendRest.
		err := k.Extend(context.WithoutCancel(k.ctx))
		switch {
		case k.ctx.Err() != nil: // whoever ends it says so
		case err == nil && failing:
			k.locks.log.Info("the lock is extended again", "lock", k.ref.Key.String(),
				"term", k.ref.Term)
		case err != nil && !failing:
			k.locks.log.Warn("the lock could not be extended: it is tried again until the lock "+
				"is lost", "lock", k.ref.Key.String(), "term", k.ref.Term,
				"lost_in", trusted(k.ttl)-k.Confirmed(), "err", err)
		case err != nil:
			k.locks.log.Debug("the lock could not be extended, trying again",
				"lock", k.ref.Key.String(), "term", k.ref.Term, "err", err)
		}
		failing = err != nil
	}
}

// Unlock releases the lock. Call it when all work under the lock has returned.
// Order: no longer ours, context cancelled, and then the row is freed (that of
// a task lock when its time to rest is over). An extension that is under way has
// 1 s more, and is then cut off. The error wraps schedlock.ErrLost if the lock was
// lost before; a row that is another's by then, or has expired, is not touched.
//
// It works with a cancelled context, under a deadline of its own (5 s). It may
// be called again: after an error of the database it tries again, else it only
// returns the same. If it is not, the TTL frees the lock.
func (k *Lock) Unlock(ctx context.Context) error {
	if k.holds() {
		k.end(released(k.ref.Key, k.ref.Term))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	err := k.free(ctx)
	if cause := k.ended(); errors.Is(cause, driver.ErrLost) && !errors.Is(err, driver.ErrLost) {
		err = errors.Join(cause, err)
	}
	return err
}

// free gives up the row of a lock that has ended.
func (k *Lock) free(ctx context.Context) error {
	if err := k.busy.Take(ctx); err != nil {
		return broken("release", k.ref.Key, err)
	}
	defer k.busy.Give()
	if k.settled {
		return k.gone
	}
	ours, err := k.locks.store.Release(ctx, k.ref, true)
	switch {
	case errors.Is(err, driver.ErrLost) || err == nil && !ours &&
		(!k.unsure || k.revocation(ctx) != nil):
		k.gone = lost(k.ref.Key, k.ref.Term,
			"when it was released its row had expired, or was another's", err)
	case err != nil:
		k.unsure = true
		return broken("release", k.ref.Key, err)
	}
	k.settled = true
	return k.gone
}

// Fence, as the first statement of the caller's own transaction, makes sure
// that the lock is ours, and stays so until the transaction ends: a holder that
// was paused and has lost the lock meanwhile cannot commit. It returns an error
// that wraps schedlock.ErrLost if the lock is over; roll the transaction back
// then. schedlock.ErrNoFence: tx is not on the lock's database, or the store
// has none.
//
// tx is a pgx.Tx or a *sql.Tx on PostgreSQL, where extending passes and a
// take-over waits. There a fence behind a savepoint ends with the roll-back to
// it, so fence the outer transaction; what Begin of a pgx.Tx returns is a
// savepoint, and is refused. It is a *sql.Tx on SQLite; it must be BEGIN IMMEDIATE (or
// the fence its first statement) and shorter than what the lock has left,
// because extending waits for it.
func (k *Lock) Fence(ctx context.Context, tx any) error {
	if err := k.Check(); err != nil {
		return err
	}
	ours, err := k.locks.store.Fence(ctx, tx, k.ref, k.ttl)
	switch {
	case err != nil:
		return broken("fence of", k.ref.Key, err)
	case !ours:
		return lost(k.ref.Key, k.ref.Term, "its row has expired, or is another's", nil)
	}
	return nil
}

// with runs fn under the lock and releases it.
func (k *Lock) with(ctx context.Context, keep bool, fn func(context.Context,
	*Lock) error) (err error) {
	child, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k.also.Store(&cancel)
	if k.ctx.Err() != nil {
		cancel(k.Err()) // it ended before it could know
	}
	if keep {
		k.KeepAlive()
	}
	defer func() { // also when fn panics
		unlocked := k.Unlock(ctx)
		if errors.Is(unlocked, driver.ErrLost) {
			err = errors.Join(err, unlocked)
		} else if unlocked != nil {
			k.locks.log.Warn("a lock could not be released: it ends with its TTL", "lock",
				k.ref.Key.String(), "term", k.ref.Term, "err", unlocked)
		}
	}()
	return fn(child, k)
}
