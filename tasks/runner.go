package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// defaultDrain is how long a drain waits for running jobs.
const defaultDrain = 20 * time.Second

// defaultKeepRuns is how many of its newest rows each job keeps in the ledger.
const defaultKeepRuns = 10_000

// A Runner campaigns for the lock and runs the jobs while it leads. Use:
// Campaign, or Acquire; then Start; then Stop. It cannot be used again. All methods are
// safe for concurrent use.
type Runner struct {
	settings
	jobs []Job
	term atomic.Pointer[term] // while this replica leads

	ready  chan struct{} // closed by Start: jobs may run
	open   sync.Once
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	begun  atomic.Bool   // the campaign has
	done   chan struct{} // closed when it has stopped

	// The last lease if its release has failed. The campaign uses them; after done
	// whoever is giving does.
	held    *schedlock.Lease
	heldErr error        // until Stop has told it
	giving  bounded.Turn // one at a time
}

// settings are what a Runner and its terms need alike.
type settings struct {
	lock       *schedlock.Lock
	ledger     ledger.Store
	log        *slog.Logger
	drainLimit time.Duration
	onStuck    func([]Run)
	stuck      callbacks // of onStuck
	onRun      []*listener
	keep       int // newest rows of each job that stay in the ledger; 0: all
	presence   bool
}

// A listener is a function that WithOnRun was given, and its calls.
type listener struct {
	callbacks
	to func(RunEvent)
}

// tell tells every listener, soon.
func (s *settings) tell(e RunEvent) {
	for _, l := range s.onRun {
		l.call(e.Job, func() { l.to(e) })
	}
}

// An Option sets something on NewRunner.
type Option func(*Runner) error

// WithLogger sets the logger; default slog.Default(). A handler that blocks holds up nothing.
func WithLogger(log *slog.Logger) Option {
	return func(r *Runner) error {
		if log == nil {
			return errors.New("logger is nil")
		}
		r.log = log
		return nil
	}
}

// WithDrain sets how long Stop, and a leader that was revoked, wait for
// running jobs before they are cancelled. Default 20 s; 0 cancels at once.
func WithDrain(limit time.Duration) Option {
	return func(r *Runner) error {
		if limit < 0 {
			return fmt.Errorf("drain limit %v is below 0", limit)
		}
		r.drainLimit = limit
		return nil
	}
}

// WithOnStuck sets what happens, once per term, when jobs have not returned
// although they were cancelled. The lock stays held and the heartbeats go on
// as long as they have not, so nobody else leads: the default is to wait. An f
// that calls os.Exit(1) lets the kernel end the jobs, and another replica may
// lead. It is called on a goroutine of its own, for which only Stop waits, as for that
// of WithOnRun. Its panics are logged.
func WithOnStuck(f func(stuck []Run)) Option {
	return func(r *Runner) error {
		if f == nil {
			return errors.New("the function for stuck jobs is nil")
		}
		r.onStuck = f
		return nil
	}
}

// WithOnRun adds a function that is told of everything that happens to runs on
// this replica: see RunEvent. The Err of an event says that an attempt did not
// succeed; it is told after that was recorded. The function is told of one thing
// after the other, in the order in which they happened, on a goroutine of its
// own. No run waits for it, and no release of the lock; Stop does, for ten
// seconds at most. A call that takes longer than ten seconds is left alone, and
// the next begins; while ten such calls have not returned, or a thousand wait, it
// is not told of more. Its panics are logged.
//
// It may be given several times: no function waits for another one.
func WithOnRun(f func(RunEvent)) Option {
	return func(r *Runner) error {
		if f == nil {
			return errors.New("the function for runs is nil")
		}
		r.onRun = append(r.onRun, &listener{to: f})
		return nil
	}
}

// WithKeepRuns sets how many of its newest rows each job keeps in the ledger:
// the leader deletes older ones, in small batches, once a minute. Default
// 10,000; 0 keeps all.
func WithKeepRuns(n int) Option {
	return func(r *Runner) error {
		if n < 0 {
			return fmt.Errorf("number of runs to keep, %d, is below 0", n)
		}
		r.keep = n
		return nil
	}
}

// WithPresence lets the replica tell of itself in the lock's database, on a row of
// its own: every 30 seconds, and within a second when its state changes, also
// while it is a standby. Then operators see how many standbys are ready. Without
// it an idle standby writes nothing. If that fails it is logged once, and all else
// goes on: nothing is decided by these rows.
func WithPresence() Option {
	return func(r *Runner) error {
		r.presence = true
		return nil
	}
}

// NewRunner validates the jobs, naming everything that is wrong. It starts
// nothing.
func NewRunner(lock *schedlock.Lock, store ledger.Store, jobs []Job,
	opts ...Option) (*Runner, error) {
	r := &Runner{
		settings: settings{lock: lock, ledger: store, log: slog.Default(), drainLimit: defaultDrain,
			onStuck: func([]Run) {}, keep: defaultKeepRuns},
		jobs:  slices.Clone(jobs),
		ready: make(chan struct{}), done: make(chan struct{}), giving: bounded.NewTurn(),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var errs []error
	if lock == nil {
		errs = append(errs, errors.New("lock is nil"))
	}
	if store == nil {
		errs = append(errs, errors.New("ledger is nil"))
	}
	for _, opt := range opts {
		errs = append(errs, opt(r))
	}
	errs = append(errs, checkJobs(jobs))
	r.log = bounded.Log(r.log)
	r.stuck.name, r.stuck.log = "OnStuck", r.log
	for _, l := range r.onRun {
		l.name, l.log = "OnRun", r.log
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("tasks: %w", err)
	}
	return r, nil
}

// Campaign starts to campaign in the background, and returns.
func (r *Runner) Campaign() { r.begin(nil) }

// Acquire tries once to take the lock, for an app that must not start while
// another replica leads; its error is that of [schedlock.Lock.Acquire]. Then
// it goes on like Campaign, with the lease that it has. It returns an error
// that wraps schedlock.ErrStopped if the runner campaigns already or was
// stopped.
func (r *Runner) Acquire(ctx context.Context) error {
	if r.begun.Load() {
		return fmt.Errorf("the runner campaigns already, or was stopped: %w", schedlock.ErrStopped)
	}
	lease, err := r.lock.Acquire(ctx)
	if err != nil {
		return err
	}
	if !r.begin(lease) {
		return errors.Join(schedlock.ErrStopped, lease.Release(context.WithoutCancel(ctx)))
	}
	return nil
}

// begin starts the campaign, with the first lease if there is one; false: it was
// started before.
func (r *Runner) begin(first *schedlock.Lease) bool {
	if !r.begun.CompareAndSwap(false, true) {
		return false
	}
	c := &campaign{Runner: r, lease: first}
	go c.run()
	return true
}

// Start lets jobs run, now and in every later term. Before, the lock is held
// and kept alive, but nothing runs.
func (r *Runner) Start() { r.open.Do(func() { close(r.ready) }) }

// Stop leaves: no campaign any more; if this replica leads, it starts no new
// runs, waits for those that run up to the drain limit, cancels them, waits
// for them to return, and releases the lock last. It returns when all that is
// done, or with ctx's error before, which says what it waits for; then it goes
// on in the background. If the release has failed it returns that error. It may be
// called again, and then tries to release again.
func (r *Runner) Stop(ctx context.Context) error {
	r.cancel()
	r.begin(nil) // if nobody has: it stops at once
	select {
	case <-r.done:
	case <-ctx.Done():
		if bounded.Wait(r.done, 0) {
			break
		}
		what := "the callbacks, or the release of the lock"
		if t := r.term.Load(); t != nil && len(t.waitsFor()) > 0 {
			what = strings.Join(t.waitsFor(), ", ")
		}
		return fmt.Errorf("scheduler did not stop in time, it waits for %s: %w", what,
			context.Cause(ctx))
	}
	return r.giveBack(ctx)
}

// giveBack tells why the last lease is not released; whoever asks again has it
// tried again.
func (r *Runner) giveBack(ctx context.Context) error {
	if err := r.giving.Take(ctx); err != nil {
		return err
	}
	defer r.giving.Give()
	err := r.heldErr
	if r.held != nil && err == nil {
		err = r.held.Release(ctx)
	}
	r.heldErr = nil
	return err
}
