package named_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

const (
	ttl     = namedlock.DefaultTTL
	trusted = ttl * 3 / 4
)

var errRefused = errors.New("connection refused")

// A world is a database and the replicas that share it, in a synctest bubble.
type world struct {
	t  *testing.T
	db *memory.Store
}

func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, &world{t, memory.New()}) })
}

// runInWorld is inWorld as a subtest.
func runInWorld(t *testing.T, name string, f func(t *testing.T, w *world)) {
	t.Run(name, func(t *testing.T) { inWorld(t, f) })
}

// A faulty store does to its operations what a test says.
type faulty struct {
	namedlock.Store

	mu     sync.Mutex
	before func(ctx context.Context, op string) error
	after  func(ctx context.Context, op string) error
	ops    []string
}

// during sets what happens before and after an operation is carried out; an
// error takes the place of its answer.
func (f *faulty) during(before, after func(ctx context.Context, op string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// count is how often an operation was asked for.
func (f *faulty) count(op string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.ops {
		if o == op {
			n++
		}
	}
	return n
}

func (f *faulty) do(ctx context.Context, op string, do func() error) error {
	f.mu.Lock()
	before, after := f.before, f.after
	f.ops = append(f.ops, op)
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, op); err != nil {
			return err
		}
	}
	err := do()
	if after != nil && err == nil {
		err = after(ctx, op)
	}
	return err
}

func (f *faulty) Take(ctx context.Context,
	c namedlock.Claim) (term int64, holder *namedlock.Row, err error) {
	err = f.do(ctx, "take", func() (err error) {
		term, holder, err = f.Store.Take(ctx, c)
		return err
	})
	return term, holder, err
}

func (f *faulty) Look(ctx context.Context, key named.Key) (row *namedlock.Row, err error) {
	err = f.do(ctx, "look", func() (err error) { row, err = f.Store.Look(ctx, key); return err })
	return row, err
}

func (f *faulty) Extend(ctx context.Context, ref namedlock.Ref,
	ttl time.Duration) (ours bool, err error) {
	err = f.do(ctx, "extend", func() (err error) {
		ours, err = f.Store.Extend(ctx, ref, ttl)
		return err
	})
	return ours, err
}

func (f *faulty) Release(ctx context.Context, ref namedlock.Ref,
	keepHold bool) (ours bool, err error) {
	err = f.do(ctx, "release", func() (err error) {
		ours, err = f.Store.Release(ctx, ref, keepHold)
		return err
	})
	return ours, err
}

func (f *faulty) Revoke(ctx context.Context, key named.Key, term int64,
	mark string) (revoked bool, err error) {
	err = f.do(ctx, "revoke", func() (err error) {
		revoked, err = f.Store.Revoke(ctx, key, term, mark)
		return err
	})
	return revoked, err
}

func (f *faulty) Clean(ctx context.Context, limit int) (n int64, err error) {
	err = f.do(ctx, "clean", func() (err error) { n, err = f.Store.Clean(ctx, limit); return err })
	return n, err
}

// only makes a fault of one kind of operation.
func only(op string, err error) func(context.Context, string) error {
	return func(_ context.Context, o string) error {
		if o == op {
			return err
		}
		return nil
	}
}

// hang lets one kind of operation wait until its context ends.
func hang(op string) func(context.Context, string) error {
	return func(ctx context.Context, o string) error {
		if o != op {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// slow lets one kind of operation take so long, whatever its context.
func slow(op string, d time.Duration) func(context.Context, string) error {
	return func(_ context.Context, o string) error {
		if o == op {
			time.Sleep(d)
		}
		return nil
	}
}

var silent = named.WithLogger(slog.New(slog.DiscardHandler))

// replica is another replica.
func (w *world) replica(pid int, opts ...named.Option) (*named.Locks, *faulty) {
	w.t.Helper()
	store := &faulty{Store: w.db.Named()}
	locks, err := named.New(store, append([]named.Option{silent,
		named.WithOwner(driver.Owner{PID: pid, Hostname: "test"})}, opts...)...)
	require.NoError(w.t, err)
	return locks, store
}

// held is the lock "x", which a replica has.
func (w *world) held() (*named.Lock, *faulty) {
	w.t.Helper()
	a, store := w.replica(1)
	return try(w.t, a, "x"), store
}

// two are two replicas without faults.
func (w *world) two() (a, b *named.Locks) {
	w.t.Helper()
	a, _ = w.replica(1)
	b, _ = w.replica(2)
	return a, b
}

func (w *world) election(pid int, opts ...named.Option) (*named.Election, *faulty) {
	w.t.Helper()
	store := &faulty{Store: w.db.Named()}
	e, err := named.NewElection(store, "office",
		append([]named.Option{silent, named.WithOwner(driver.Owner{PID: pid, Hostname: "test"})},
			opts...)...)
	require.NoError(w.t, err)
	return e, store
}

// row is what stands in the database under a key.
func (w *world) row(kind named.Kind, name string) *namedlock.Row {
	w.t.Helper()
	row, err := w.db.Named().Look(ctx, named.Key{Kind: kind, Name: name})
	require.NoError(w.t, err)
	return row
}

func try(t *testing.T, locks *named.Locks, name string) *named.Lock {
	t.Helper()
	lock, err := locks.TryLock(ctx, name)
	require.NoError(t, err)
	return lock
}

func heldBy(t *testing.T, err error, pid int) *named.HeldError {
	t.Helper()
	require.ErrorIs(t, err, schedlock.ErrHeld)
	held, ok := errors.AsType[*named.HeldError](err)
	require.True(t, ok, "%v is no *HeldError", err)
	require.Equal(t, pid, held.Info.PID)
	return held
}

func wantLost(t *testing.T, lock *named.Lock) {
	t.Helper()
	require.ErrorIs(t, lock.Err(), driver.ErrLost)
	require.ErrorIs(t, lock.Check(), driver.ErrLost)
	require.ErrorIs(t, context.Cause(lock.Context()), driver.ErrLost)
	require.ErrorIs(t, lock.Extend(ctx), driver.ErrLost)
	require.ErrorIs(t, lock.Fence(ctx, nil), driver.ErrLost)
}

// at is what has passed since the bubble's midnight.
func at() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) }
