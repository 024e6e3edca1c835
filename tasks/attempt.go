package tasks

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// termJob is a job during one term.
type termJob struct {
	Job
	spec  Spec
	alarm gocron.Job

	turn chan struct{} // guards what follows: one decision at a time
	row  *ledger.Job   // nil: not in the ledger yet
	owed time.Time     // see moment
	say  time.Time     // see moment
	step time.Duration // from there to the next time

	mu      sync.Mutex // guards what follows
	running int        // runs that have not ended
	began   time.Time  // see moment
	ended   time.Time
	stirred time.Time // when nothing was due, or something ended that had kept it from starting
	retries []attempt // in the order in which they are due
}

// An attempt is one that a run is owed.
type attempt struct {
	run   ledger.Run // as the attempt before has left it
	due   time.Time  // by this process' monotonic clock
	timer *time.Timer
}

// busy reports whether nothing may start because a run has not ended.
func (j *termJob) busy() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.running > 0 && j.Overlap != OverlapAllow
}

// stir notes that the job is not stalled.
func (j *termJob) stir() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stirred = time.Now()
}

// due returns the attempt that is due, nil if there is none.
func (j *termJob) due() *attempt {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.retries) == 0 || time.Now().Before(j.retries[0].due) {
		return nil
	}
	return &j.retries[0]
}

// settle forgets what is owed to a run.
func (j *termJob) settle(run ledger.Run) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.retries = slices.DeleteFunc(j.retries, func(a attempt) bool { return a.run.ID == run.ID })
}

// stop silences the timers.
func (j *termJob) stop() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, a := range j.retries {
		a.timer.Stop()
	}
}

// attempt turns the time at which a run is due again into one of this process.
// No clock that was set meanwhile can make it longer than the job's policy.
func (t *term) attempt(j *termJob, r ledger.Run) attempt {
	wait := min(max(r.RetryAt.Sub(t.lease.Now()), 0), j.Retry.longest())
	return attempt{run: r, due: time.Now().Add(wait)}
}

// owe lets an attempt start when it is due.
func (t *term) owe(j *termJob, a attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a.timer = time.AfterFunc(time.Until(a.due), func() { t.wake(j) })
	i, _ := slices.BinarySearchFunc(j.retries, a, func(x, y attempt) int {
		return cmp.Or(x.due.Compare(y.due), -1) // behind its equals
	})
	j.retries = slices.Insert(j.retries, i, a)
}

// wake starts what is due of a job.
func (t *term) wake(j *termJob) {
	if !t.enter() {
		return
	}
	defer t.leave()
	for {
		run, ok := t.next(j)
		if !ok {
			return
		}
		t.mu.Lock()
		t.active++ // also when the gate is shut: it has started
		t.mu.Unlock()
		go func() {
			defer t.leave()
			t.execute(j, run)
			t.wake(j) // what has waited for the end of this run
		}()
	}
}

// next starts the next run of j that is due, if there is any.
func (t *term) next(j *termJob) (run ledger.Run, ok bool) {
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-t.ctx.Done():
		return run, false
	}
	for t.ctx.Err() == nil && t.trusted() && t.open() && !t.paused(j.Name) {
		start := t.choose(j)
		if start == nil {
			j.stir()
			return run, false
		}
		var started bool
		err := t.retry(t.ctx, func(ctx context.Context) (err error) {
			run, started, err = start.try(ctx)
			return err
		})
		switch {
		case errors.Is(err, schedlock.ErrLost):
			t.beat()
			return run, false
		case errors.Is(err, ledger.ErrPaused):
			if t.retry(t.ctx, t.readInbox) != nil {
				return run, false
			}
			continue
		case err != nil && !errors.Is(err, schedlock.ErrMoved):
			return run, false
		}
		if !started && !start.tick.IsZero() {
			// It may be our own write, whose answer was lost.
			if run, started = t.adopt(j, start.tick, start.attempt); t.ctx.Err() != nil {
				return run, false
			}
		}
		if start.after(run, err) != nil {
			return run, false
		}
		if !started {
			continue
		}
		// The database has agreed; now this replica must still trust its lease.
		if !t.trusted() {
			return run, false
		}
		t.mu.Lock()
		t.running[run.ID] = execution{Run: t.run(run)}
		t.mu.Unlock()
		j.mu.Lock()
		j.running++
		if !start.began.IsZero() {
			j.began = start.began
		}
		j.mu.Unlock()
		j.step = overlapStep
		j.say = t.lease.Now().Add(j.step)
		return run, true
	}
	return run, false
}

// trusted reports whether this replica still trusts its lease. While that is
// suspended it waits: for milliseconds, as a rule.
func (t *term) trusted() bool {
	for {
		err := t.lock.IsLeader(t.ctx)
		if !errors.Is(err, schedlock.ErrSuspended) {
			return err == nil || errors.Is(err, schedlock.ErrDraining)
		}
		select {
		case <-t.ctx.Done():
			return false
		case <-time.After(suspendedPause):
		}
	}
}

const suspendedPause = 5 * time.Millisecond

// overlapStep is how long a run has been under way when the ticks that it
// overlaps are recorded for the first time. That time doubles then, so that a
// run of a day adds some rows and not one for each tick, and a database that is
// late with a run does not get another write for that.
const overlapStep = 2 * time.Second

// run is what a job, and OnFailure, are told of a run.
func (t *term) run(r ledger.Run) Run {
	return Run{Job: r.Job, ScheduledAt: r.ScheduledAt, Attempt: r.Attempt, Term: r.Term, Lease: t.lease,
		RequestedBy: r.RequestedBy, RequestReason: r.RequestReason}
}

// A start is something to write into the ledger.
type start struct {
	tick    time.Time // what it starts; zero: nothing
	attempt int
	began   time.Time // of moment, once it has started; zero: as before
	try     func(ctx context.Context) (ledger.Run, bool, error)
	after   func(run ledger.Run, err error) error // err is nil or schedlock.ErrMoved
}

// choose returns what is to start, nil if nothing is: what was due first.
func (t *term) choose(j *termJob) *start {
	t.mu.Lock()
	inbox, live := t.inbox, t.live
	t.mu.Unlock()
	m := moment{now: t.lease.Now(), live: live, owed: j.owed, say: j.say}
	for _, p := range inbox.Pauses {
		if p.Job == "" || p.Job == j.Name {
			m.pauses = append(m.pauses, p)
			if p.Resumed.After(m.live) {
				m.live = p.Resumed
			}
		}
	}
	j.mu.Lock()
	m.busy, m.began, m.ended = j.running > 0 && j.Overlap != OverlapAllow, j.began, j.ended
	j.mu.Unlock()

	d, owed, due := plan(j.Job, j.spec, j.row, m)
	if due && d.Start.IsZero() {
		return t.decide(j, d, owed)
	}
	i := slices.IndexFunc(inbox.Requests, func(r ledger.Request) bool { return r.Job == j.Name })
	if m.busy {
		if i >= 0 && j.Overlap == OverlapSkip {
			return t.answer(inbox.Requests[i], ledger.Overlap)
		}
		return nil
	}
	var (
		first *start
		at    time.Time
	)
	offer := func(due time.Time, s *start) {
		if first == nil || due.Before(at) {
			first, at = s, due
		}
	}
	if due {
		offer(d.Start, t.decide(j, d, owed))
	}
	if a := j.due(); a != nil {
		offer(a.run.RetryAt, t.again(j, *a))
	}
	if i >= 0 {
		offer(inbox.Requests[i].At, t.answer(inbox.Requests[i], ""))
	}
	if first != nil && (j.row == nil || !j.owed.After(j.row.Cursor)) {
		first.began = m.now // else it goes on being busy with what it owes
	}
	return first
}

// decide writes a decision about ticks.
func (t *term) decide(j *termJob, d ledger.Decision, owed time.Time) *start {
	return &start{
		tick: d.Start, attempt: 1,
		try: func(ctx context.Context) (ledger.Run, bool, error) { return t.ledger.Decide(ctx, t.lease.Ref(), d) },
		after: func(_ ledger.Run, err error) error {
			if err != nil { // our own write, or a hand that edited the cursor
				return t.reload(j)
			}
			for _, k := range d.Skipped {
				t.onRun(RunEvent{Job: j.Name, Status: ledger.Skipped, Reason: k.Reason, Count: k.Count})
				t.log.Info("ticks skipped", "job", j.Name, "reason", k.Reason, "first", k.First, "last", k.Last, "count", k.Count, "term", t.lease.Term())
			}
			if j.row != nil && j.row.Spec != d.Spec {
				t.log.Info("job has a new spec", "job", j.Name, "spec", d.Spec, "was", j.row.Spec)
			}
			j.row, j.owed = &ledger.Job{Name: j.Name, Spec: d.Spec, Cursor: d.To}, owed
			j.step *= 2
			j.say = t.lease.Now().Add(j.step)
			return nil
		},
	}
}

// again starts an attempt that is owed.
func (t *term) again(j *termJob, a attempt) *start {
	return &start{
		tick: a.run.ScheduledAt, attempt: a.run.Attempt + 1,
		try: func(ctx context.Context) (ledger.Run, bool, error) {
			return t.ledger.Retry(ctx, t.lease.Ref(), a.run)
		},
		after: func(ledger.Run, error) error { j.settle(a.run); return nil },
	}
}

// answer starts the run that was asked for, or skips it.
func (t *term) answer(r ledger.Request, skip string) *start {
	s := &start{
		attempt: 1,
		try: func(ctx context.Context) (ledger.Run, bool, error) {
			return t.ledger.Answer(ctx, t.lease.Ref(), r, skip)
		},
		after: func(run ledger.Run, _ error) error {
			t.forget(r)
			if run.Status == ledger.Skipped {
				t.onRun(RunEvent{Job: r.Job, Status: ledger.Skipped, Reason: skip, Count: 1})
				t.log.Info("request skipped", "job", r.Job, "reason", skip, "requested_by", r.By, "term", t.lease.Term())
			}
			return nil
		},
	}
	if skip == "" {
		s.tick = r.At
	}
	return s
}

// adopt returns the run of a tick if this leader has started it without having
// learnt of it: it is in progress for this term, and nobody executes it.
func (t *term) adopt(j *termJob, tick time.Time, attempt int) (run ledger.Run, mine bool) {
	err := t.retry(t.ctx, func(ctx context.Context) (err error) {
		run, mine, err = t.ledger.Run(ctx, j.Name, tick)
		return err
	})
	t.mu.Lock()
	_, executing := t.running[run.ID]
	t.mu.Unlock()
	return run, err == nil && mine && !executing &&
		run.Status == ledger.InProgress && run.Term == t.lease.Term() && run.Attempt == attempt
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
