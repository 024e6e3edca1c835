package tasks

import (
	"cmp"
	"context"
	"errors"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// load reads what earlier leaders have left: it marks what they did not end,
// and reads what is owed, what people have asked, and the cursors.
func (t *term) load(ctx context.Context) error {
	if err := t.abandon(ctx); err != nil {
		return err
	}
	owed, err := t.owed(ctx)
	if err != nil {
		return err
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
	}
	// Last, as an attempt may start at once, and a load that fails is repeated.
	for _, j := range t.jobs {
		for _, a := range owed[j] {
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

// abandon marks the runs that their leader did not end, and tells of them. A load that is
// repeated has nothing more to mark: who led before can start nothing any more.
func (t *term) abandon(ctx context.Context) error {
	if t.marked {
		return nil
	}
	again := t.marking
	t.marking = true
	abandoned, err := t.ledger.Abandon(ctx, t.lease.Ref(), func(r ledger.Run) time.Time {
		if j := t.job(r.Job); j != nil {
			return j.retryAt(t.lease.Now(), r.Attempt, true)
		}
		return t.lease.Now() // owed by a leader that has the job
	})
	if err != nil {
		return err
	}
	t.marked = true
	if again && len(abandoned) == 0 {
		abandoned = t.unanswered(ctx)
	}
	for _, r := range abandoned {
		t.tell(RunEvent{Run: t.run(r), Status: ledger.Abandoned, Count: 1, Err: errAbandoned,
			RetryAt: r.RetryAt})
		t.sayFailed(r, errAbandoned, 0)
	}
	return nil
}

// unanswered returns what this term has marked as abandoned without having learnt of it. No term
// waits for that: what can't be read is not told of.
func (t *term) unanswered(ctx context.Context) (marked []ledger.Run) {
	const newest = 1000 // of each job: its run was under way not long ago
	t.mu.Lock()
	began := t.live.Add(-clockSlack)
	t.mu.Unlock()
	for _, j := range t.jobs {
		runs, _ := t.ledger.Runs(ctx, j.Name, newest)
		for _, r := range runs {
			if r.Status == ledger.Abandoned && r.FinishedAt.After(began) {
				marked = append(marked, r)
			}
		}
	}
	return marked
}

// owed returns the attempts that runs are owed, and gives those up that the job's
// policy does not allow any more.
func (t *term) owed(ctx context.Context) (map[*termJob][]attempt, error) {
	runs, err := t.ledger.Retries(ctx)
	if err != nil {
		return nil, err
	}
	owed := map[*termJob][]attempt{}
	for _, r := range runs {
		j := t.job(r.Job)
		switch {
		case j == nil: // left to a leader that has it
		case r.Attempt < j.attempts(true):
			owed[j] = append(owed[j], t.attempt(j, r))
		default:
			if _, err := t.ledger.GiveUp(ctx, t.lease.Ref(), r); err != nil {
				return nil, err
			}
			t.log.Warn("run is not tried again: the job's policy has changed", "job", r.Job, "tick",
				r.ScheduledAt, "attempt", r.Attempt)
		}
	}
	return owed, nil
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
	to, limit := now, cmp.Or(t.keep, defaultKeepRuns)
	runs, err := t.ledger.Runs(ctx, j.Name, limit)
	if err != nil && len(runs) == 0 {
		return err
	}
	if len(runs) == limit || len(runs) > 0 && anyGone(j.row, runs) {
		to = later(to, runs[len(runs)-1].ScheduledAt)
	}
	if !to.Before(j.row.Cursor) {
		return nil
	}
	_, _, err = t.ledger.Decide(ctx, t.lease.Ref(), ledger.Decision{Job: j.Name, Spec: j.row.Spec,
		From: j.row.Cursor, RawFrom: j.row.RawCursor, To: to, Back: true})
	switch {
	case errors.Is(err, driver.ErrConflict): // the next decision sees where it is now
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

// anyGone reports whether more attempts of a job have ended than these runs tell
// of: others were pruned, here or by a leader with another limit, or can't be read.
func anyGone(row *ledger.Job, runs []ledger.Run) bool {
	told := int64(0)
	for _, r := range runs {
		switch r.Status {
		case ledger.Skipped:
		case ledger.InProgress:
			told += int64(r.Attempt) - 1
		default:
			told += int64(r.Attempt)
		}
	}
	return row.Done+row.Failed > told
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
	for i := range rows { // a row of a range would be copied to the heap each time
		if r := &rows[i]; r.Name == name {
			return r
		}
	}
	return nil
}

// reload reads the job's row again.
func (t *term) reload(j *termJob) error {
	return t.retry(t.ctx, func(ctx context.Context) error {
		rows, err := t.ledger.Jobs(ctx)
		if err != nil {
			return err
		}
		j.row = findJob(rows, j.Name)
		return t.putBack(ctx, j)
	}, "job", j.Name)
}
