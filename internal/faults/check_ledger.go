package faults

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/schedlock/tasks"
)

// runsApart: the start of a run proves that its term had begun. Runs of earlier
// terms must by then have returned, or have been told to. A process that was
// stopped could not be told; it must be, soon after it was resumed.
func runsApart(h *History) (vs []Violation) {
	byTerm := sortedBy(h.Runs, func(r Run) int64 { return -r.Term })
	var later, sameTerm *Run // the earliest start of all higher terms; and of this one
	for i := range byTerm {
		r := &byTerm[i]
		if i > 0 && byTerm[i-1].Term != r.Term && sameTerm != nil {
			if later == nil || sameTerm.Start < later.Start {
				later = sameTerm
			}
			sameTerm = nil
		}
		if sameTerm == nil || r.Start < sameTerm.Start {
			sameTerm = r
		}
		if later == nil || r.active() <= later.Start {
			continue
		}
		if !h.excused(r.Process, Span{r.Start, r.active()}, later.Start, resumeGrace) {
			vs = append(vs, violation(RuleRunsApart, later.Start,
				"%v still went on at %v; %v", r, later.Start, later))
		}
	}
	return vs
}

func runOnce(h *History) (vs []Violation) {
	seen := map[key]Run{}
	for _, r := range h.runsByStart() {
		k := key{r.Job, r.Tick, r.Attempt}
		if first, twice := seen[k]; twice && !h.forgotBetween(first.Start, r.Start) {
			vs = append(vs, violation(RuleRunOnce, r.Start, "%v; %v", first, r))
		}
		seen[k] = r
	}
	return vs
}

func (h *History) runsByStart() []Run {
	return sortedBy(h.Runs, func(r Run) time.Duration { return r.Start })
}

func (h *History) forgotBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(h.Forgot, func(s Span) bool { return s.touches(from, to) })
}

// A key names an attempt of a run in maps; Attempt is 0 where the run itself is meant.
type key struct {
	Job     string
	Tick    int64
	Attempt int
}

// mostAttempts is how often a run of the test program's jobs is started, whether
// it fails or is cut short.
const mostAttempts = 3 // see tasks.Retry

// attemptsRise: as runsApart, for the attempts of one run. An attempt that is
// missing did not come so far as to write its start down.
func attemptsRise(h *History) (vs []Violation) {
	last := map[key]Run{}
	for _, r := range h.runsByStart() {
		k := key{r.Job, r.Tick, 0}
		before, known := last[k]
		last[k] = r
		if r.Attempt > mostAttempts {
			vs = append(vs, violation(RuleAttempts, r.Start,
				"more than %d attempts: %v", mostAttempts, r))
		}
		switch {
		case !known || r.Attempt == before.Attempt || h.forgotBetween(before.Start, r.Start):
			// The second is runOnce's.
		case r.Attempt < before.Attempt || r.Term < before.Term:
			if h.excused(r.Process, Span{r.Start, max(r.active(), r.Start+1)}, r.Start,
				resumeGrace) {
				continue // it was stopped just before it wrote down its start
			}
			vs = append(vs, violation(RuleAttempts, r.Start, "%v; later %v", before, r))
		case before.active() > r.Start &&
			!h.excused(before.Process, Span{before.Start, before.active()}, r.Start, resumeGrace):
			vs = append(vs, violation(RuleAttempts, r.Start,
				"%v still went on at %v; %v", before, r.Start, r))
		}
	}
	return vs
}

func atMostOnce(h *History) (vs []Violation) {
	for _, r := range h.Runs {
		if r.Attempt != 1 && slices.Contains(h.AtMostOnce, r.Job) {
			vs = append(vs, violation(RuleAtMostOnce, r.Start, "%v", r))
		}
	}
	for _, row := range h.Ledger {
		if (row.Attempt > 1 || row.Owed) && slices.Contains(h.AtMostOnce, row.Job) {
			vs = append(vs, violation(RuleAtMostOnce, 0, "in the ledger: %+v", row))
		}
	}
	return vs
}

func retried(h *History) (vs []Violation) {
	for _, row := range h.Ledger {
		if row.Cut && !row.Owed && row.Attempt < mostAttempts &&
			!slices.Contains(h.AtMostOnce, row.Job) {
			vs = append(vs, violation(RuleRetried, 0, "abandoned for good: %+v", row))
		}
	}
	return vs
}

// ledgerOrder: a row keeps its place, and gets the term of its latest attempt.
func ledgerOrder(h *History) (vs []Violation) {
	highest := int64(math.MinInt64)
	for _, row := range h.Ledger {
		if row.Term < highest {
			vs = append(vs, violation(RuleLedgerOrder, 0,
				"term %d wrote %s/%d into the ledger after term %d had written", row.Term, row.Job,
				row.Tick, highest))
		}
		if row.Attempt <= 1 {
			highest = max(highest, row.Term)
		}
	}
	return vs
}

// forgotAt is when the database last forgot something.
func (h *History) forgotAt() (at time.Duration) {
	for _, s := range h.Forgot {
		at = max(at, s.To)
	}
	return at
}

// ledgerTrue: what happened since the database last forgot must be in it. Of a
// run it has the latest attempt, which is this one or a later one.
func ledgerTrue(h *History) (vs []Violation) {
	since := h.forgotAt()
	rows := map[key]LedgerRow{}
	for _, row := range h.Ledger {
		if row.Started {
			rows[key{row.Job, row.Tick, 0}] = row
		}
	}
	if h.Ledger != nil {
		for _, r := range h.Runs {
			row := rows[key{r.Job, r.Tick, 0}]
			same := row.Attempt == r.Attempt && row.Term == r.Term
			later := row.Attempt > r.Attempt && row.Term >= r.Term
			if r.Start > since && !same && !later {
				vs = append(vs, violation(RuleLedgerTrue, r.Start, "not in scheduler_runs: %v", r))
			}
		}
	}
	if h.Terms != nil {
		for _, b := range h.Beliefs {
			if b.First.Before > since && !slices.Contains(h.Terms, b.Term) {
				vs = append(vs, violation(RuleLedgerTrue,
					b.First.Before, "not in scheduler_terms: %v", b))
			}
		}
	}
	return vs
}

// noTickLost: the rows of a job, runs and skipped ranges, follow each other on
// its grid without a gap, and the cursor stands behind the last of them. Runs
// that were asked for are no ticks, but one of the very moment of a tick takes its
// place. Where the cursors were deleted jobs start
// anew, at any tick; if a clock was set they may then come to ones that have a
// row from before. A cursor that stands ahead since a clock was set is put back:
// then ticks may be in a range and run as well, and a range whose first tick has
// a row begins behind it (ledger.Skip.Places), but up to the cursor there is no
// gap all the same.
func noTickLost(h *History) (vs []Violation) {
	clockSet := h.ClockSet || slices.ContainsFunc(h.Injections, func(in Injection) bool {
		return strings.Contains(in.Fault, "clock")
	})
	at := func(micro int64) time.Time { return time.UnixMicro(micro).UTC() }
	for _, job := range h.Jobs {
		spec := tasks.ParseSpec(job.Spec)
		lost := func(format string, args ...any) {
			vs = append(vs, violation(RuleNoTickLost, 0,
				"%s, %s: %s", job.Name, job.Spec, fmt.Sprintf(format, args...)))
		}
		parts := make([][]LedgerRow, len(h.Anew)+1)
		part, asked := map[int64]int{}, map[int64]bool{}
		for _, row := range h.Ledger {
			if row.Job == job.Name && row.AskedBy != "" {
				asked[row.Tick] = spec.Next(at(row.Tick - 1)).Equal(at(row.Tick))
			}
			if row.Job == job.Name && (row.AskedBy == "" || asked[row.Tick]) {
				i, _ := slices.BinarySearchFunc(h.Anew, row.ID, func(a Anew, id int64) int {
					return cmp.Compare(a.Newest, id)
				})
				parts[i], part[row.Tick] = append(parts[i], row), i
			}
		}
		for i, rows := range parts {
			cursor := job.Cursor
			if i < len(h.Anew) {
				cursor = h.Anew[i].cursor(job.Name)
			}
			rows = sortedBy(rows, func(r LedgerRow) int64 { return r.Tick })
			var covered time.Time
			for n, row := range rows {
				row.Until, row.Count = max(row.Until, row.Tick), max(row.Count, 1)
				first, last, count := spec.Span(at(row.Tick-1), at(row.Until))
				begins := first.Equal(at(row.Tick))
				for n := int64(1); row.Count > 1 && !begins && n < 100; n++ {
					_, known := part[row.Tick-n]
					begins = known && (clockSet || asked[row.Tick-n])
				}
				if !begins || !last.Equal(at(row.Until)) || count != row.Count {
					lost("%+v has the ticks from %v to %v, %d", row, first, last, count)
				}
				if covered.Before(last) {
					covered = last
				}
				next := spec.Next(last)
				if clockSet {
					next = spec.Next(covered)
				}
				for before, had := part[next.UnixMicro()]; had && before < i; {
					next = spec.Next(next)
					before, had = part[next.UnixMicro()]
				}
				switch {
				case clockSet:
					if n+1 < len(rows) && next.Before(at(rows[n+1].Tick)) &&
						!next.After(at(cursor)) {
						lost("%v follows on %+v, not %+v, in part %d of %+v", next, row, rows[n+1],
							i, h.Anew)
					}
				case n+1 < len(rows) && !next.Equal(spec.Next(at(rows[n+1].Tick-1))):
					lost("%v follows on %+v, not %+v", next, row, rows[n+1])
				case n+1 == len(rows) && i+1 == len(parts) &&
					(last.After(at(job.Cursor)) || !next.After(at(job.Cursor))):
					lost("the cursor is %v after %+v", at(job.Cursor), row)
				}
			}
		}
	}
	return vs
}

// cursor is that of a job as it was deleted, 0 if there was none.
func (a Anew) cursor(job string) int64 {
	for _, j := range a.Jobs {
		if j.Name == job {
			return j.Cursor
		}
	}
	return 0
}

// requests: what was granted since the database last forgot is in the ledger
// once, or waits; and no order made two, also if its answer was lost.
func requests(h *History) (vs []Violation) {
	if h.Ledger == nil {
		return nil
	}
	type order struct{ process, number string }
	made := map[order][]LedgerRow{}
	for _, row := range h.Ledger {
		if row.AskedBy == "" {
			continue
		}
		o := order{row.AskedBy, row.AskedFor}
		made[o] = append(made[o], row)
		if !row.Started && row.Reason == "" {
			vs = append(vs, violation(RuleRequests, 0, "skipped without a reason: %+v", row))
		}
	}
	waiting := map[order]bool{}
	for _, a := range h.Pending {
		o := order{a.Process, strconv.Itoa(a.Number)}
		waiting[o] = true
		made[o] = append(made[o], LedgerRow{Job: a.Job, Tick: a.Tick})
	}
	for _, a := range h.asks() {
		o := order{a.Process, strconv.Itoa(a.Number)}
		rows := made[o]
		switch {
		case len(rows) > 1:
			vs = append(vs, violation(RuleRequests, a.Asked,
				"%v is there %d times: %+v", a, len(rows), rows))
		case a.Granted == 0 || a.Asked <= h.forgotAt():
		case len(rows) == 0:
			vs = append(vs, violation(RuleRequests, a.Asked, "lost: %v", a))
		case rows[0].Tick != a.Tick || rows[0].Job != a.Job:
			vs = append(vs, violation(RuleRequests, a.Asked, "%v became %+v", a, rows[0]))
		case waiting[o]:
			for _, b := range h.Beliefs {
				if b.Last.Before > a.Granted+answerLimit {
					vs = append(vs, violation(RuleRequests, a.Asked, "%v waits, although %v", a, b))
					break
				}
			}
		}
	}
	return vs
}

// paused: the database's order counts, that is started_at and the time of the
// pause: a start that was committed before the pause may be written down only
// after it. Where started_at is not known any more, or the clocks of two
// processes differ because the harness has set one, what was written down
// counts, with a moment for the process to come so far. In a fault that
// holds up answers the process asks again, and learns then what was committed.
func paused(h *History, stall func(Span) time.Duration) (vs []Violation) {
	started := map[key]int64{}
	for _, row := range slices.Concat(h.Replaced, h.Ledger) {
		started[key{row.Job, row.Tick, row.Attempt}] = row.StartedAt
	}
	const clocksDiffer = 30 * time.Minute
	for _, p := range h.pauses() {
		for _, r := range h.Runs {
			if r.Start <= p.Asked || r.Start >= p.To {
				continue
			}
			at := started[key{r.Job, r.Tick, r.Attempt}]
			after := time.Duration(at-p.Since) * time.Microsecond
			if at != 0 && (after-(r.Start-p.From)).Abs() < clocksDiffer {
				if after <= 0 {
					continue
				}
			} else if grace := pauseGrace + 2*stall(Span{p.From, r.Start}); r.Start <= p.From ||
				h.muted(Span{p.From, r.Start}) ||
				h.excused(r.Process, Span{p.From, r.Start}, p.From+grace, grace) {
				continue
			}
			vs = append(vs, violation(RulePauses, r.Start,
				"%s had paused everything at %v, nobody resumed before %v; %v", p.Process, p.From,
				p.To, r))
		}
	}
	return vs
}
