package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// DefaultDrain is how long a drain waits for running jobs.
const DefaultDrain = 20 * time.Second

// DefaultKeepRuns is how many of its newest rows each job keeps in the ledger.
const DefaultKeepRuns = 10_000

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

	onFailure func(Failure)
	onRun     func(RunEvent)
	term      atomic.Pointer[term] // while this replica leads

	ready    chan struct{} // closed by Start: jobs may run
	open     sync.Once
	ctx      context.Context // ends with Stop
	cancel   context.CancelFunc
	campaign sync.Once
	done     chan struct{} // closed when the campaign has returned
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
// as long as they have not. Default [KeepWaiting].
func WithOnStuck(f func(stuck []Run)) Option {
	return func(r *Runner) error {
		if f == nil {
			return errors.New("the function for stuck jobs is nil")
		}
		r.onStuck = f
		return nil
	}
}

// WithOnFailure sets what is told of every attempt that did not succeed, after
// it was recorded, on the leader: failed ones, and those that a leader before
// had left. It is called from several goroutines at once; the next run of the
// job, and a drain, wait for it. Its panics are logged.
func WithOnFailure(f func(Failure)) Option {
	return func(r *Runner) error {
		if f == nil {
			return errors.New("the function for failures is nil")
		}
		r.onFailure = f
		return nil
	}
}

// WithOnRun sets what is told of everything that happens to runs on this
// replica, for metrics: see RunEvent. It is called from several goroutines at
// once, in the way of the runs, so it must return soon and must not panic.
func WithOnRun(f func(RunEvent)) Option {
	return func(r *Runner) error {
		if f == nil {
			return errors.New("the function for runs is nil")
		}
		r.onRun = f
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

// KeepWaiting is for WithOnStuck: nobody else leads until the jobs return.
func KeepWaiting([]Run) {}

// ExitProcess is for WithOnStuck: ends the process with exit code 1, so that
// the kernel ends the jobs and another replica may lead.
func ExitProcess([]Run) { os.Exit(1) }

// NewRunner validates the jobs, naming everything that is wrong. It starts
// nothing.
func NewRunner(lock *schedlock.Lock, store ledger.Store, jobs []Job, opts ...Option) (*Runner, error) {
	r := &Runner{
		lock: lock, ledger: store, jobs: jobs, log: slog.Default(), drain: DefaultDrain, onStuck: KeepWaiting, onRun: func(RunEvent) {}, keep: DefaultKeepRuns, inboxEvery: inboxInterval,
		ready: make(chan struct{}), done: make(chan struct{}),
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
// done, or with ctx's error before; then it goes on in the background. It may
// be called again.
func (r *Runner) Stop(ctx context.Context) error {
	r.cancel()
	r.campaign.Do(func() { close(r.done) }) // never started
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		err := context.Cause(ctx)
		return fmt.Errorf("scheduler did not stop in time: %w", err)
	}
}

// run is the campaign: wait, lead, again.
func (r *Runner) run(lease *schedlock.Lease) {
	for {
		if lease == nil {
			var err error
			if lease, err = r.lock.Wait(r.ctx); err != nil {
				if r.ctx.Err() == nil {
					r.log.Error("campaign ended", "err", err)
				}
				return
			}
		}
		err := r.lead(lease)
		r.sleep(r.rest(lease, err))
		lease = nil
	}
}

// rest is how long this replica keeps out of the next campaign; err is why it
// stepped down.
func (r *Runner) rest(lease *schedlock.Lease, err error) time.Duration {
	if errors.Is(lease.Err(), schedlock.ErrDamaged) {
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
			r.log.Warn("the database's clock was set", "by", jump.Round(time.Millisecond), "term", lease.Term())
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
		select {
		case <-t.idle:
		case <-lease.Done():
		case <-limit.C:
			wait = drainGrace
			r.log.Warn("drain limit passed: cancelling running jobs", "term", lease.Term(), "limit", r.drain, "runs", len(t.stuck()))
		}
		limit.Stop()
		t.cancel(errDrained)
		defer func() { r.log.Info("drained", "term", lease.Term(), "took", time.Since(start).Round(time.Millisecond)) }()
	}
	grace := time.NewTimer(wait)
	defer grace.Stop()
	select {
	case <-t.idle:
	case <-grace.C:
		stuck := t.stuck()
		for _, run := range stuck {
			r.log.Error("job does not return although it was cancelled", "job", run.Job, "tick", run.ScheduledAt, "term", run.Term)
		}
		if len(stuck) > 0 { // else only the ledger is waited for: no job's fault
			r.onStuck(stuck)
		}
		<-t.idle
	}
	t.end()
}

func (r *Runner) release(lease *schedlock.Lease) {
	if err := lease.Release(context.Background()); err != nil {
		r.log.Warn("release failed; it is repeated while this process runs", "term", lease.Term(), "err", err)
	}
}
