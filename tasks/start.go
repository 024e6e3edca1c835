package tasks

import (
	"context"
	"errors"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// wake takes the steps of a job that are due, and executes what they start.
func (t *term) wake(j *termJob) {
	what := atDatabase(j.Name)
	if !t.enter(what) {
		return
	}
	defer t.leave(what)
	for {
		run, ok := t.next(j)
		if !ok {
			return
		}
		t.mu.Lock()
		t.active++ // also when the gate is shut: it has started
		t.mu.Unlock()
		go func() {
			defer t.leave("")
			t.execute(j, run)
			t.wake(j) // what has waited for the end of this run
		}()
	}
}

// next takes the steps of j that are due, up to the first that starts a run; ok
// is false if none did. While another waits for its turn it leaves all to that one, which will find
// what is due then: else each tick of an outage of the ledger would add one that waits.
func (t *term) next(j *termJob) (run ledger.Run, ok bool) {
	if !j.waits.CompareAndSwap(false, true) {
		return run, false
	}
	err := j.turn.Take(t.ctx)
	j.waits.Store(false)
	if err != nil {
		return run, false
	}
	defer j.turn.Give()
	conflicts := 0 // how often in a row the ledger did not agree with what was just read of it
	for t.pause(conflicts) && t.trusted() && t.open() && !t.paused(j.Name) {
		if run, late := t.landed(j); late {
			return run, t.begin(j, step{busyFrom: t.lease.Now()}, run)
		}
		s, found := t.choose(j)
		if !found {
			j.stir()
			return run, false
		}
		run, started, err := t.write(&s)
		paused := errors.Is(err, ledger.ErrPaused)
		switch {
		case err == nil:
			conflicts = 0
		case paused || errors.Is(err, driver.ErrConflict):
			if conflicts++; conflicts == 2 {
				t.log.Warn("the ledger does not agree with what was just read of it: "+
					"the job is tried again, with pauses",
					"job", j.Name, "term", t.lease.Term(), "err", err)
			}
		default:
			if errors.Is(err, schedlock.ErrLost) {
				t.beat.now()
			}
			return run, false
		}
		if paused {
			j.unsure(s)
			if t.retry(t.ctx, t.readPending) != nil {
				return run, false
			}
			continue
		}
		if tick, attempt := s.starts(); !started && !tick.IsZero() {
			// It may be our own write, whose answer was lost.
			if run, started = t.adopt(j, tick, attempt); t.ctx.Err() != nil {
				return run, false
			}
		}
		if t.written(j, s, run, err != nil) != nil {
			return run, false
		}
		if started {
			return run, t.begin(j, s, run)
		}
	}
	return run, false
}

// begin notes that a run has started in the ledger. The database has agreed; now
// this replica must still trust its lease, or the run is not executed.
func (t *term) begin(j *termJob, s step, run ledger.Run) (ok bool) {
	if !t.trusted() {
		return false
	}
	t.mu.Lock()
	t.running[run.ID] = execution{Run: t.run(run)}
	t.mu.Unlock()
	j.runBegins(s.busyFrom)
	j.overlapsWait = overlapsFirst
	j.overlapsAt = t.lease.Now().Add(j.overlapsWait)
	return true
}

// overlapsFirst is how long a run has been under way when the ticks that it
// overlaps are recorded for the first time. That time doubles then, so that a
// run of a day adds some rows and not one for each tick, and a database that is
// late with a run does not get another write for that.
const overlapsFirst = 2 * time.Second

// adopt returns the run of a tick if this leader has started it without having
// learnt of it: it is in progress for this term, and nobody executes it.
func (t *term) adopt(j *termJob, tick time.Time, attempt int) (run ledger.Run, mine bool) {
	err := t.retry(t.ctx, func(ctx context.Context) (err error) {
		run, mine, err = t.ledger.Run(ctx, j.Name, tick)
		return err
	}, "job", j.Name)
	t.mu.Lock()
	_, executing := t.running[run.ID]
	t.mu.Unlock()
	return run, err == nil && mine && !executing &&
		run.Status == ledger.InProgress && run.Term == t.lease.Term() && run.Attempt == attempt
}

// landed returns a run that has started long after it was asked for: the ledger did not answer,
// refused it because of a pause when it was asked again, and carried out the first statement
// after that pause. late is false if there is none. The next step of the job is another one, so
// it would not find this run, which would be in progress as long as the term.
func (t *term) landed(j *termJob) (run ledger.Run, late bool) {
	for _, s := range j.unsureStarts() {
		tick, attempt := s.starts()
		if run, late = t.adopt(j, tick, attempt); !late {
			continue
		}
		t.log.Info("a run has started long after it was asked for", "job", j.Name, "tick", tick,
			"term", t.lease.Term())
		j.sure(s.kind, tick)
		return run, s.kind != decideTicks || t.reload(j) == nil
	}
	return run, false
}

// pause ends at once, but after more than one conflict in a row it lasts a retry
// interval: a loop over the database does not spin. false: nothing new may start
// any more.
func (t *term) pause(conflicts int) bool {
	return conflicts < 2 || !bounded.Wait(t.shut, t.lock.Timing().RetryInterval())
}

// trusted reports whether this replica still trusts its lease. While that is
// suspended it waits: for milliseconds, as a rule.
func (t *term) trusted() bool {
	for {
		err := t.lock.IsLeader(t.ctx)
		if !errors.Is(err, schedlock.ErrSuspended) {
			return err == nil || errors.Is(err, schedlock.ErrDraining)
		}
		if !bounded.Sleep(t.ctx, suspendedPause) {
			return false
		}
	}
}

const suspendedPause = 5 * time.Millisecond

// attempt turns the time at which a run is due again into one of this process.
// No clock that was set meanwhile can make it longer than the job's policy.
func (t *term) attempt(j *termJob, r ledger.Run) attempt {
	wait := min(max(r.RetryAt.Sub(t.lease.Now()), 0), j.Retry.longest())
	return attempt{run: r, due: time.Now().Add(wait)}
}

// owe lets an attempt start when it is due.
func (t *term) owe(j *termJob, a attempt) { j.owe(a, func() { t.wake(j) }) }

// run is what a job, and OnRun, are told of a run.
func (t *term) run(r ledger.Run) Run {
	return Run{Job: r.Job, ScheduledAt: r.ScheduledAt, Attempt: r.Attempt, Term: r.Term,
		Lease: t.lease, RequestedBy: r.RequestedBy, RequestReason: r.RequestReason}
}
