package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

const (
	stopTimeout   = 10 * time.Second // of a gocron scheduler whose jobs have returned
	decideTimeout = 5 * time.Second  // of one statement of the ledger
	finishLimit   = 5 * time.Second  // how long the end of a run is retried once the lease is over
)

// A term runs the jobs while one lease lasts.
type term struct {
	lock   *schedlock.Lock
	lease  *schedlock.Lease
	ledger ledger.Store
	log    *slog.Logger
	beat   func() // sends a heartbeat at once

	ctx    context.Context // of the runs; ends with the lease, or when a drain has passed its limit
	cancel context.CancelCauseFunc
	cron   gocron.Scheduler
	jobs   []*termJob

	mu      sync.Mutex // guards what follows
	closed  bool       // nothing new starts
	active  int        // alarms being handled, runs included
	idle    chan struct{}
	running map[int64]Run
}

// termJob is a job during one term.
type termJob struct {
	Job
	spec Spec

	turn    chan struct{} // guards row: one decision at a time
	row     *ledger.Job   // nil: not in the ledger yet
	running atomic.Int32  // runs that have not ended
	alarm   gocron.Job
}

func newTerm(lock *schedlock.Lock, lease *schedlock.Lease, store ledger.Store, jobs []Job, log *slog.Logger, beat func()) *term {
	t := &term{lock: lock, lease: lease, ledger: store, log: log, beat: beat,
		idle: make(chan struct{}), running: map[int64]Run{}}
	t.ctx, t.cancel = context.WithCancelCause(lease.Context())
	for _, j := range jobs {
		t.jobs = append(t.jobs, &termJob{Job: j, spec: j.Spec.ForJob(j.Name), turn: make(chan struct{}, 1)})
	}
	return t
}

// start reads the ledger and sets the alarms. It goes on trying while the
// database does not answer, until the lease or ctx ends.
func (t *term) start(ctx context.Context) error {
	if err := t.retry(ctx, t.load); err != nil {
		return err
	}
	var err error
	if t.cron, err = gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithStopTimeout(stopTimeout)); err != nil {
		return fmt.Errorf("leader-only scheduler: %w", err)
	}
	for _, j := range t.jobs {
		if j.alarm, err = t.cron.NewJob(t.cronJob(), gocron.NewTask(t.wake, j), t.alarmOptions(j)...); err != nil {
			return fmt.Errorf("leader-only scheduler: job %q: %w", j.Name, err)
		}
	}
	t.cron.Start()
	for _, j := range t.jobs { // what was missed, and new jobs
		_ = j.alarm.RunNow()
	}
	return nil
}

func (t *term) cronJob() gocron.JobDefinition { return gocron.CronJob("", false) }

func (t *term) alarmOptions(j *termJob) []gocron.JobOption {
	return []gocron.JobOption{
		gocron.WithName(j.Name),
		gocron.WithCronImplementation(alarm{spec: j.spec, now: t.lease.Now}),
	}
}

// rearm computes all alarms anew, because the database's clock was set.
func (t *term) rearm() {
	for _, j := range t.jobs {
		if _, err := t.cron.Update(j.alarm.ID(), t.cronJob(), gocron.NewTask(t.wake, j), t.alarmOptions(j)...); err != nil {
			t.log.Warn("alarm not set anew", "job", j.Name, "err", err)
		}
		_ = j.alarm.RunNow()
	}
}

// load marks what earlier leaders left unfinished, and reads the cursors.
func (t *term) load(ctx context.Context) error {
	abandoned, err := t.ledger.Abandon(ctx, t.lease.Ref())
	if err != nil {
		return err
	}
	for _, r := range abandoned {
		t.log.Warn("run abandoned by its leader", "job", r.Job, "tick", r.ScheduledAt, "term", r.Term, "attempt", r.Attempt)
	}
	rows, err := t.ledger.Jobs(ctx)
	if err != nil {
		return err
	}
	for _, j := range t.jobs {
		j.row = findJob(rows, j.Name)
	}
	return nil
}

func findJob(rows []ledger.Job, name string) *ledger.Job {
	for _, r := range rows {
		if r.Name == name {
			return &r
		}
	}
	return nil
}

// retry repeats do while it fails for a reason that may pass.
func (t *term) retry(ctx context.Context, do func(context.Context) error) error {
	for said := false; ; {
		opCtx, cancel := context.WithTimeout(ctx, decideTimeout)
		err := do(opCtx)
		cancel()
		if errors.Is(err, schedlock.ErrDamaged) {
			t.lease.StepDown(err)
			return err
		}
		if err == nil || errors.Is(err, schedlock.ErrLost) || errors.Is(err, schedlock.ErrMoved) || ctx.Err() != nil {
			return err
		}
		if !said {
			t.log.Warn("run ledger does not answer", "term", t.lease.Term(), "err", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(t.lock.Timing().RetryInterval()):
		}
	}
}

// enter counts an alarm that is being handled; false: nothing new may start.
func (t *term) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.active++
	return true
}

func (t *term) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active--
	if t.closed && t.active == 0 {
		close(t.idle)
	}
}

// close shuts the gate. idle is closed when all that had started has returned.
func (t *term) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	if t.active == 0 {
		close(t.idle)
	}
}

// stuck returns the runs that have not returned.
func (t *term) stuck() []Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	var runs []Run
	for _, r := range t.running {
		runs = append(runs, r)
	}
	return runs
}

// wake handles an alarm: decides what is due, and runs it.
func (t *term) wake(j *termJob) {
	if !t.enter() {
		return
	}
	defer t.leave()
	run, ok := t.decide(j)
	if !ok {
		return
	}
	t.execute(j, run)
	j.running.Add(-1)
}

// decide writes a decision about the ticks of j that are due.
func (t *term) decide(j *termJob) (run ledger.Run, ok bool) {
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-t.ctx.Done():
		return run, false
	}
	for {
		d, due := plan(j.Job, j.spec, j.row, t.lease.Now(), j.running.Load() > 0)
		if !due || t.ctx.Err() != nil {
			return run, false
		}
		var started bool
		err := t.retry(t.ctx, func(ctx context.Context) (err error) {
			run, started, err = t.ledger.Decide(ctx, t.lease.Ref(), d)
			return err
		})
		switch {
		case errors.Is(err, schedlock.ErrMoved):
			// Our own write, whose answer was lost, or a hand that edited it.
			if t.reload(j) != nil {
				return run, false
			}
			continue
		case errors.Is(err, schedlock.ErrLost):
			t.beat()
			return run, false
		case err != nil:
			return run, false
		}
		for _, k := range d.Skipped {
			t.log.Info("ticks skipped", "job", j.Name, "reason", k.Reason, "first", k.First, "last", k.Last, "count", k.Count, "term", t.lease.Term())
		}
		if j.row != nil && j.row.Spec != d.Spec {
			t.log.Info("job has a new spec", "job", j.Name, "spec", d.Spec, "was", j.row.Spec)
		}
		j.row = &ledger.Job{Name: j.Name, Spec: d.Spec, Cursor: d.To}
		// The database has agreed; now this replica must still trust its lease.
		if err := t.lock.IsLeader(t.ctx); err != nil && !errors.Is(err, schedlock.ErrDraining) {
			return run, false
		}
		if started {
			j.running.Add(1)
		}
		return run, started
	}
}

func (t *term) reload(j *termJob) error {
	return t.retry(t.ctx, func(ctx context.Context) error {
		rows, err := t.ledger.Jobs(ctx)
		if err == nil {
			j.row = findJob(rows, j.Name)
		}
		return err
	})
}

// execute runs the job and writes down how it ended.
func (t *term) execute(j *termJob, r ledger.Run) {
	run := Run{Job: r.Job, ScheduledAt: r.ScheduledAt, Attempt: r.Attempt, Term: r.Term, Lease: t.lease}
	t.mu.Lock()
	t.running[r.ID] = run
	t.mu.Unlock()
	start := time.Now()
	err := j.call(t.ctx, run)
	took := time.Since(start)
	t.mu.Lock()
	delete(t.running, r.ID)
	t.mu.Unlock()

	status, text := ledger.Done, ""
	if err != nil {
		status, text = ledger.Failed, err.Error()
		t.log.Error("run failed", "job", r.Job, "tick", r.ScheduledAt, "term", r.Term, "attempt", r.Attempt, "took", took, "err", err)
	}
	// The end is written even if the lease is over, for a while: the row says
	// whether it is still ours to write.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.ctx))
	defer cancel()
	stop := context.AfterFunc(t.lease.Context(), func() { time.AfterFunc(finishLimit, cancel) })
	defer stop()
	var written bool
	err = t.retry(ctx, func(ctx context.Context) (err error) {
		written, err = t.ledger.Finish(ctx, r, status, text)
		return err
	})
	if err != nil {
		level := slog.LevelError
		if errors.Is(err, schedlock.ErrLost) { // the database file is not the one that was opened
			level = slog.LevelWarn
			t.beat()
		}
		t.log.Log(ctx, level, "end of run not recorded", "job", r.Job, "tick", r.ScheduledAt, "term", r.Term, "status", string(status), "err", err)
	} else if !written {
		t.log.Warn("end of run came too late: the next leader has recorded it as abandoned", "job", r.Job, "tick", r.ScheduledAt, "term", r.Term)
	}
}

// stalled names a job of which a tick is due for longer than limit and not
// decided: a leader whose scheduler is wedged is no leader. It rings for ticks
// that are due for less: a heartbeat may have set the database's time back a
// little between the moment an alarm was set and the moment it rang.
func (t *term) stalled(limit time.Duration) error {
	now, wedged := t.lease.Now(), false
	for _, j := range t.jobs {
		select {
		case j.turn <- struct{}{}:
		default:
			continue // deciding right now, or waiting for the database
		}
		row, spec := j.row, j.spec
		<-j.turn
		if row == nil || row.Spec != spec.String() {
			continue
		}
		due := spec.Next(row.Cursor)
		if due.IsZero() || due.After(now) {
			continue
		}
		if late := now.Sub(due); late > limit {
			return fmt.Errorf("the tick of job %q at %s is due for %v and was not started", j.Name, due.Format(time.RFC3339), late.Round(time.Second))
		}
		if !wedged { // a RunNow that fails takes a second
			wedged = j.alarm.RunNow() != nil
		}
	}
	return nil
}

// end stops the alarms; everything that they started has returned.
func (t *term) end() {
	t.cancel(nil)
	if t.cron == nil {
		return
	}
	if err := t.cron.Shutdown(); err != nil {
		t.log.Warn("leader-only scheduler did not stop cleanly", "term", t.lease.Term(), "err", err)
	}
}
