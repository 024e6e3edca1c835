package tasks

import (
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// plan decides about the ticks of one job: a pure function. row is what the
// ledger has of the job, nil if it is new; spec is already ForJob; running
// says that an earlier run has not ended. ok is false if there is nothing to
// decide.
//
// A new job, and one whose spec has changed, starts at now. Of the ticks since
// the cursor the newest runs and those before it are recorded as missed, in
// one row; while a run is under way all are recorded as overlapping it. The
// cursor never goes back: after the database's clock was set back the job
// waits until its cursor is passed.
func plan(job Job, spec Spec, row *ledger.Job, now time.Time, running bool) (d ledger.Decision, ok bool) {
	now = now.UTC().Truncate(time.Microsecond) // what the ledger keeps
	d = ledger.Decision{Job: job.Name, Spec: spec.String(), To: now}
	switch {
	case row == nil:
		if job.AtOnce {
			d.Start = now
		}
		return d, true
	case row.Spec != d.Spec:
		d.From = row.Cursor
		if d.To.Before(row.Cursor) {
			d.To = row.Cursor
		}
		return d, true
	}
	d.From = row.Cursor
	first, last, n := spec.Span(row.Cursor, now)
	if n == 0 {
		return d, false
	}
	d.To = last
	switch {
	case running:
		d.Skipped = []ledger.Skip{{First: first, Last: last, Count: n, Reason: ledger.Overlap}}
	case n == 1:
		d.Start = last
	default:
		missedUpTo := spec.LastN(row.Cursor, last.Add(-time.Microsecond), 1)[0]
		d.Start = last
		d.Skipped = []ledger.Skip{{First: first, Last: missedUpTo, Count: n - 1, Reason: ledger.Missed}}
	}
	return d, true
}
