package named

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Locks are the named locks of one database. One per process is enough. All
// methods are safe for concurrent use.
//
// A name has 1 to 200 bytes of UTF-8 without control characters and those that
// set the direction of writing. Any other text is a name; letter case counts,
// and blanks do.
type Locks struct {
	store    namedlock.Store
	owner    driver.Owner
	ttl      time.Duration
	maxPause time.Duration
	log      *slog.Logger
	cleaning func() bool // whether to clean up now
}

// New makes Locks on a store, such as that of a sqlite.Store's or a
// postgres.Store's method Named. It touches no database. The error names every
// setting that is wrong, with its value and the rule.
func New(store namedlock.Store, opts ...Option) (*Locks, error) {
	s, err := newSettings(opts)
	if store == nil {
		err = errors.Join(errors.New("store is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("named locks: %w", err)
	}
	return newLocks(store, s), nil
}

// cleanEvery is on how many acquisitions there is one that cleans up, on
// average.
const cleanEvery = 256

func newLocks(store namedlock.Store, s *settings) *Locks {
	return &Locks{store: store, owner: s.owner(), ttl: s.ttl.value, maxPause: s.maxPause.value,
		log:      s.log,
		cleaning: func() bool { return rand.IntN(cleanEvery) == 0 }}
}

// TryLock takes the lock of that name if it is free. If it is not the error is
// a *HeldError (errors.Is(err, schedlock.ErrHeld)), which says who holds it, or
// that the server has failed over less than a TTL ago, when nobody can know.
//
// It waits for the database until ctx ends, for 11 s at the most. If the outcome
// is unknown then it tries to give back what it may have got, for 2 s at the
// most: so it returns at most 2 s after the end of ctx.
//
// The lock ends with Unlock, and by itself: holders trust it for ¾ TTL after
// it was taken or extended, and others can take it after the whole TTL. Extend
// it, or let KeepAlive do that. It is not bound to ctx, which only bounds the
// acquisition. Locks are not reentrant: a second TryLock of the same name
// fails, also in the same process.
func (l *Locks) TryLock(ctx context.Context, name string) (*Lock, error) {
	return l.try(ctx, Key{Kind: KindLock, Name: name}, l.ttl, 0)
}

// Lock is TryLock that waits until the lock is free, for as long as ctx lasts.
// When ctx ends first the error wraps the cause of that and a *HeldError. An
// error of the database ends the wait. A statement that it does not answer for
// 10 s is given up and tried again, over another connection if the old one is
// dead; the third one in a row ends the wait.
//
// It looks, with pauses that grow from 50 ms to 1 s (WithMaxPause), each less up
// to a half at random, of which none lasts longer than what is left to the
// holder, and holds no connection meanwhile. Of several that wait any may be
// next: there is no queue.
func (l *Locks) Lock(ctx context.Context, name string) (*Lock, error) {
	return l.wait(ctx, Key{Kind: KindLock, Name: name}, nil)
}

// WithLock waits for the lock as Lock does, runs fn under it, and releases it,
// also if fn panics. Meanwhile it is kept alive. The context of fn is a child
// of ctx, and ends when the lock is lost, before another can have it; its cause
// then wraps schedlock.ErrLost. A fn that does not heed its context may overlap
// with the next holder, except in transactions that begin with Fence: fn gets
// the lock for that and for its term.
//
// It returns fn's error, joined with one that wraps schedlock.ErrLost if the
// lock was lost before fn had returned.
func (l *Locks) WithLock(ctx context.Context, name string,
	fn func(ctx context.Context, lock *Lock) error) error {
	lock, err := l.Lock(ctx, name)
	if err != nil {
		return err
	}
	return lock.with(ctx, true, fn)
}

// TryWithLock is WithLock that does not wait: see TryLock.
func (l *Locks) TryWithLock(ctx context.Context, name string,
	fn func(ctx context.Context, lock *Lock) error) error {
	lock, err := l.TryLock(ctx, name)
	if err != nil {
		return err
	}
	return lock.with(ctx, true, fn)
}

// Locked tells whether anybody holds the lock of that name, or may hold it, after
// a fail-over of the server. It asks the database; the answer may be old when it
// arrives.
func (l *Locks) Locked(ctx context.Context, name string) (bool, error) {
	info, err := l.Info(ctx, Key{Kind: KindLock, Name: name})
	return info != nil, err
}

// Info tells who holds a lock of any kind, (nil, nil) if it is free. "Free" and
// "could not read" are never the same answer, nor are "free" and "the database may
// have forgotten who" (Info.FailedOver). A key without a kind is an error. It waits
// for the database until ctx ends, for 10 s at the most.
func (l *Locks) Info(ctx context.Context, key Key) (*Info, error) {
	row, err := l.look(ctx, key)
	if row == nil || err != nil {
		return nil, err
	}
	return &row.Info, nil
}

func (l *Locks) look(ctx context.Context, key Key) (*namedlock.Row, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	row, err := l.store.Look(ctx, key)
	if err != nil {
		return nil, broken("look at", key, err)
	}
	return row, nil
}

// cleanLimit is how many rows are cleaned up at once.
const cleanLimit = 100

// Clean deletes the rows of locks of any kind that ended at least a day ago,
// at most 100, and tells how many. One of 256 acquisitions does it by the way,
// so there is no need to call it. It is one short transaction.
func (l *Locks) Clean(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	n, err := l.store.Clean(ctx, cleanLimit)
	if err != nil {
		return 0, fmt.Errorf("clean up named locks: %w", err)
	}
	return n, nil
}
