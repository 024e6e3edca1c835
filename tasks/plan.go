package tasks

import (
	"slices"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// A moment is what a plan depends on besides the job and its row.
type moment struct {
	now    time.Time
	live   time.Time      // ticks after it were due while this replica led, and nothing was paused
	busy   bool           // a run has not ended, and must not be overlapped
	ended  time.Time      // when the last run ended: ticks up to it that are undecided came while it ran
	owed   time.Time      // ticks up to it that are undecided are to run, one after the other
	pauses []ledger.Pause // that concern the job, also those that are over
}

// plan decides about the ticks of one job: a pure function. row is what the
// ledger has of the job, nil if it is new; spec is already ForJob. ok is false
// if there is nothing to decide now. owed is that of the next moment.
//
// A new job, and one whose spec has changed, starts at now. Every tick since
// the cursor is run or recorded as skipped, by the job's CatchUp and Overlap.
// The cursor never goes back: after the database's clock was set back the job
// waits until its cursor is passed.
func plan(job Job, spec Spec, row *ledger.Job, m moment) (d ledger.Decision, owed time.Time, ok bool) {
	now := m.now.UTC().Truncate(time.Microsecond) // what the ledger keeps
	d = ledger.Decision{Job: job.Name, Spec: spec.String(), To: now}
	switch {
	case row == nil:
		if job.AtOnce {
			d.Start = now
		}
		return d, owed, true
	case row.Spec != d.Spec:
		d.From = row.Cursor
		if d.To.Before(row.Cursor) {
			d.To = row.Cursor
		}
		return d, owed, true
	}
	d.From = row.Cursor
	first, last, n := spec.Span(row.Cursor, now)
	if n == 0 {
		return d, m.owed, false
	}
	if m.owed.After(row.Cursor) {
		if m.busy {
			return d, m.owed, false // at the end of that run
		}
		d.Start = spec.Next(row.Cursor)
		d.To = d.Start
		return d, m.owed, true
	}
	if m.busy && job.Overlap == OverlapQueue {
		return d, owed, false // at the end of that run
	}
	overlapped := job.Overlap != OverlapAllow && !first.After(m.ended)
	after, count := row.Cursor, job.CatchUp.count(last.After(m.live))
	switch {
	case m.busy:
		overlapped, m.ended, count = true, last, 0
	case overlapped && job.Overlap == OverlapSkip:
		after = m.ended
	case overlapped:
		count = min(count, 1)
	}
	d.To = last
	upto := last
	if run := spec.LastN(after, last, count); len(run) > 0 {
		d.Start = run[0]
		upto = d.Start.Add(-time.Microsecond)
		if len(run) > 1 {
			d.To, owed = d.Start, last
		}
	}
	if !overlapped {
		m.ended = time.Time{}
	}
	d.Skipped = skips(spec, row.Cursor, upto, m)
	return d, owed, true
}

// skips are the ticks of (after, upto] as ranges, each for one reason.
func skips(spec Spec, after, upto time.Time, m moment) (ranges []ledger.Skip) {
	cuts := []time.Time{upto}
	cut := func(t time.Time) {
		if t.After(after) && t.Before(upto) {
			cuts = append(cuts, t)
		}
	}
	cut(m.ended)
	for _, p := range m.pauses {
		cut(p.Since.Add(-time.Microsecond))
		cut(p.Resumed)
	}
	slices.SortFunc(cuts, time.Time.Compare)
	for _, to := range cuts {
		first, last, n := spec.Span(after, to)
		after = to
		if n == 0 {
			continue
		}
		reason := m.reason(last)
		if i := len(ranges) - 1; i >= 0 && ranges[i].Reason == reason {
			ranges[i].Last, ranges[i].Count = last, ranges[i].Count+n
			continue
		}
		ranges = append(ranges, ledger.Skip{First: first, Last: last, Count: n, Reason: reason})
	}
	return ranges
}

// reason is why a tick is not run.
func (m moment) reason(tick time.Time) string {
	for _, p := range m.pauses {
		if !tick.Before(p.Since) && (p.InForce() || !tick.After(p.Resumed)) {
			return ledger.Paused
		}
	}
	if !tick.After(m.ended) {
		return ledger.Overlap
	}
	return ledger.Missed
}
