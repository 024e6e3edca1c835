package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const (
	stopTimeout   = 10 * time.Second // of a gocron scheduler whose jobs have returned
	decideTimeout = 5 * time.Second  // of one statement of the ledger
	finishLimit   = 5 * time.Second  // how long the end of a run is retried once the lease is over
)

// A term runs the jobs while one lease lasts.
type term struct {
	lock       *schedlock.Lock
	lease      *schedlock.Lease
	ledger     ledger.Store
	log        *slog.Logger
	onRun      func(RunEvent)
	inboxEvery time.Duration
	keep       int    // newest rows of each job that stay in the ledger; 0: all
	beat       func() // sends a heartbeat at once

	ctx    context.Context // of the runs; ends with the lease, or when a drain has passed its limit
	cancel context.CancelCauseFunc
	cron   gocron.Scheduler
	jobs   []*termJob
	poke   chan struct{}  // look into the inbox at once
	helper sync.WaitGroup // what start has begun besides the alarms

	shut chan struct{} // closed when nothing new starts any more

	mu      sync.Mutex     // guards what follows
	closed  bool           // shut is
	active  int            // alarms being handled, runs included
	labels  map[string]int // what they wait for, if they are no runs
	idle    chan struct{}
	running map[int64]execution // whose end is not recorded yet, by the id of their row
	pending ledger.Pending
	live    time.Time // ticks after it were due while this replica led
}

// An execution is a run of this term, until its end is recorded.
type execution struct {
	Run
	returned bool
}

// newTerm makes a term that runs nothing yet.
func (r *Runner) newTerm(lease *schedlock.Lease, beat func()) *term {
	t := &term{lock: r.lock, lease: lease, ledger: r.ledger, log: r.log, inboxEvery: r.inboxEvery,
		keep: r.keep, beat: beat,
		poke: make(chan struct{}, 1), shut: make(chan struct{}), labels: map[string]int{},
		idle: make(chan struct{}), running: map[int64]execution{}, live: lease.Now()}
	t.ctx, t.cancel = context.WithCancelCause(lease.Context())
	t.onRun = func(e RunEvent) {
		for i, f := range r.onRun {
			r.events[i].call(e.Job, func() { f(e) })
		}
	}
	for _, j := range r.jobs {
		t.jobs = append(t.jobs, &termJob{Job: j, spec: j.Spec.ForJob(j.Name),
			turn: make(chan struct{}, 1), stirred: time.Now()})
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
	if t.cron, err = gocron.NewScheduler(gocron.WithLocation(time.UTC),
		gocron.WithStopTimeout(stopTimeout)); err != nil {
		return fmt.Errorf("leader-only scheduler: %w", err)
	}
	for _, j := range t.jobs {
		if j.alarm, err = t.cron.NewJob(t.cronJob(), gocron.NewTask(t.wake, j),
			t.alarmOptions(j)...); err != nil {
			return fmt.Errorf("leader-only scheduler: job %q: %w", j.Name, err)
		}
	}
	t.cron.Start()
	for _, j := range t.jobs { // what was missed, and new jobs
		_ = j.alarm.RunNow()
	}
	t.helper.Go(t.watchPending)
	if t.keep > 0 {
		t.helper.Go(t.prune)
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

// rearm computes all alarms anew, because the database's clock was set. What
// it has passed over, if it was set forward, was not due while anybody led.
func (t *term) rearm(jump time.Duration) {
	if jump > 0 {
		t.mu.Lock()
		t.live = t.lease.Now()
		t.mu.Unlock()
	}
	for _, j := range t.jobs {
		if _, err := t.cron.Update(j.alarm.ID(), t.cronJob(), gocron.NewTask(t.wake, j),
			t.alarmOptions(j)...); err != nil {
			t.log.Warn("alarm not set anew", "job", j.Name, "err", err)
		}
		_ = j.alarm.RunNow()
	}
}

// load reads what earlier leaders have left: it marks what they did not end,
// and reads what is owed, what people have asked, and the cursors.
func (t *term) load(ctx context.Context) error {
	abandoned, err := t.ledger.Abandon(ctx, t.lease.Ref(), func(r ledger.Run) time.Time {
		if j := t.job(r.Job); j != nil {
			return j.retryAt(t.lease.Now(), r.Attempt, true)
		}
		return t.lease.Now() // owed by a leader that has the job
	})
	if err != nil {
		return err
	}
	for _, r := range abandoned {
		t.onRun(RunEvent{Run: t.run(r), Status: ledger.Abandoned, Count: 1, Err: errAbandoned,
			RetryAt: r.RetryAt})
		t.sayFailed(r, errAbandoned, 0)
	}
	owed, err := t.ledger.Retries(ctx)
	if err != nil {
		return err
	}
	retries := map[string][]attempt{}
	for _, r := range owed {
		j := t.job(r.Job)
		switch {
		case j == nil: // left to a leader that has it
		case r.Attempt >= j.attempts(true):
			if _, err := t.ledger.GiveUp(ctx, t.lease.Ref(), r); err != nil {
				return err
			}
			t.log.Warn("run is not tried again: the job's policy has changed", "job", r.Job, "tick",
				r.ScheduledAt, "attempt", r.Attempt)
		default:
			retries[r.Job] = append(retries[r.Job], t.attempt(j, r))
		}
	}
	inbox, err := t.ledger.Pending(ctx)
	if err != nil {
		return err
	}
	rows, err := t.ledger.Jobs(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.pending = inbox
	t.mu.Unlock()
	for _, j := range t.jobs {
		j.row = findJob(rows, j.Name)
		if err := t.putBack(ctx, j); err != nil {
			return err
		}
		for _, a := range retries[j.Name] {
			t.owe(j, a)
		}
	}
	for _, p := range inbox.Pauses {
		if p.InForce() {
			t.sayPaused(p)
		}
	}
	return nil
}

// putBack sets the cursor of a job to now if it stands too far ahead, because a
// clock was wrong for a while, or because a hand has set it; j.turn is held, or
// nobody else has the job yet. What was decided about the ticks in between stays
// in the ledger, and what has run among them does not start again; so it goes
// back no further than the ledger does.
func (t *term) putBack(ctx context.Context, j *termJob) error {
	now := t.lease.Now().UTC().Truncate(time.Microsecond)
	if !tooFarAhead(j.spec, j.row, now) {
		return nil
	}
	to := now
	if t.keep > 0 {
		runs, err := t.ledger.Runs(ctx, j.Name, t.keep)
		if err != nil && len(runs) == 0 {
			return err
		}
		if len(runs) == t.keep { // older ones may have been pruned
			to = later(to, runs[len(runs)-1].ScheduledAt)
		}
	}
	if !to.Before(j.row.Cursor) {
		return nil
	}
	_, _, err := t.ledger.Decide(ctx, t.lease.Ref(), ledger.Decision{Job: j.Name, Spec: j.row.Spec,
		From: j.row.Cursor, RawFrom: j.row.RawCursor, To: to, Back: true})
	switch {
	case errors.Is(err, driver.ErrConflict): // it stands elsewhere by now: the next decision finds out
		return nil
	case err != nil:
		return err
	}
	t.log.Warn("the cursor of a job stood too far ahead, and was put back: a clock was wrong, or "+
		"a hand has set it",
		"job", j.Name, "cursor", j.row.Cursor, "to", to, "term", t.lease.Term())
	j.row.Cursor, j.row.RawCursor, j.catchUpTo = to, "", time.Time{}
	return nil
}

// job returns the job of that name, nil if this code has none.
func (t *term) job(name string) *termJob {
	for _, j := range t.jobs {
		if j.Name == name {
			return j
		}
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
		if errors.Is(err, schedlock.ErrCorrupt) {
			t.lease.StepDown(err)
			return err
		}
		if err == nil || errors.Is(err, schedlock.ErrLost) || errors.Is(err, driver.ErrConflict) ||
			errors.Is(err, ledger.ErrPaused) || ctx.Err() != nil {
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

// enter counts an alarm that is being handled, and says what it waits for;
// false: nothing new may start.
func (t *term) enter(what string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.active++
	t.labels[what]++
	return true
}

// leave is for what has entered with the same label, "" for a run.
func (t *term) leave(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.labels[what]--; t.labels[what] <= 0 {
		delete(t.labels, what)
	}
	t.active--
	if t.closed && t.active == 0 {
		close(t.idle)
	}
}

// open reports whether something new may start.
func (t *term) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.closed
}

// close shuts the gate. idle is closed when all that had started has returned.
func (t *term) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	close(t.shut)
	if t.active == 0 {
		close(t.idle)
	}
}

// stuck returns the runs that have not returned.
func (t *term) stuck() []Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	var runs []Run
	for _, x := range t.running {
		if !x.returned {
			runs = append(runs, x.Run)
		}
	}
	return runs
}

// waitsFor is what has not returned, in words.
func (t *term) waitsFor() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	what := slices.Collect(maps.Keys(t.labels))
	for _, x := range t.running {
		words := fmt.Sprintf("job %q", x.Job)
		if x.returned {
			words = fmt.Sprintf("the database, to record the end of a run of job %q", x.Job)
		}
		what = append(what, words)
	}
	slices.Sort(what)
	return slices.Compact(what)
}

// atDatabase is the label of what waits for the database, about a job.
func atDatabase(job string) string { return fmt.Sprintf("the database, about job %q", job) }

// stalled names a job of which a tick is due for longer than limit, and which
// nothing has woken for as long: a leader whose scheduler is wedged is no
// leader. It rings for ticks that are due for less: a heartbeat may have set
// the database's time back a little between the moment an alarm was set and the
// moment it rang.
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
		state, unmoved := j.unmoved()
		if row == nil || row.Spec != spec.String() || state == running || t.paused(j.Name) {
			continue
		}
		due := spec.Next(row.Cursor)
		if state == recording { // until it had returned, ticks are recorded as overlapped
			due = spec.Next(now.Add(-unmoved))
		}
		if due.IsZero() || due.After(now) {
			continue
		}
		if late := min(now.Sub(due), unmoved); late > limit {
			return fmt.Errorf("the tick of job %q at %s is due for %v and was not started", j.Name,
				due.Format(time.RFC3339), late.Round(time.Second))
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
	t.helper.Wait()
	for _, j := range t.jobs {
		j.stop()
	}
	if t.cron == nil {
		return
	}
	if err := t.cron.Shutdown(); err != nil {
		t.log.Warn("leader-only scheduler did not stop cleanly", "term", t.lease.Term(), "err", err)
	}
}
