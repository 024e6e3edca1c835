package tasks

import (
	"cmp"
	"context"
	"slices"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// A stepKind is one of the three things that move a job on.
type stepKind int

const (
	decideTicks   stepKind = iota // start a tick, skip ticks, or both
	startRetry                    // start the attempt that a run is owed
	answerRequest                 // start the run that somebody asked for, or skip it
)

// A step is one statement to the ledger that moves a job on. In it the database
// checks that this replica holds the lock.
type step struct {
	kind     stepKind
	due      time.Time // of several steps, the one that was due first is taken
	busyFrom time.Time // when the job becomes busy with what it starts; zero: it is already

	decision  ledger.Decision // of decideTicks
	catchUpTo time.Time       // that of the job once the decision is written

	attempt attempt // of startRetry

	request ledger.Request // of answerRequest
	skip    string         // why the request is not run; "": it is

	again bool // it was sent more than once
}

// starts returns which attempt at which tick a step starts; a zero tick: none.
func (s step) starts() (tick time.Time, attempt int) {
	switch {
	case s.kind == decideTicks:
		return s.decision.Start, 1
	case s.kind == startRetry:
		return s.attempt.run.ScheduledAt, s.attempt.run.Attempt + 1
	case s.skip == "":
		return s.request.At, 1
	}
	return time.Time{}, 0
}

// choose returns the next step of j; ok is false if nothing is due. This is the
// one place that decides what starts; j.turn is held.
func (t *term) choose(j *termJob) (next step, ok bool) {
	t.mu.Lock()
	pending := t.pending
	m := moment{now: t.lease.Now(), leadingSince: t.live, overlapsAt: j.overlapsAt}
	t.mu.Unlock()
	if j.catchUpTo.After(m.now) { // the clock was set back since
		j.catchUpTo = time.Time{}
	}
	m.catchUpTo = j.catchUpTo
	for _, p := range pending.Pauses {
		if p.Job == "" || p.Job == j.Name {
			m.pauses = append(m.pauses, p)
			if !p.Resumed.After(m.now.Add(clockSlack)) { // else the clock was set back since
				m.leadingSince = later(m.leadingSince, p.Resumed)
			}
		}
	}
	j.mu.Lock()
	m.busy, m.busyFrom, m.busyUntil = j.state() != idle, j.busyFrom, j.busyUntil
	j.mu.Unlock()

	var due []step
	decision, catchUpTo, ok := plan(j.Job, j.spec, j.row, m)
	if ok {
		s := step{kind: decideTicks, due: decision.Start, decision: decision, catchUpTo: catchUpTo}
		if decision.Start.IsZero() {
			return s, true // it only skips: that need not wait for anything
		}
		due = append(due, s)
	}
	i := slices.IndexFunc(pending.Requests,
		func(r ledger.Request) bool { return r.Job == j.Name })
	if m.busy {
		if i >= 0 && j.Overlap == OverlapSkip {
			return step{kind: answerRequest, request: pending.Requests[i],
				skip: ledger.Overlap}, true
		}
		return next, false
	}
	if a := j.retry(); a != nil {
		due = append(due, step{kind: startRetry, due: a.run.RetryAt, attempt: *a})
	}
	if i >= 0 {
		s := step{kind: answerRequest, due: pending.Requests[i].At, request: pending.Requests[i]}
		if s.due.After(m.now) { // asked before the clock was set back: the ticks since are younger
			s.due = time.Time{}
		}
		due = append(due, s)
	}
	if len(due) == 0 {
		return next, false
	}
	next = slices.MinFunc(due, func(a, b step) int { return a.due.Compare(b.due) })
	if j.row == nil || !j.catchUpTo.After(j.row.Cursor) {
		next.busyFrom = m.now // otherwise it goes on being busy with what it catches up with
	}
	return next, true
}

// write sends the step to the ledger. started is false if it starts nothing, or
// if what it starts was started before.
func (t *term) write(s *step) (run ledger.Run, started bool, err error) {
	ref, tries := t.lease.Ref(), 0
	err = t.retry(t.ctx, func(ctx context.Context) (err error) {
		tries++
		switch s.kind {
		case decideTicks:
			run, started, err = t.ledger.Decide(ctx, ref, s.decision)
		case startRetry:
			run, started, err = t.ledger.Retry(ctx, ref, s.attempt.run)
		case answerRequest:
			run, started, err = t.ledger.Answer(ctx, ref, s.request, s.skip)
		}
		return err
	}, "job", cmp.Or(s.decision.Job, s.attempt.run.Job, s.request.Job))
	s.again = tries > 1
	return run, started, err
}

// written takes note of a step that the ledger has; j.turn is held. conflict
// says that it has another one: our own, whose answer was lost, or that of a
// hand which has edited the cursor.
func (t *term) written(j *termJob, s step, run ledger.Run, conflict bool) error {
	switch {
	case s.kind == startRetry:
		j.settle(s.attempt.run)
	case s.kind == answerRequest:
		j.sure(s.kind, s.request.At)
		t.answered(s.request, s.skip, run)
	case conflict:
		return t.reload(j)
	default:
		j.sure(s.kind, s.decision.Start)
		t.decided(j, s.decision)
		j.catchUpTo = s.catchUpTo
	}
	return nil
}

// decided takes note of a decision about ticks.
func (t *term) decided(j *termJob, d ledger.Decision) {
	for _, k := range d.Skipped {
		t.tell(RunEvent{Run: Run{Job: j.Name}, Status: ledger.Skipped, Reason: k.Reason,
			Count: k.Count})
		t.log.Info("ticks skipped", "job", j.Name, "reason", k.Reason, "first", k.First,
			"last", k.Last, "count", k.Count, "term", t.lease.Term())
	}
	if d.RawFrom != "" && d.From.IsZero() {
		t.log.Warn("the cursor of a job could not be read: it counts as now", "job", j.Name,
			"cursor", d.RawFrom, "to", d.To, "term", t.lease.Term())
	}
	if j.row != nil && j.row.Spec != d.Spec {
		t.log.Info("job has a new spec", "job", j.Name, "spec", d.Spec, "was", j.row.Spec)
	}
	j.row = &ledger.Job{Name: j.Name, Spec: d.Spec, Cursor: d.To}
	j.overlapsWait *= 2
	j.overlapsAt = t.lease.Now().Add(j.overlapsWait)
}

// answered takes note of a request that was answered.
func (t *term) answered(r ledger.Request, skip string, run ledger.Run) {
	t.forget(r)
	if run.Status == ledger.Skipped {
		t.tell(RunEvent{Run: Run{Job: r.Job}, Status: ledger.Skipped, Reason: skip, Count: 1})
		t.log.Info("request skipped", "job", r.Job, "reason", skip, "requested_by", r.By,
			"term", t.lease.Term())
	}
}
