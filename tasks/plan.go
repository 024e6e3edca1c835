package tasks

import (
	"slices"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// A moment is what a plan depends on besides the job and its row.
type moment struct {
	now          time.Time
	leadingSince time.Time // ticks after it were due while this replica led and nothing was paused
	busy         bool      // a run has not ended, and must not be overlapped
	overlapsAt   time.Time // while it is busy, the ticks that it overlaps are recorded from then on
	// The job was busy the last time in (busyFrom, busyUntil]: undecided ticks in
	// there overlap. While it is busy, busyUntil is that of the time before.
	busyFrom, busyUntil time.Time
	catchUpTo           time.Time      // undecided ticks up to it run, one after the other
	pauses              []ledger.Pause // that concern the job, also those that are over
}

// plan decides about the ticks of one job: a pure function. row is what the
// ledger has of the job, nil if it is new; spec is already ForJob. ok is false
// if there is nothing to decide now. catchUpTo is that of the next moment.
//
// A new job, and one whose spec has changed, starts at now. Every tick since
// the cursor is run or recorded as skipped, by the job's CatchUp and Overlap.
// The cursor never goes back: after the database's clock was set back the job
// waits until its cursor is passed, or until another term begins (see putBack).
// A cursor that cannot be read counts as now.
func plan(job Job, spec Spec, row *ledger.Job,
	m moment) (d ledger.Decision, catchUpTo time.Time, ok bool) {
	now := m.now.UTC().Truncate(time.Microsecond) // what the ledger keeps
	d = ledger.Decision{Job: job.Name, Spec: spec.String(), To: now}
	if row == nil {
		if job.AtOnce {
			d.Start = now
		}
		return d, catchUpTo, true
	}
	d.From, d.RawFrom = row.Cursor, row.RawCursor
	if row.Cursor.IsZero() || row.Spec != d.Spec {
		d.To = later(now, row.Cursor)
		return d, catchUpTo, true
	}
	first, last, n := spec.Span(row.Cursor, now)
	if n == 0 {
		return d, m.catchUpTo, false
	}
	if job.Overlap == OverlapAllow {
		m.busyFrom, m.busyUntil = time.Time{}, time.Time{}
	}
	if m.busy {
		if now.Before(m.overlapsAt) || job.Overlap != OverlapSkip ||
			m.catchUpTo.After(row.Cursor) ||
			!first.After(m.busyFrom) {
			return d, m.catchUpTo, false // at the end of that run
		}
		m.busyUntil = last
		d.To, d.Skipped = last, skips(spec, row.Cursor, last, m)
		return d, catchUpTo, true
	}
	if m.catchUpTo.After(row.Cursor) {
		d.Start = spec.Next(row.Cursor)
		d.To = d.Start
		return d, m.catchUpTo, true
	}
	run, upto := runnable(job, spec, row.Cursor, last, m)
	d.To = upto
	if len(run) > 0 {
		d.Start = run[0]
		if len(run) > 1 {
			d.To, catchUpTo = d.Start, run[len(run)-1]
		}
		d.Skipped = skips(spec, row.Cursor, d.Start.Add(-time.Microsecond), m)
	}
	d.Skipped = append(d.Skipped, skips(spec, later(d.From, d.Start), d.To, m)...)
	return d, catchUpTo, true
}

// clockSlack is how far the clocks by which two leaders know the database's time
// may differ in ordinary use: what is ahead by no more is not too far ahead.
const clockSlack = time.Second

// tooFarAhead reports whether a cursor stands further ahead than the job's next
// tick: the job would wait for a time that nobody knows to come.
func tooFarAhead(spec Spec, row *ledger.Job, now time.Time) bool {
	now = now.Add(clockSlack)
	return row != nil && row.Cursor.After(later(now, spec.Next(now)))
}

// runnable are those ticks of (cursor, upto] that are to run, oldest first.
// What comes after upto is decided when they have run.
func runnable(job Job, spec Spec, cursor, last time.Time,
	m moment) (run []time.Time, upto time.Time) {
	n := job.CatchUp.count()
	_, _, overlapped := spec.Span(later(cursor, m.busyFrom), m.busyUntil)
	if overlapped > 0 && job.Overlap == OverlapQueue {
		n = 1
	}
	run, upto = spec.LastN(cursor, last, n), last
	if overlapped > 0 && job.Overlap == OverlapSkip {
		run = spec.LastN(later(cursor, m.busyUntil), last, n)
		if before := spec.LastN(cursor, m.busyFrom, n-len(run)); len(before) > 0 {
			if len(run) > 0 {
				upto = spec.LastN(cursor, m.busyUntil, 1)[0]
			}
			run = before
		}
	}
	if job.CatchUp == Skip && len(run) > 0 && !run[0].After(m.leadingSince) {
		run = nil
	}
	return run, upto
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// skips are the ticks of (after, upto] as ranges, each for one reason.
func skips(spec Spec, after, upto time.Time, m moment) (ranges []ledger.Skip) {
	cuts := []time.Time{upto}
	cut := func(t time.Time) {
		if t.After(after) && t.Before(upto) {
			cuts = append(cuts, t)
		}
	}
	cut(m.busyFrom)
	cut(m.busyUntil)
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
	if tick.After(m.busyFrom) && !tick.After(m.busyUntil) {
		return ledger.Overlap
	}
	return ledger.Missed
}
