package faults

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// A History is all that is known about one cluster: what its processes wrote
// down, what the harness did to them, and what the database says at the end.
type History struct {
	Beliefs []Belief
	Runs    []Run
	Logs    map[string][]Record // by process

	// Stops are the times for which a process was stopped: between the moment
	// before SIGSTOP and the moment after SIGCONT, or its death.
	Stops map[string][]Span

	// Forgot are the times in which the database was put back to an earlier
	// state, or lost: what it had recorded before is gone. They end when what
	// was decided before can have no more consequences.
	Forgot []Span

	Injections []Injection
	Exits      []Exit // that nobody had asked for

	// From the database, in the order in which they were committed; the ledger
	// and the terms of which a restored backup knows nothing are not there.
	Terms  []int64
	Ledger []LedgerRow
	Writes []int64 // the terms of the fenced writes
}

// A Span is a time from one moment to another.
type Span struct{ From, To time.Duration }

// A Run is one execution of a job, as its process wrote it down.
type Run struct {
	Process   string
	Term      int64
	Job       string
	Tick      int64
	Attempt   int
	Start     time.Duration
	Cancelled time.Duration // 0: was not
	End       time.Duration // 0: did not return; LastSign then is what counts
	LastSign  time.Duration // the last sign of life of its process
}

// String names the run as a message does.
func (r Run) String() string {
	return fmt.Sprintf("run of %s for tick %d.%d of term %d by %s (start %v, cancelled %v, end %v, last sign of the process %v)",
		r.Job, r.Tick, r.Attempt, r.Term, r.Process, r.Start, r.Cancelled, r.End, r.LastSign)
}

// active is until when the run could do something without knowing that it must
// not.
func (r Run) active() time.Duration {
	until := r.LastSign
	if r.End != 0 {
		until = r.End
	}
	if r.Cancelled != 0 {
		until = min(until, r.Cancelled)
	}
	return until
}

// String names the belief as a message does.
func (b Belief) String() string {
	return fmt.Sprintf("%s led in term %d from %v..%v to %v..%v", b.Process, b.Term, b.First.Before, b.First.After, b.Last.Before, b.Last.After)
}

// quietGrace is how late a quiet process may notice what it is not asked for,
// after its deadline, or after it was resumed.
const quietGrace = 100 * time.Millisecond

// certain is the time for which the belief is proven. Of a single check it is
// a span that ends before it begins, and overlaps only what lies around it.
func (b Belief) certain() Span {
	s := Span{b.First.After, b.Last.Before}
	if b.Quiet {
		s.To -= quietGrace
	}
	return s
}

func (s Span) overlaps(o Span) bool { return s.From < o.To && o.From < s.To }

// A LedgerRow is one row of scheduler_runs.
type LedgerRow struct {
	Job     string
	Tick    int64
	Attempt int
	Term    int64
	Started bool // false: skipped
}

// An Injection is one fault that was injected.
type Injection struct {
	Fault string
	From  time.Duration // when it began
	To    time.Duration // when it was over: from here on the bound counts
	Until time.Duration // when the harness went on
	Bound time.Duration // how long nobody may lead after To

	// Keeps is the term that must still lead when all is over; 0: any may.
	Keeps int64

	// Silent: nobody need lead afterwards (a corrupt database).
	Silent bool

	// Problem is what the fault itself found wrong, "" if nothing.
	Problem string

	idle  bool                        // no run need start: the database's clock went back
	after func(context.Context) error // done when all is judged
}

// An Exit is a process that ended although nobody had asked it to.
type Exit struct {
	Process string
	At      time.Duration
	Code    int
	Stderr  string // its tail
}

// runsOf makes runs of the records of one process.
func runsOf(process string, records []Record, beliefs []Belief) []Run {
	type key struct {
		job     string
		tick    int64
		attempt int
		term    int64
	}
	var (
		runs []Run
		last time.Duration
		open = map[key]int{}
	)
	for _, r := range records {
		last = max(last, r.At)
		k := key{r.Job, r.Tick, r.Attempt, r.Term}
		i, known := open[k]
		switch {
		case r.Kind == KindStart:
			open[k] = len(runs)
			runs = append(runs, Run{Process: process, Term: r.Term, Job: r.Job, Tick: r.Tick, Attempt: r.Attempt, Start: r.At})
		case known && r.Kind == KindCancelled:
			runs[i].Cancelled = r.At
		case known && r.Kind == KindEnd:
			runs[i].End = r.At
		}
	}
	for _, b := range beliefs {
		last = max(last, b.Last.Before)
	}
	for i := range runs {
		runs[i].LastSign = last
	}
	return runs
}

// led returns the times in which somebody may have led, as spans that neither
// touch nor overlap, in order.
func (h *History) led() []Span {
	var spans []Span
	for _, b := range h.Beliefs {
		spans = append(spans, Span{b.First.Before, b.Last.After})
	}
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	var merged []Span
	for _, s := range spans {
		if n := len(merged); n > 0 && s.From <= merged[n-1].To {
			merged[n-1].To = max(merged[n-1].To, s.To)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// Leaderless is the longest time without a leader after an injection was over
// and before the harness went on.
func (h *History) Leaderless(i Injection) time.Duration {
	worst, at := time.Duration(0), i.To
	for _, s := range h.led() {
		if s.To <= at {
			continue
		}
		if s.From >= i.Until {
			break
		}
		worst = max(worst, s.From-at)
		at = s.To
	}
	return max(worst, i.Until-at)
}

// excused takes from a span of a process's activity the times for which it was
// stopped, and a moment after: it must have had the time to notice. It returns
// whether anything after the given moment is left.
func (h *History) excused(process string, activity Span, after, grace time.Duration) bool {
	from := max(activity.From, after)
	for {
		moved := false
		for _, s := range h.Stops[process] {
			if s.From <= from && from < s.To+grace {
				from, moved = s.To+grace, true
			}
		}
		if !moved {
			return from >= activity.To
		}
	}
}
