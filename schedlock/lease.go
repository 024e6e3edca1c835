package schedlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/clock"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// A Lease is leadership from one acquisition to its end. It renews itself, by a
// heartbeat every heartbeat interval. It ends by Release, or by loss: the renew
// deadline passed without a heartbeat that succeeded, or a heartbeat found that the
// row is no longer ours. Either way the order is the same: no longer leader,
// context cancelled, and only then the database. All methods are safe for
// concurrent use.
type Lease struct {
	lock   *Lock
	ref    driver.Ref
	ctx    context.Context
	cancel context.CancelCauseFunc

	confirmed atomic.Pointer[confirmation]
	trust     atomic.Pointer[trust]
	finished  atomic.Bool
	draining  atomic.Bool
	leaving   atomic.Bool // Drain was called: its owner leaves, and will release it
	revoked   chan struct{}
	revoke    sync.Once
	ending    sync.Once
	begun     chan struct{} // closed when observers were told of the acquisition
	told      chan struct{} // closed when observers were told of the end, if it is a loss
	returned  atomic.Bool   // Release was called: its work has returned
	busy      bounded.Turn  // one statement at a time: heartbeat and release never cross
	settled   bool          // the row is not ours any more; guarded by busy
	unsure    bool          // a release had no answer, so the row may be gone; guarded by busy
	sight     sight
	renewal   renewal
}

// A confirmation is the last time that the database said that we lead.
type confirmation struct {
	sent     clock.Instant // when we asked: the renew deadline counts from here
	answered time.Time     // when it answered …
	dbNow    time.Time     // … and what its clock said
}

// trust is until when the leader check says yes if nothing else happens.
type trust struct {
	from  clock.Instant
	lasts time.Duration
}

func newLease(l *Lock, ref driver.Ref, c confirmation, s driver.Session) *Lease {
	lease := &Lease{lock: l, ref: ref, revoked: make(chan struct{}), begun: make(chan struct{}),
		told: make(chan struct{}), busy: bounded.NewTurn()}
	lease.ctx, lease.cancel = context.WithCancelCause(context.Background())
	lease.renewal.ctx, lease.renewal.stop = context.WithCancel(lease.ctx)
	lease.renewal.soon = make(chan struct{}, 1)
	lease.confirm(c, s)
	return lease
}

// Context ends when leadership ends; every job gets it or a child of it. Its
// cause wraps ErrLost or ErrReleased.
func (l *Lease) Context() context.Context { return l.ctx }

// Done is closed when the lease has ended; Err then says why.
func (l *Lease) Done() <-chan struct{} { return l.ctx.Done() }

// Err is nil while the lease lasts, and then the cause of its end: an error
// that wraps ErrLost or ErrReleased.
func (l *Lease) Err() error { return context.Cause(l.ctx) }

// Term is the fencing token: it grows with every acquisition in the fleet. An
// outside system that can compare numbers accepts a write only if its term is
// not below the highest it has seen.
func (l *Lease) Term() int64 { return l.ref.Term }

// Ref names the lease in the database.
func (l *Lease) Ref() driver.Ref { return l.ref }

// Revoked is closed when an operator has told this replica to leave: its owner
// should drain and release. If the owner does not call Drain, the lease drains
// itself, and ends TTL − renew deadline later.
func (l *Lease) Revoked() <-chan struct{} { return l.revoked }

// Confirmed is how long ago the heartbeat was sent, or the acquisition, that last
// confirmed the lease. Below the renew deadline it is trusted, and from the TTL on
// another replica may lead.
func (l *Lease) Confirmed() time.Duration {
	return l.lock.clock.Since(&l.confirmed.Load().sent)
}

// Now is the database's time: as of the last heartbeat, plus what the
// monotonic clock has counted since. The wall clock of this machine does not
// matter to it.
func (l *Lease) Now() time.Time {
	c := l.confirmed.Load()
	return c.dbNow.Add(l.lock.clock.Now().Sub(c.answered))
}

// check is the leader check: lock-free, one time.Now(). A lease found past its
// renew deadline has ended for good.
func (l *Lease) check() error {
	if l.finished.Load() {
		return ErrNotLeader
	}
	if t := l.trust.Load(); rules.Over(l.lock.clock.Since(&t.from), t.lasts) {
		if !l.pastDeadline() {
			return ErrSuspended
		}
		l.expire()
		return ErrNotLeader
	}
	if l.draining.Load() {
		return ErrDraining
	}
	return nil
}

func (l *Lease) pastDeadline() bool {
	return rules.Over(l.lock.clock.Since(&l.confirmed.Load().sent), l.lock.timing.RenewDeadline)
}

// watch ends the lease when its deadline has passed, even if nobody asks, and
// keeps its session in sight. It looks several times a second at the most
// because timers do not count the time for which the machine was suspended.
func (l *Lease) watch() {
	for {
		left := l.lock.timing.RenewDeadline - l.lock.clock.Since(&l.confirmed.Load().sent)
		if left <= 0 {
			l.expire()
			return
		}
		l.lock.warn()
		soon, ended, changed := l.look()
		if soon <= 0 && (ended == nil || !l.lookAgain(ended)) {
			l.expireSession()
			return
		}
		next := watchInterval(l.lock.timing)
		if ended != nil {
			next = min(next, l.lock.grace/looksPerGrace)
		}
		timer := time.NewTimer(min(left, soon, next))
		select {
		case <-l.ctx.Done():
		case <-ended:
			l.suspend()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
		if l.ctx.Err() != nil {
			return
		}
	}
}

// awaitLoss ends the lease as soon as the store knows that it cannot go on.
func (l *Lease) awaitLoss() {
	if err := l.lock.store.AwaitLoss(l.ctx, l.ref); err != nil {
		l.lose(context.Background(), Event{Err: fmt.Errorf("term %d: %w", l.ref.Term, err),
			Loss: LossRow})
	}
}

func (l *Lease) expire() {
	cause := fmt.Errorf("%w: no heartbeat succeeded within the renew deadline of %v", ErrLost,
		l.lock.timing.RenewDeadline)
	l.lose(context.Background(), Event{Err: cause, Loss: LossDeadline})
}

// Heartbeat renews the lease at once: one try, one statement. The lease renews
// itself, so nobody needs it but who has taken that over, or wants to ask the
// database before something that cannot be undone. nil: renewed, counted
// from when it was sent. An error that wraps ErrLost or ErrReleased: the lease
// has ended, its context is cancelled, the error says why. Any other error:
// the lease still lasts until its renew deadline; try again soon
// ([driver.Timing.RetryInterval]). An answer that comes after the deadline does not
// revive the lease.
func (l *Lease) Heartbeat(ctx context.Context) error {
	if l.busy.Take(ctx) != nil {
		return ctx.Err() // not its cause, which may be the end of another lease
	}
	defer l.busy.Give()
	if err := l.Err(); err != nil {
		return err
	}
	sent := l.lock.clock.Read()
	left := l.lock.timing.RenewDeadline - l.lock.clock.Since(&l.confirmed.Load().sent)
	if left <= 0 {
		l.expire()
		return l.Err()
	}
	state := driver.StateLeading
	if l.draining.Load() {
		state = driver.StateDraining
	}
	// If this process was stopped, the answer may have arrived: it is read before the time-out
	// ends the session, by which others judge.
	opCtx, cancel := bounded.Patient(ctx, min(left, l.lock.opTimeout()))
	defer cancel()
	beat, err := l.lock.store.Heartbeat(opCtx, l.ref, state)
	answered := l.lock.clock.Now()
	took := answered.Sub(sent.At)
	switch {
	case l.pastDeadline():
		l.expire()
		return l.Err()
	case errors.Is(err, ErrCorrupt):
		l.StepDown(fmt.Errorf("heartbeat of term %d: %w", l.ref.Term, err))
		return l.Err()
	case errors.Is(err, ErrLost):
		l.lose(ctx, Event{Err: fmt.Errorf("heartbeat of term %d: %w", l.ref.Term, err),
			Loss: LossRow, Took: took})
		return l.Err()
	case err != nil && l.Err() != nil:
		return l.Err()
	case err != nil:
		err = fmt.Errorf("heartbeat of term %d: %w", l.ref.Term, err)
		if !errors.Is(ctx.Err(), context.Canceled) { // else the caller gave up, not the database
			l.observe(Event{Kind: EventHeartbeatFailed, Took: took, Err: err})
		}
		return err
	}
	l.confirm(confirmation{sent: sent, answered: answered, dbNow: beat.Now}, beat.Session)
	l.observe(Event{Kind: EventHeartbeat, Took: took})
	if beat.State == driver.StateRevoked {
		l.revoke.Do(func() {
			close(l.revoked)
			v, _ := l.lookToTell(ctx) // without an answer nobody is told who gave the order
			l.observe(Event{Kind: EventRevoked, Holder: v.Info()})
		})
	}
	return l.Err()
}

// lose ends the lease by a loss, and tells observers of it; if the row is not ours any more,
// with who stands in our place. A release waits for that, so that they hear of it later.
func (l *Lease) lose(ctx context.Context, e Event) {
	ended, first := l.end(e.Err)
	if !first {
		return
	}
	if e.Loss == LossRow {
		e.Holder = ended.successor(ctx)
	}
	e.Kind = EventLost
	l.observe(e)
	close(l.told)
}

// observe tells observers of the lease, once they were told of its acquisition: it may end at once.
func (l *Lease) observe(e Event) {
	<-l.begun
	e.Term = l.ref.Term
	l.lock.observe(e)
}

// StepDown ends the lease without a release, because its owner has found that
// it cannot do a leader's work; why becomes part of the cause, which wraps
// ErrLost. Call Release when the work under the lease has returned.
func (l *Lease) StepDown(why error) {
	cause := fmt.Errorf("%w: stepped down: %w", ErrLost, why)
	l.lose(context.Background(), Event{Err: cause, Loss: LossSteppedDown})
}

// Drain announces that this replica is leaving: from now on IsLeader fails, so
// that nothing new starts, while the lease and its context go on for the work
// that runs. Call Release when that work has returned. The row says "draining"
// from the next heartbeat on.
func (l *Lease) Drain() {
	l.leaving.Store(true)
	l.drain()
}

func (l *Lease) drain() {
	if l.ctx.Err() != nil || !l.draining.CompareAndSwap(false, true) {
		return
	}
	l.observe(Event{Kind: EventDraining})
	select {
	case l.renewal.soon <- struct{}{}: // so that the row says it
	default:
	}
}

// Fence, as the first statement of the caller's own transaction, makes sure
// that the lease holds, and stays held until the transaction ends: a replica
// that was paused and has lost the lock meanwhile cannot commit. It returns an
// error that wraps ErrLost or ErrReleased if the lease is over; roll the
// transaction back then. ErrNoFence: tx is not on the lock's database, or the store has none;
// from a database of another kind than the lock's, its own error may come instead.
//
// On PostgreSQL a fence behind a savepoint ends with the roll-back to it, and
// guards nothing any more. So fence the outer transaction, before its first
// savepoint; what Begin of a pgx.Tx returns is a savepoint, and is refused. So
// is one made by hand, except where others hold the row at the same moment. On
// SQLite the fence outlives the roll-back.
//
// On SQLite the transaction must be BEGIN IMMEDIATE (or the fence its first
// statement) and shorter than renew deadline − heartbeat interval, because the
// heartbeats wait for it.
func (l *Lease) Fence(ctx context.Context, tx any) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.lock.store.Fence(ctx, tx, l.ref); err != nil {
		return fmt.Errorf("fence of term %d: %w", l.ref.Term, err)
	}
	return nil
}
