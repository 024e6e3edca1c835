package named

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// An Election chooses one leader among the replicas that use its name: for
// those who need a leader besides the scheduler's. It is a named lock of a kind
// of its own that is kept alive. All methods are safe for concurrent use.
//
//	for {
//		lock, err := election.WaitForLeader(ctx)
//		if err != nil {
//			break // ctx has ended
//		}
//		lead(lock.Context()) // returns when that ends
//	}
//	_ = election.Resign(ctx)
type Election struct {
	locks *Locks
	key   Key

	current     atomic.Pointer[Lock] // nil: never led, or resigned
	campaigning bounded.Turn         // one campaign at a time
	outage      bounded.Outage
}

// NewElection makes an Election on a store. name is that of the leader's
// office; if it is "" the environment has it, see FromEnv. It touches no
// database, and campaigns only in WaitForLeader. The error names every setting
// that is wrong, with its value and the rule.
func NewElection(store namedlock.Store, name string, opts ...Option) (*Election, error) {
	s, err := newSettings(append([]Option{withName(name)}, opts...))
	if store == nil {
		err = errors.Join(errors.New("store is nil"), err)
	}
	if wrong := checkName(s.name.value); wrong != nil {
		if s.name.from != "" {
			wrong = prefixed(s.name.from, wrong)
		}
		err = errors.Join(err, wrong)
	}
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return &Election{locks: newLocks(store, s), key: Key{Kind: KindElection, Name: s.name.value},
		campaigning: bounded.NewTurn()}, nil
}

func withName(name string) Option {
	return func(s *settings) error {
		if name != "" {
			s.name = setting[string]{value: name, from: "name"}
		}
		return nil
	}
}

// WaitForLeader returns when this replica leads, at once if it does already,
// however long that takes: outages of the database do not end it. It returns an
// error that wraps the cause of ctx's end if that comes first. The lock is kept
// alive; work for the leader gets its context. Do not unlock it: call Resign.
func (e *Election) WaitForLeader(ctx context.Context) (*Lock, error) {
	if err := e.campaigning.Take(ctx); err != nil {
		return nil, broken("wait for", e.key, err)
	}
	defer e.campaigning.Give()
	if lock := e.current.Load(); lock != nil && lock.holds() {
		return lock, nil
	}
	lock, err := e.locks.wait(ctx, e.key, e.noteOutage)
	if err != nil {
		return nil, err
	}
	e.noteOutage(nil)
	lock.KeepAlive()
	e.current.Store(lock)
	e.locks.log.Info("leading", "election", e.key.Name, "term", lock.Term())
	context.AfterFunc(lock.Context(), func() {
		if err := lock.Err(); errors.Is(err, driver.ErrLost) {
			e.locks.log.Warn("lost the election", "election", e.key.Name, "term", lock.Term(),
				"err", err)
		}
	})
	return lock, nil
}

// WaitLoseLeader returns nil when this replica does not lead (any more), at
// once if it does not now. It returns the cause of ctx's end if that comes
// first.
func (e *Election) WaitLoseLeader(ctx context.Context) error {
	lock := e.current.Load()
	if lock == nil || !lock.holds() {
		return nil
	}
	select {
	case <-lock.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// IsLeader returns nil if this replica leads and can still prove it, else
// schedlock.ErrNotLeader. It does not block: it asks no database, takes no
// lock, and allocates nothing. The context is not used; the signature is that
// of gocron's Elector.
func (e *Election) IsLeader(context.Context) error {
	if lock := e.current.Load(); lock != nil && lock.holds() {
		return nil
	}
	return schedlock.ErrNotLeader
}

// Confirmed is how long ago leadership was last confirmed: when the success was
// sent that took or extended the lock. false: this replica does not lead.
func (e *Election) Confirmed() (age time.Duration, leads bool) {
	lock := e.current.Load()
	if lock == nil || !lock.holds() {
		return 0, false
	}
	return lock.Confirmed(), true
}

// Leader tells who leads, nil if nobody does. It asks the database.
func (e *Election) Leader(ctx context.Context) (*Info, error) { return e.locks.Info(ctx, e.key) }

// Resign gives up leadership, so that another can lead at once; nil if this
// replica does not lead (any more). Call it when all work for the leader has
// returned. It does not end a WaitForLeader that is under way: end its context
// first. Else see Lock.Unlock.
func (e *Election) Resign(ctx context.Context) error {
	lock := e.current.Load()
	if lock == nil {
		return nil
	}
	err := lock.Unlock(ctx)
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return err
	}
	if err != nil && !errors.Is(lock.Err(), driver.ErrLost) { // else it was said
		e.locks.log.Warn("lost the election", "election", e.key.Name, "term", lock.Term(),
			"err", err)
	}
	e.current.CompareAndSwap(lock, nil)
	return nil
}

// noteOutage is told of every failure while it waits, and nil after each
// success.
func (e *Election) noteOutage(err error) {
	now, log := time.Now(), e.locks.log.With("election", e.key.Name)
	if err == nil {
		e.outage.Over(now, func(lasted time.Duration, _ int) {
			log.Info("database answers again", "after", lasted.Round(time.Millisecond))
		})
		return
	}
	e.outage.Failed(now, func(lasts time.Duration, failures int) {
		if failures == 1 {
			log.Warn("cannot campaign, trying again", "err", err)
		} else {
			log.Warn("still cannot campaign", "err", err, "for", lasts.Round(time.Second))
		}
	})
}
