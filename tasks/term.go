package tasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/internal/bounded"
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
	*settings
	lease *schedlock.Lease
	beat  *heartbeat

	ctx    context.Context // of the runs; ends with the lease, or when a drain has passed its limit
	cancel context.CancelCauseFunc
	cron   gocron.Scheduler
	jobs   []*termJob
	poke   chan struct{}  // look into the inbox at once
	helper sync.WaitGroup // what start has begun besides the alarms

	// Whether load has asked the ledger to mark what earlier leaders left, and has learnt of it.
	marking, marked bool

	shut chan struct{} // closed, under mu, when nothing new starts any more

	mu      sync.Mutex     // guards what follows
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
func (r *Runner) newTerm(lease *schedlock.Lease, beat *heartbeat) *term {
	t := &term{settings: &r.settings, lease: lease, beat: beat, poke: make(chan struct{}, 1),
		shut: make(chan struct{}), labels: map[string]int{}, idle: make(chan struct{}),
		running: map[int64]execution{}, live: lease.Now()}
	t.ctx, t.cancel = context.WithCancelCause(lease.Context())
	for _, j := range r.jobs {
		t.jobs = append(t.jobs, &termJob{Job: j, spec: j.Spec.ForJob(j.Name),
			turn: bounded.NewTurn(), stirred: time.Now()})
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
// it has passed over, if it was set forward, was not due while anybody led. If
// it was set back, nothing that has been noted lies in the future.
func (t *term) rearm(jump time.Duration) {
	now := t.lease.Now()
	t.mu.Lock()
	if jump > 0 || t.live.After(now) {
		t.live = now
	}
	t.mu.Unlock()
	for _, j := range t.jobs {
		j.clockSet(jump, now)
	}
	if t.cron == nil {
		return // not started yet
	}
	for _, j := range t.jobs {
		if _, err := t.cron.Update(j.alarm.ID(), t.cronJob(), gocron.NewTask(t.wake, j),
			t.alarmOptions(j)...); err != nil {
			t.log.Warn("alarm not set anew", "job", j.Name, "err", err)
		}
		_ = j.alarm.RunNow()
	}
}

// retry repeats do while it fails for a reason that may pass. about are attributes for the log,
// such as the job that it concerns.
func (t *term) retry(ctx context.Context, do func(context.Context) error, about ...any) error {
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
			if said && ctx.Err() == nil {
				t.log.Info("run ledger answers again", append(about, "term", t.lease.Term())...)
			}
			return err
		}
		if !said {
			t.log.Warn("run ledger does not answer",
				append(about, "term", t.lease.Term(), "err", err)...)
			said = true
		}
		if !bounded.Sleep(ctx, t.lock.Timing().RetryInterval()) {
			return err
		}
	}
}

// enter counts an alarm that is being handled, and says what it waits for;
// false: nothing new may start.
func (t *term) enter(what string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open() {
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
	if t.active == 0 && !t.open() {
		close(t.idle)
	}
}

// open reports whether something new may start.
func (t *term) open() bool {
	select {
	case <-t.shut:
		return false
	default:
		return true
	}
}

// close shuts the gate. idle is closed when all that had started has returned.
func (t *term) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
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
		if !j.turn.TryTake() {
			continue // deciding right now, or waiting for the database
		}
		row, spec := j.row, j.spec
		j.turn.Give()
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
