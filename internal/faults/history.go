package faults

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"example.com/schedlock/internal/linear"
)

// A History is all that is known about one cluster: what its processes wrote
// down, what the harness did to them, and what the database says at the end.
type History struct {
	Beliefs []Belief
	Runs    []Run
	Logs    map[string][]Record // by process

	// Stops are the times for which a process was stopped: between the moment
	// before SIGSTOP and the moment after SIGCONT, or its death. Those for which a
	// starved machine gave it no processor are among them.
	Stops map[string][]Span

	// Forgot are the times in which the database was put back to an earlier
	// state, or lost: what it had recorded before is gone. They end when what
	// was decided before can have no more consequences.
	Forgot []Span

	// Promoted are those of them in which a replica was promoted: named locks
	// must bear that.
	Promoted []Span

	// Statements are those on the lock row. Rewritten are the times in which
	// somebody else wrote into it.
	Statements []linear.Op
	Rewritten  []Span

	Undecided []string // what the checks could not decide, neither way

	Injections []Injection
	ClockSet   bool   // by a fault, also by one that was cut short
	Exits      []Exit // that nobody had asked for

	// From the database, in the order in which they were committed; the ledger
	// and the terms of which a restored backup knows nothing are not there.
	Terms   []int64
	Ledger  []LedgerRow
	Writes  []Write
	Jobs    []JobRow
	Pending []Ask // the requests that nobody has answered; only Process, Number, Job and Tick

	// Saw is what fenced writes have found, where the database wrote that down.
	Saw []Saw

	// Replaced are attempts that later ones have replaced in the Ledger.
	Replaced []LedgerRow

	// Anew are the moments at which the cursors were deleted, the first one first.
	Anew []Anew

	AtMostOnce []string // the jobs that must not be repeated

	// What was done with named locks and a queue, and what the database has of
	// it; Tasks is nil if it was not read.
	LockLogs map[string][]Record // by process
	Holds    []Hold
	Added    []Added
	Works    []Work
	Tasks    []TaskRow

	// Stepped are the times in which a clock was set that named locks and
	// queues are judged by.
	Stepped []Span
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
	return fmt.Sprintf("run of %s for tick %d.%d of term %d by %s (start %v, cancelled %v, "+
		"end %v, last sign of the process %v)",
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
	return fmt.Sprintf("%s led in term %d from %v..%v to %v..%v", b.Process, b.Term, b.First.Before,
		b.First.After, b.Last.Before, b.Last.After)
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

// touches reports whether a moment of the span lies from one to another.
func (s Span) touches(from, to time.Duration) bool { return from <= s.To && s.From <= to }

// sortedBy returns a sorted copy of a list, in which equal ones stay as they are.
func sortedBy[T any, K cmp.Ordered](list []T, key func(T) K) []T {
	return slices.SortedStableFunc(slices.Values(list), func(a, b T) int {
		return cmp.Compare(key(a), key(b))
	})
}

// A LedgerRow is one row of scheduler_runs.
type LedgerRow struct {
	ID        int64
	Job       string
	Tick      int64
	Until     int64 // of a range of ticks the last one, else 0
	Count     int64 // of a range of ticks how many, else 0
	Attempt   int
	Term      int64
	Started   bool  // false: skipped
	StartedAt int64 // of the latest attempt, by the database's clock; 0: skipped
	Cut       bool  // abandoned
	Owed      bool  // is tried again
	Reason    string

	// Of a run that somebody asked for.
	AskedBy  string // the process
	AskedFor string // the number of its order
}

// A Write is a fenced write of the scheduler, or with a name of a named lock.
type Write struct {
	Name string
	Term int64
}

// A Saw is a fenced write of the scheduler, or with a name of a named lock, which found so
// many writes of earlier terms. No more may come after it.
type Saw struct {
	Name    string
	Term    int64
	Earlier int
}

// An Anew is a moment at which the cursors were deleted: jobs start anew then.
type Anew struct {
	Newest int64    // row of the ledger, by id
	Jobs   []JobRow // as they were deleted
}

// A JobRow is one row of scheduler_jobs.
type JobRow struct {
	Name   string
	Spec   string
	Cursor int64
}

// An Ask is a request for a run, as the process that made it wrote it down.
type Ask struct {
	Process string
	Number  int
	Job     string
	Asked   time.Duration // before it was made
	Granted time.Duration // 0: with an error, or never
	Tick    int64         // the time of the request
}

// String names the request as a message does.
func (a Ask) String() string {
	return fmt.Sprintf("request %d of %s for %s at %d (asked %v, granted %v)", a.Number, a.Process,
		a.Job, a.Tick, a.Asked, a.Granted)
}

// A Pause is a pause of all jobs, as the process that made it wrote it down.
type Pause struct {
	Process string
	Since   int64 // by the database's clock
	Asked   time.Duration
	Span    // from when it was in force until somebody was about to end it
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

	// Muted: answers of the database were lost or late, of what it had committed.
	Muted bool

	// Early is who took over before the TTL, or the grace, had passed; "": nobody.
	Early string

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
			runs = append(runs, Run{Process: process, Term: r.Term,
				Job: r.Job, Tick: r.Tick, Attempt: r.Attempt, Start: r.At})
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

// addLocks reads what a process wrote down of named locks and tasks.
func (h *History) addLocks(process, path string) error {
	records, err := readRecords(path)
	if err != nil || records == nil {
		return err
	}
	if h.LockLogs == nil {
		h.LockLogs = map[string][]Record{}
	}
	h.LockLogs[process] = records
	h.Holds = append(h.Holds, holdsOf(process, records)...)
	h.Added = append(h.Added, addedOf(records)...)
	h.Works = append(h.Works, worksOf(process, records)...)
	return nil
}

// asks returns the requests of all processes.
func (h *History) asks() (asks []Ask) {
	for process, records := range h.Logs {
		open := map[int]int{}
		for _, r := range records {
			switch i, known := open[r.Attempt]; {
			case r.Kind == KindAsking:
				open[r.Attempt] = len(asks)
				asks = append(asks, Ask{Process: process,
					Number: r.Attempt, Job: r.Job, Asked: r.At})
			case known && r.Kind == KindAsked:
				asks[i].Granted, asks[i].Tick = r.At, r.Tick
			}
		}
	}
	return sortedBy(asks, func(a Ask) time.Duration { return a.Asked })
}

// lateOrder is how long an order may be under way whose answer nobody got.
const lateOrder = 20 * time.Second

// pauses returns the pauses that are certain: not those that an order to
// resume, given before, may have ended; nor those that the database may have
// forgotten.
func (h *History) pauses() (pauses []Pause) {
	var resumes []Span // from before an order to resume until it was carried out
	for process, records := range h.Logs {
		pausing, resuming := map[int]time.Duration{}, map[int]int{}
		for _, r := range records {
			switch r.Kind {
			case KindPausing:
				pausing[r.Attempt] = r.At
			case KindPaused:
				pauses = append(pauses, Pause{Process: process,
					Since: r.Tick, Asked: pausing[r.Attempt], Span: Span{r.At, math.MaxInt64}})
			case KindResuming:
				resuming[r.Attempt] = len(resumes)
				resumes = append(resumes, Span{r.At, r.At + lateOrder})
			case KindResumed:
				resumes[resuming[r.Attempt]].To = r.At
			}
		}
	}
	certain := pauses[:0]
	for _, p := range pauses {
		doubt := false
		for _, r := range resumes {
			if r.From >= p.From {
				p.To = min(p.To, r.From)
			} else if r.To > p.Asked {
				doubt = true
			}
		}
		if !doubt && !h.forgotBetween(p.Asked, p.To) {
			certain = append(certain, p)
		}
	}
	return certain
}

// led returns the times in which somebody may have led, as spans that neither
// touch nor overlap, in order.
func (h *History) led() []Span {
	var merged []Span
	for _, b := range sortedBy(h.Beliefs, func(b Belief) time.Duration { return b.First.Before }) {
		s := Span{b.First.Before, b.Last.After}
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

// answerAgain is how long after a fault an answer may come that it had held up.
const answerAgain = 2 * time.Second

// muted says whether the answers of the database were held up all through a
// span, but for what came after the end of the fault.
func (h *History) muted(s Span) bool {
	return slices.ContainsFunc(h.Injections, func(in Injection) bool {
		return in.Muted && in.From <= s.From && s.To <= in.To+answerAgain
	})
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

// starved returns the times for which a process had no processor, by its own records.
func starved(records []Record) (spans []Span) {
	for _, r := range records {
		if r.Kind == KindStarved {
			spans = append(spans, Span{time.Duration(r.Tick) * time.Microsecond, r.At})
		}
	}
	return spans
}
