package schedlock_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/clock/clocktest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

func TestMain(m *testing.M) {
	child.InMemory()
	goleak.VerifyTestMain(m)
}

const (
	ttl   = 60 * time.Second // the default
	renew = ttl / 4 * 3
	every = 10 * time.Second // the default
	retry = time.Second
)

var quiet = slog.New(slog.DiscardHandler)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

var errBroken = errors.New("connection refused")

// A fault is what a statement meets on its way to the database and back. The
// zero fault is none.
type fault struct {
	kind  faultKind
	after time.Duration
	err   error // of a broken one; default errBroken
}

type faultKind int

const (
	none      faultKind = iota
	broken              // refused at once, not applied
	hang                // not applied; returns when its context ends
	deaf                // not applied; ignores its context, until heal
	frozen              // the process stands still until heal, and then sends it
	late                // applied at once, answered after a time, whatever its context says
	lost                // applied at once, but the answer, after a time, is an error
	lateApply           // an error at once, and applied after a time
	slowApply           // returns when its context ends, and applied after a time
)

// faulty is one replica's connection to the database.
type faulty struct {
	driver.Base
	inner driver.Store

	mu     sync.Mutex
	plan   func(op string) fault
	thawed chan struct{}
	onCall func(op string)                       // told of every call before it does anything
	onView func(driver.Snapshot) driver.Snapshot // what Look gives
	// hint is AwaitHint.
	hint   func(context.Context, driver.Snapshot) driver.Release
	loss   chan error // what AwaitLoss returns
	advice error      // what Warning returns
	calls  map[string]int
	flying sync.WaitGroup // statements that will be applied later
}

func newFaulty(inner driver.Store) *faulty {
	return &faulty{inner: inner, thawed: make(chan struct{}), calls: map[string]int{},
		loss: make(chan error)}
}

// set plans the fault of the named statements (all, if none is named); the
// others have none.
func (f *faulty) set(fa fault, ops ...string) {
	f.planned(func(op string) fault {
		if len(ops) == 0 {
			return fa
		}
		for _, o := range ops {
			if o == op {
				return fa
			}
		}
		return fault{}
	})
}

// next plans the fault of the next call of op only.
func (f *faulty) next(fa fault, op string) {
	used := false
	f.planned(func(o string) fault {
		if o != op || used {
			return fault{}
		}
		used = true
		return fa
	})
}

func (f *faulty) planned(plan func(op string) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
}

func (f *faulty) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = nil
	close(f.thawed)
	f.thawed = make(chan struct{})
}

func (f *faulty) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// call sends a statement through the planned fault.
func call[T any](f *faulty, ctx context.Context, op string,
	apply func(context.Context) (T, error)) (answer T, err error) {
	f.mu.Lock()
	f.calls[op]++
	var fa fault
	if f.plan != nil {
		fa = f.plan(op)
	}
	thawed, onCall := f.thawed, f.onCall
	f.mu.Unlock()
	if onCall != nil {
		onCall(op)
	}
	later := func() {
		f.flying.Go(func() {
			time.Sleep(fa.after)
			_, _ = apply(context.Background())
		})
	}
	switch fa.kind {
	case broken:
		if fa.err != nil {
			return answer, fa.err
		}
		return answer, errBroken
	case hang:
		<-ctx.Done()
		return answer, context.Cause(ctx)
	case deaf:
		<-thawed
		return answer, errBroken
	case frozen:
		<-thawed
		return apply(ctx)
	case late:
		got, err := apply(ctx)
		time.Sleep(fa.after)
		return got, err
	case lost:
		_, _ = apply(ctx)
		time.Sleep(fa.after)
		return answer, errBroken
	case lateApply:
		later()
		return answer, errBroken
	case slowApply:
		later()
		<-ctx.Done()
		return answer, context.Cause(ctx)
	}
	return apply(ctx)
}

func (f *faulty) Look(ctx context.Context) (driver.Snapshot, error) {
	return f.look(ctx, f.inner.Look)
}

// LookAtSession is a look too, whatever it costs.
func (f *faulty) LookAtSession(ctx context.Context) (driver.Snapshot, error) {
	return f.look(ctx, func(ctx context.Context) (driver.Snapshot, error) {
		return assess.LookAtSession(ctx, f.inner)
	})
}

func (f *faulty) look(ctx context.Context, apply func(context.Context) (driver.Snapshot,
	error)) (driver.Snapshot, error) {
	v, err := call(f, ctx, "look", apply)
	f.mu.Lock()
	onView := f.onView
	f.mu.Unlock()
	if err == nil && onView != nil {
		v = onView(v)
	}
	return v, err
}

func (f *faulty) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return call(f, ctx, "acquire", func(ctx context.Context) (driver.Grant, error) {
		return f.inner.Acquire(ctx, c)
	})
}

func (f *faulty) Heartbeat(ctx context.Context, ref driver.Ref,
	s driver.State) (driver.Renewal, error) {
	return call(f, ctx, "heartbeat", func(ctx context.Context) (driver.Renewal, error) {
		return f.inner.Heartbeat(ctx, ref, s)
	})
}

func (f *faulty) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (bool, error) {
	return call(f, ctx, "release", func(ctx context.Context) (bool, error) {
		return f.inner.Release(ctx, ref, reason)
	})
}

func (f *faulty) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	return call(f, ctx, "terms", func(ctx context.Context) ([]driver.Term, error) {
		return f.inner.Terms(ctx, limit)
	})
}

func (f *faulty) AwaitHint(ctx context.Context, v driver.Snapshot) driver.Release {
	if f.hint == nil {
		return f.Base.AwaitHint(ctx, v)
	}
	return f.hint(ctx, v)
}

func (f *faulty) Warning() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.advice
}

func (f *faulty) AwaitLoss(ctx context.Context, _ driver.Ref) error {
	select {
	case err := <-f.loss:
		return err
	case <-ctx.Done():
		return nil
	}
}

// events is an observer that remembers.
type events struct {
	mu   sync.Mutex
	list []schedlock.Event
}

func (e *events) observe(ev schedlock.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
}

// kinds are the kinds of the events so far, without heartbeats that succeeded.
func (e *events) kinds() (kinds []schedlock.EventKind) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.list {
		if ev.Kind != schedlock.EventHeartbeat {
			kinds = append(kinds, ev.Kind)
		}
	}
	return kinds
}

// of are the events of a kind.
func (e *events) of(kind schedlock.EventKind) (found []schedlock.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.list {
		if ev.Kind == kind {
			found = append(found, ev)
		}
	}
	return found
}

func (e *events) count(kind schedlock.EventKind) int { return len(e.of(kind)) }

// last is the last event of a kind, the zero one if there was none.
func (e *events) last(kind schedlock.EventKind) schedlock.Event {
	found := append([]schedlock.Event{{}}, e.of(kind)...)
	return found[len(found)-1]
}

// A replica is one Lock of a fleet, on a connection of its own. Its leases are
// renewed by hand: see beat.
type replica struct {
	t     *testing.T
	lock  *schedlock.Lock
	db    *faulty
	clock *clocktest.Fake
	seen  *events
}

// inBubble runs f on a database that all replicas of a fleet share.
func inBubble(t *testing.T, f func(t *testing.T, db *memory.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, memory.New()) })
}

// bubble is inBubble as a subtest.
func bubble(t *testing.T, name string, f func(t *testing.T, db *memory.Store)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, f) })
}

var pids int

func newReplica(t *testing.T, db driver.Store, opts ...schedlock.Option) *replica {
	t.Helper()
	r := newRenewing(t, db, opts...)
	schedlock.RenewByHand(r.lock)
	return r
}

// newRenewing makes a replica whose leases renew themselves, as those of an app.
func newRenewing(t *testing.T, db driver.Store, opts ...schedlock.Option) *replica {
	t.Helper()
	pids++
	r := &replica{t: t, db: newFaulty(db), seen: &events{}}
	opts = append([]schedlock.Option{
		schedlock.WithObserver(r.seen.observe),
		schedlock.WithLogger(quiet),
		schedlock.WithOwner(driver.Owner{PID: pids, Hostname: "test"}),
	}, opts...)
	lock, err := schedlock.New(r.db, opts...)
	require.NoError(t, err)
	r.lock, r.clock = lock, schedlock.UseBubbleClock(lock)
	t.Cleanup(func() {
		r.db.heal()
		_ = lock.Stop(context.Background())
		r.db.flying.Wait()
	})
	return r
}

func (r *replica) leads() bool { return r.lock.IsLeader(context.Background()) == nil }

// lead acquires the lock at once.
func (r *replica) lead() *schedlock.Lease {
	r.t.Helper()
	lease, err := r.lock.Acquire(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, r.lock.IsLeader(r.t.Context()))
	return lease
}

// newLeader makes a replica that has acquired the lock.
func newLeader(t *testing.T, db driver.Store) (*replica, *schedlock.Lease) {
	t.Helper()
	r := newReplica(t, db)
	return r, r.lead()
}

// campaigns are the ways to get a lease.
var campaigns = map[string]func(*schedlock.Lock) (*schedlock.Lease, error){
	"Acquire": func(l *schedlock.Lock) (*schedlock.Lease, error) { return l.Acquire(ctx) },
	"Wait":    func(l *schedlock.Lock) (*schedlock.Lease, error) { return l.Wait(ctx) },
}

// won is what a Wait in the background came to.
type won struct {
	lease *schedlock.Lease
	err   error
	at    time.Time
}

// stand starts a Wait in the background.
func (r *replica) stand(ctx context.Context) <-chan won {
	done := make(chan won, 1)
	go func() {
		lease, err := r.lock.Wait(ctx)
		done <- won{lease, err, time.Now()}
	}()
	return done
}

// wins waits until a Wait in the background has got the lock.
func wins(t *testing.T, waiter <-chan won) won {
	t.Helper()
	got := <-waiter
	require.NoError(t, got.err)
	return got
}

// termsOf are the n terms that the history must have, newest first.
func termsOf(t *testing.T, db driver.Store, n int) []driver.Term {
	t.Helper()
	terms, err := db.Terms(context.Background(), 9)
	require.NoError(t, err)
	require.Len(t, terms, n)
	return terms
}

// beat keeps a lease alive as an app does, until it has ended or stop is called.
func beat(lease *schedlock.Lease) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for pause := every; ; {
			select {
			case <-ctx.Done():
				return
			case <-lease.Done():
				return
			case <-time.After(pause):
			}
			pause = every
			if lease.Heartbeat(ctx) != nil {
				pause = retry
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// sleepUntil sleeps until a time after start.
func sleepUntil(start time.Time, after time.Duration) {
	time.Sleep(time.Until(start.Add(after)))
	synctest.Wait()
}

// requireOneLeader fails if two replicas lead now.
func requireOneLeader(t *testing.T, replicas ...*replica) {
	t.Helper()
	n := 0
	for _, r := range replicas {
		if r.leads() {
			n++
		}
	}
	require.LessOrEqual(t, n, 1, "leaders at once")
}
