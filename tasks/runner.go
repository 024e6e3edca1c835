package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/logqueue"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// defaultDrain is how long a drain waits for running jobs.
const defaultDrain = 20 * time.Second

// defaultKeepRuns is how many of its newest rows each job keeps in the ledger.
const defaultKeepRuns = 10_000

// drainGrace is how long a drain waits for jobs once it has cancelled them,
// before it calls them stuck. After a loss it is two thirds of TTL − renew
// deadline, so that OnStuck has its say before another replica may lead.
const drainGrace = 2 * time.Second

// errDrained is why a run is cancelled when the drain limit has passed.
var errDrained = errors.New("the drain limit has passed")

// A Runner campaigns for the lock and runs the jobs while it leads. Use:
// Campaign, or Acquire; then Start; then Stop, once. Safe for concurrent use.
type Runner struct {
	lock    *schedlock.Lock
	ledger  ledger.Store
	jobs    []Job
	log     *slog.Logger
	drain   time.Duration
	onStuck func([]Run)
	keep    int

	inboxEvery time.Duration // inboxInterval, but in tests that last for days

	onRun  []func(RunEvent)
	events []*callbacks         // of each onRun
	stuck  callbacks            // of onStuck
	term   atomic.Pointer[term] // while this replica leads

	ready    chan struct{} // closed by Start: jobs may run
	open     sync.Once
	ctx      context.Context // ends with Stop
	cancel   context.CancelFunc
	campaign sync.Once
	begun    atomic.Bool   // by Campaign, Acquire or Stop
	done     chan struct{} // closed when the campaign has returned

	// Of the last lease, if its release has failed; after done they need giving.
	held    *schedlock.Lease
	heldErr error         // until Stop has told it
	giving  chan struct{} // one at a time
}

// An Option sets something on NewRunner.
type Option func(*Runner) error

// WithLogger sets the logger; default slog.Default().
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
		r.drain = limit
		return nil
	}
}

// WithOnStuck sets what happens, once per term, when jobs have not returned
// although they were cancelled. The lock stays held and the heartbeats go on
// as long as they have not, so nobody else leads: the default is to wait. An f
// that calls os.Exit(1) lets the kernel end the jobs, and another replica may
// lead. Nothing waits for f.
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
		r.onRun = append(r.onRun, f)
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

// NewRunner validates the jobs, naming everything that is wrong. It starts
// nothing.
func NewRunner(lock *schedlock.Lock, store ledger.Store, jobs []Job,
	opts ...Option) (*Runner, error) {
	r := &Runner{
		lock: lock, ledger: store, jobs: jobs, log: slog.Default(), drain: defaultDrain,
		onStuck: func([]Run) {}, keep: defaultKeepRuns, inboxEvery: inboxInterval,
		ready: make(chan struct{}), done: make(chan struct{}), giving: make(chan struct{}, 1),
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
	r.log = logqueue.Wrap(r.log)
	r.stuck = callbacks{name: "OnStuck", log: r.log}
	for range r.onRun {
		r.events = append(r.events, &callbacks{name: "OnRun", log: r.log})
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

// begin starts the campaign; false: one runs already, or was stopped.
func (r *Runner) begin(first *schedlock.Lease) (started bool) {
	r.campaign.Do(func() {
		started = true
		r.begun.Store(true)
		go func() {
			defer close(r.done)
			r.run(first)
		}()
	})
	return started
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
	r.campaign.Do(func() { // never started
		r.begun.Store(true)
		close(r.done)
	})
	select {
	case <-r.done:
		return r.giveBack(ctx)
	case <-ctx.Done():
		what := "the callbacks, or the release of the lock"
		if t := r.term.Load(); t != nil && len(t.waitsFor()) > 0 {
			what = strings.Join(t.waitsFor(), ", ")
		}
		return fmt.Errorf("scheduler did not stop in time, it waits for %s: %w", what,
			context.Cause(ctx))
	}
}

// giveBack tells why the last lease is not released; whoever asks again has it
// tried again.
func (r *Runner) giveBack(ctx context.Context) error {
	r.giving <- struct{}{}
	defer func() { <-r.giving }()
	err := r.heldErr
	if r.held != nil && err == nil {
		err = r.held.Release(ctx)
	}
	r.heldErr = nil
	return err
}

// run is the campaign: wait, lead, again.
func (r *Runner) run(lease *schedlock.Lease) {
	defer logqueue.Flush(r.log, flushLimit)
	defer r.tell()
	for {
		if lease == nil {
			var err error
			if lease, err = r.lock.Wait(r.ctx); err != nil {
				if errors.Is(err, driver.ErrPermanent) && r.ctx.Err() == nil {
					r.log.Error("campaign refused: it is repeated while this process runs",
						"err", err)
					r.sleep(r.lock.Timing().TTL)
					continue
				}
				if r.ctx.Err() == nil {
					r.log.Error("campaign ended", "err", err)
				}
				if r.held != nil { // the campaign may have made up for it
					r.release(r.held)
				}
				return
			}
		}
		err := r.lead(lease)
		if r.ctx.Err() != nil {
			return
		}
		r.sleep(r.rest(lease, err))
		lease = nil
	}
}

// flushLimit is how long Stop waits for a log that does not keep up.
const flushLimit = time.Second

// tell waits until the app was told what it is to be told, but not for long.
func (r *Runner) tell() {
	end := time.Now().Add(callbackLimit)
	for _, c := range append([]*callbacks{&r.stuck}, r.events...) {
		c.wait(max(time.Until(end), 0))
	}
}

// rest is how long this replica keeps out of the next campaign; err is why it
// stepped down.
func (r *Runner) rest(lease *schedlock.Lease, err error) time.Duration {
	if errors.Is(lease.Err(), schedlock.ErrCorrupt) {
		return r.lock.Timing().TTL // winning again would only lead here again
	}
	select {
	case <-lease.Revoked():
	default:
		if err == nil {
			return 0
		}
	}
	return 2 * r.lock.Timing().RetryInterval() // let another have it
}

func (r *Runner) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-r.ctx.Done():
	case <-time.After(d):
	}
}

// lead holds one term, from the acquisition to the release. Its error is why
// this replica stepped down although it held the lock.
func (r *Runner) lead(lease *schedlock.Lease) error {
	jumped := make(chan time.Duration, 1)
	after := func(jump time.Duration) {
		if jump > clockJump || jump < -clockJump {
			select {
			case jumped <- jump:
			default:
			}
		}
	}
	beat, err := startHeartbeat(lease, r.lock.Timing(), r.log, after)
	if err != nil {
		lease.StepDown(err)
		r.release(lease)
		return err
	}
	t := r.newTerm(lease, beat.now)
	r.term.Store(t)
	defer r.term.Store(nil)
	err = r.serve(t, lease, jumped)
	r.leave(t, lease, beat)
	r.release(lease)
	beat.stop()
	return err
}

// serve runs the jobs until the term has to end. Its error is that of lead.
func (r *Runner) serve(t *term, lease *schedlock.Lease, jumped <-chan time.Duration) error {
	select {
	case <-r.ready:
	case <-r.ctx.Done():
		return nil
	case <-lease.Done():
		return nil
	case <-lease.Revoked():
		return nil
	}
	ctx, cancel := context.WithCancel(t.ctx)
	stop := context.AfterFunc(r.ctx, cancel)
	err := t.start(ctx)
	stop()
	cancel()
	if err != nil {
		if r.ctx.Err() != nil || lease.Err() != nil {
			return nil
		}
		lease.StepDown(err)
		return err
	}
	look := time.NewTicker(r.lock.Timing().HeartbeatInterval)
	defer look.Stop()
	looked, at := lease.Now(), time.Now()
	for {
		select {
		case <-lease.Done():
			return nil
		case <-lease.Revoked():
			return nil
		case <-r.ctx.Done():
			return nil
		case jump := <-jumped:
			r.log.Warn("the database's clock was set", "by", jump.Round(time.Millisecond), "term",
				lease.Term())
			t.rearm(jump)
		case <-look.C:
			err := t.stalled(r.lock.Timing().TTL)
			// A clock that was set an hour ahead makes ticks late at once; they
			// are decided before the next look.
			jump := lease.Now().Sub(looked) - time.Since(at)
			looked, at = lease.Now(), time.Now()
			if err != nil && jump.Abs() < clockJump {
				lease.StepDown(err)
				return err
			}
		}
	}
}

// leave ends what the term has started: on a loss at once, otherwise as a
// drain. It returns when every job has returned, however long that takes.
func (r *Runner) leave(t *term, lease *schedlock.Lease, beat *heartbeat) {
	t.close()
	timing := r.lock.Timing()
	wait := (timing.TTL - timing.RenewDeadline) * 2 / 3
	if lease.Err() == nil {
		lease.Drain()
		beat.now() // so that the row says it
		start := time.Now()
		limit := time.NewTimer(r.drain)
		if what := t.waitsFor(); len(what) > 0 {
			r.log.Info("the drain waits", "term", lease.Term(), "for", what, "limit", r.drain)
		}
		select {
		case <-t.idle:
		case <-lease.Done():
		case <-limit.C:
			wait = drainGrace
			r.log.Warn("drain limit passed: cancelling running jobs", "term", lease.Term(), "limit",
				r.drain, "runs", len(t.stuck()), "waits_for", t.waitsFor())
		}
		limit.Stop()
		t.cancel(errDrained)
		defer func() {
			r.log.Info("drained", "term", lease.Term(), "took",
				time.Since(start).Round(time.Millisecond))
		}()
	}
	grace := time.NewTimer(wait)
	defer grace.Stop()
	select {
	case <-t.idle:
	case <-grace.C:
		stuck := t.stuck()
		for _, run := range stuck {
			r.log.Error("job does not return although it was cancelled", "job", run.Job, "tick",
				run.ScheduledAt, "term", run.Term)
		}
		if len(stuck) > 0 { // else only the ledger is waited for: no job's fault
			r.stuck.call(stuck[0].Job, func() { r.onStuck(stuck) })
		}
		r.await(t, lease)
	}
	t.end()
}

// await waits until all has returned, and says now and then for what.
func (r *Runner) await(t *term, lease *schedlock.Lease) {
	again := time.NewTicker(waitInterval)
	defer again.Stop()
	for {
		select {
		case <-t.idle:
			return
		default:
			r.log.Warn("the term does not end yet", "term", lease.Term(), "waits_for", t.waitsFor())
		}
		select {
		case <-t.idle:
			return
		case <-again.C:
		}
	}
}

// waitInterval is the time between two lines about what a term waits for.
const waitInterval = 30 * time.Second

func (r *Runner) release(lease *schedlock.Lease) {
	r.held, r.heldErr = nil, lease.Release(context.Background())
	if r.heldErr != nil {
		r.held = lease
		if r.ctx.Err() == nil {
			r.log.Warn("release failed; it is repeated while this process runs", "term",
				lease.Term(), "err", r.heldErr)
		}
	}
}
