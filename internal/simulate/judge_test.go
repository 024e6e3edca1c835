package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/schedlock/internal/faults"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// read takes from the database what the rules ask of it.
func (w *world) read() error {
	ctx := context.Background()
	runs, err := w.db.Runs(ctx, "", 1_000_000)
	jobs, jobsErr := w.db.Jobs(ctx)
	terms, termsErr := w.db.Terms(ctx, 1_000_000)
	pending, pendingErr := w.db.Pending(ctx)
	h := &w.history
	h.Ledger, h.Replaced, h.Terms = []faults.LedgerRow{}, nil, []int64{}
	slices.SortFunc(runs, func(a, b ledger.Run) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range runs {
		row := faults.LedgerRow{ID: r.ID, Job: r.Job, Tick: r.ScheduledAt.UnixMicro(),
			Count: r.Count, Attempt: r.Attempt, Term: r.Term, Started: r.Status != ledger.Skipped,
			Cut: r.Status == ledger.Abandoned, Owed: !r.RetryAt.IsZero(), AskedBy: r.RequestedBy,
			AskedFor: r.RequestReason}
		if !r.Until.IsZero() {
			row.Until = r.Until.UnixMicro()
		}
		if row.Started {
			row.StartedAt = w.commits[attemptOf(r)].Microseconds()
			before := row
			for r := r; r.Attempt > 1; {
				r.Attempt--
				before.Attempt, before.StartedAt = r.Attempt, w.commits[attemptOf(r)].Microseconds()
				h.Replaced = append(h.Replaced, before)
			}
		} else {
			row.Reason = r.Error
		}
		h.Ledger = append(h.Ledger, row)
	}
	w.rows = runs
	for _, j := range jobs {
		h.Jobs = append(h.Jobs, faults.JobRow{Name: j.Name, Spec: j.Spec,
			Cursor: j.Cursor.UnixMicro()})
	}
	w.peace = len(terms) > 0 && terms[0].EndReason != driver.EndLost
	for _, t := range terms {
		if t.EndReason == driver.EndSessionEnded {
			w.ends++
		}
		h.Terms = append(h.Terms, t.Term)
	}
	for _, r := range pending.Requests {
		n, _ := strconv.Atoi(r.Reason)
		h.Pending = append(h.Pending, faults.Ask{Process: r.By, Number: n, Job: r.Job,
			Tick: r.At.UnixMicro()})
	}
	return errors.Join(err, jobsErr, termsErr, pendingErr)
}

// A verdict is what was wrong in a history, and what happened in it.
type verdict struct {
	plan       plan
	violations []faults.Violation
	trace      []string
	leaders    []string // who led, and from when to when
	starts     []string // of first attempts, in order of time
	tally      tally
}

// A tally counts what has happened.
type tally struct {
	elections, losses, sessionsEnded, restored, runs, retries, skipped, requests, writes int
}

func (a tally) plus(b tally) tally {
	return tally{a.elections + b.elections, a.losses + b.losses, a.sessionsEnded + b.sessionsEnded,
		a.restored + b.restored, a.runs + b.runs, a.retries + b.retries, a.skipped + b.skipped,
		a.requests + b.requests, a.writes + b.writes}
}

// String is what was wrong, a line each.
func (v verdict) String() string {
	var b strings.Builder
	for _, violation := range v.violations {
		fmt.Fprintln(&b, violation)
	}
	return b.String()
}

// judge asks all rules.
func (w *world) judge() verdict {
	h := &w.history
	if err := w.read(); err != nil {
		w.violate("the database answers", "%v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.ended
	died := map[string]time.Duration{}
	for _, p := range w.all {
		died[p.name] = p.died
		for _, b := range p.beliefs {
			if b.Last == (faults.Sample{}) {
				at := max(p.believed, b.First.After)
				if p.died == 0 {
					at = last
				}
				b.Last = faults.Sample{Before: at, After: at}
			}
			h.Beliefs = append(h.Beliefs, b)
		}
	}
	for i := range h.Runs {
		r := &h.Runs[i]
		if r.LastSign = died[r.Process]; r.LastSign == 0 {
			r.LastSign = last
		}
	}
	h.Logs = map[string][]faults.Record{operator: w.orders}
	h.AtMostOnce = []string{jobOnce}
	for _, f := range w.plan.Faults {
		h.ClockSet = h.ClockSet || f.Kind == clock
		h.Injections = append(h.Injections, faults.Injection{Fault: string(f.Kind), Silent: true,
			From: f.At + origin, To: f.At + f.For + statementLimit + origin, Until: last,
			Muted: f.mutes()})
	}
	h.Stops = w.stops()
	vs := slices.Concat(w.own, faults.Check(h, 0, nil), w.endings())
	v := verdict{plan: w.plan, violations: vs, trace: w.trace}
	v.tally = tally{elections: len(h.Beliefs), losses: w.losses, runs: len(h.Runs),
		sessionsEnded: w.ends, restored: len(h.Forgot), writes: len(h.Writes)}
	for _, row := range h.Ledger {
		switch {
		case row.AskedBy != "":
			v.tally.requests++
		case !row.Started:
			v.tally.skipped++
		}
	}
	for _, b := range h.Beliefs {
		v.leaders = append(v.leaders, fmt.Sprint(b.First, b.Last, b.Process))
	}
	for _, r := range h.Runs {
		if r.Attempt > 1 {
			v.tally.retries++
			continue // it waits for a random time
		}
		v.starts = append(v.starts, fmt.Sprintf("%16v %s %d %s", r.Start, r.Job, r.Tick, r.Process))
	}
	slices.Sort(v.starts)
	return v
}

// stops are the times for which incarnations stood still that watch a session: see stood.
func (w *world) stops() map[string][]faults.Span {
	stops := map[string][]faults.Span{}
	for i, f := range w.plan.Faults {
		for _, p := range w.all {
			if f.stops() && w.hits(i, p.replica) &&
				w.plan.Members[p.replica].Grace > 0 {
				stops[p.name] = append(stops[p.name],
					faults.Span{From: f.At + origin, To: f.At + f.For + origin})
			}
		}
	}
	return stops
}

// endings: after a leader that has released its lease no attempt is in progress, but one of which
// it did not hear until its drain reached the limit, and what is done was carried out, by whom the
// ledger says.
func (w *world) endings() (vs []faults.Violation) {
	carriedOut := map[string]bool{}
	for _, r := range w.history.Runs {
		carriedOut[fmt.Sprint(r.Job, r.Tick, r.Attempt, r.Process)] = true
	}
	for _, r := range w.rows {
		_, unheard := w.commits[attemptOf(r)+" unheard"]
		switch {
		case r.Status == ledger.InProgress && w.peace && !unheard:
			vs = append(vs, faults.Violation{Rule: "runs end", At: w.ended,
				Text: fmt.Sprintf("in progress: %+v", r)})
		case r.Status == ledger.Done && !carriedOut[fmt.Sprint(r.Job, r.ScheduledAt.UnixMicro(),
			r.Attempt, r.Hostname)]:
			vs = append(vs, faults.Violation{Rule: "done means carried out", At: w.ended,
				Text: fmt.Sprintf("%+v", r)})
		}
	}
	return vs
}
