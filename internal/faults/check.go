package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Violation is a rule that a history breaks, with the records that show it.
type Violation struct {
	Rule  string
	Fault string // the last one that was injected before; "" if there was none
	At    time.Duration
	Text  string
}

// String is one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s, at %v, after %q: %s", v.Rule, v.At, v.Fault, v.Text)
}

// The rules.
const (
	RuleOneLeader = "one leader" // the times for which processes led do not overlap
	// who leads later has the higher term, and no term is had twice
	RuleTermsRise = "terms rise"
	// a run is over, or knows that it must end, when one of a later term starts
	RuleRunsApart = "runs apart"
	RuleRunOnce   = "no run twice" // no (job, tick, attempt) starts twice
	// an attempt starts when the one before is over, or knows that it must end
	RuleAttempts   = "attempts rise"
	RuleAtMostOnce = "at most once" // a job that must not be repeated is not
	// what was abandoned is owed another attempt, if its policy has one left
	RuleRetried     = "cut runs are retried"
	RuleLedgerOrder = "ledger order" // nobody starts a run when a later term has
	// every run that started is in the ledger, with its term; every term in the history
	RuleLedgerTrue = "ledger true"
	// the ledger has every tick up to the cursor, once, run or skipped
	RuleNoTickLost = "no tick lost"
	// every request is in the ledger once, or still waits for a leader
	RuleRequests = "requests"
	RulePauses   = "pauses" // nothing starts while everything is paused
	// no fenced write of a term is committed after one of a later term
	RuleFence = "fence"
	// what the statements on the lock row were answered, one row could have answered, in
	// some order, by the steps of the model
	RuleOneRow   = "one row"
	RuleSomebody = "somebody leads"    // within the bound of the fault
	RuleKeeps    = "same leader"       // where the fault must not change it
	RuleLives    = "the process lives" // nobody exits unasked
	// nobody takes over before the TTL, or the grace, has passed
	RuleEarly      = "never too early"
	RuleFault      = "outcome of the fault"   // what the fault itself looks at
	RuleStartsWork = "a leader runs its jobs" // after each fault
)

// resumeGrace is how long a process that was resumed may need until its
// watcher has cancelled the lease's context.
const resumeGrace = 250 * time.Millisecond

// pauseGrace is how late the start of a run may be written down that the
// ledger had before the pause.
const pauseGrace = 250 * time.Millisecond

// answerLimit is how long a request may wait while somebody leads, which is
// long: ticks come first, and where the database is slow one is always due. The
// second of the design is not for the harness.
const answerLimit = 10 * time.Second

// Check returns every violation of the rules, oldest first. slack is added to
// every bound; stall tells how long the machine itself stood still at most
// within a span, and is added twice (nil: never).
func Check(h *History, slack time.Duration, stall func(Span) time.Duration) []Violation {
	if stall == nil {
		stall = func(Span) time.Duration { return 0 }
	}
	var vs []Violation
	for _, rule := range []func(*History) []Violation{
		oneLeader, termsRise, runsApart, runOnce, attemptsRise, atMostOnce, retried,
		ledgerOrder, ledgerTrue, noTickLost, requests, fenced, sawAll, oneRow, outcomes,
		oneHolder, nameTerms, oneWorker, taskEnds, doneOnce, retriesKept, noTaskLost,
	} {
		vs = append(vs, rule(h)...)
	}
	vs = append(vs, somebodyLeads(h, slack, stall)...)
	vs = append(vs, keeps(h, slack, stall)...)
	vs = append(vs, paused(h, stall)...)
	for i := range vs {
		for _, in := range h.Injections {
			if in.From <= vs[i].At {
				vs[i].Fault = in.Fault
			}
		}
	}
	return sortedBy(vs, func(v Violation) time.Duration { return v.At })
}

func violation(rule string, at time.Duration, format string, args ...any) Violation {
	return Violation{Rule: rule, At: at, Text: fmt.Sprintf(format, args...)}
}

func oneLeader(h *History) (vs []Violation) {
	bs := sortedBy(h.Beliefs, func(b Belief) time.Duration { return b.First.After })
	for i, a := range bs {
		for _, b := range bs[i+1:] {
			if b.certain().From >= a.certain().To {
				break
			}
			if a.Process != b.Process && a.certain().overlaps(b.certain()) {
				vs = append(vs, violation(RuleOneLeader, b.First.After, "%v; %v", a, b))
			}
		}
	}
	return vs
}

func termsRise(h *History) (vs []Violation) {
	var before []Belief
	byTerm := map[int64]string{}
	for _, b := range sortedBy(h.Beliefs, func(b Belief) time.Duration { return b.First.Before }) {
		if owner, known := byTerm[b.Term]; known && owner != b.Process {
			vs = append(vs, violation(RuleTermsRise, b.First.Before,
				"term %d belongs to %s and to %s", b.Term, owner, b.Process))
		}
		byTerm[b.Term] = b.Process
		if b.Quiet { // after a SIGCONT it may show its old lease for a moment
			continue
		}
		for _, a := range before {
			if a.First.After < b.First.Before && a.Term >= b.Term {
				vs = append(vs, violation(RuleTermsRise, b.First.Before, "%v, and later %v", a, b))
			}
		}
		before = append(before, b)
	}
	return vs
}

// fenced has no exception: what a fence guards is in the same database.
func fenced(h *History) (vs []Violation) {
	highest := map[string]int64{}
	for i, w := range h.Writes {
		if top, known := highest[w.Name]; known && w.Term < top {
			vs = append(vs, violation(fenceRule(w.Name), 0,
				"write %d, of term %d of %q, was committed after one of term %d", i, w.Term,
				w.Name, top))
		}
		highest[w.Name] = max(w.Term, highest[w.Name])
	}
	return vs
}

func fenceRule(name string) string {
	if name == "" {
		return RuleFence
	}
	return RuleNameFence
}

// sawAll: the order of the rows says little where each node of a cluster draws ids of its
// own. But what is committed after a write of a later term, that one cannot have seen.
func sawAll(h *History) (vs []Violation) {
	terms := map[string][]int64{}
	for _, w := range h.Writes {
		terms[w.Name] = append(terms[w.Name], w.Term)
	}
	for _, of := range terms {
		slices.Sort(of)
	}
	for _, s := range h.Saw {
		earlier, _ := slices.BinarySearch(terms[s.Name], s.Term)
		if earlier > s.Earlier {
			vs = append(vs, violation(fenceRule(s.Name), 0, "a write of term %d %q saw %d of "+
				"earlier terms, and in the end there are %d", s.Term, s.Name, s.Earlier, earlier))
		}
	}
	return vs
}

// outcomes: what the faults saw themselves, and who exited.
func outcomes(h *History) (vs []Violation) {
	for _, in := range h.Injections {
		if in.Early != "" {
			vs = append(vs, violation(RuleEarly, in.From, "%s", in.Early))
		}
		if in.Problem != "" {
			vs = append(vs, violation(RuleFault, in.From, "%s", in.Problem))
		}
	}
	for _, e := range h.Exits {
		vs = append(vs, violation(RuleLives, e.At, "%s exited with %d: %s", e.Process, e.Code,
			strings.TrimSpace(e.Stderr)))
	}
	return vs
}

// keepsStall is how long the machine may stand still before it, and not the
// fault, may be what a leader has lost its lease by. What stops the harness for
// that long stops one of the many other processes for longer.
const keepsStall = 50 * time.Millisecond

// keepsSlack is the slack from which on that is not asked: the machine is so
// busy that a heartbeat, or the fault itself, may take as long as the lease.
const keepsSlack = 10 * time.Second

func keeps(h *History, slack time.Duration, stall func(Span) time.Duration) (vs []Violation) {
	if slack >= keepsSlack {
		return nil
	}
	for _, in := range h.Injections {
		if in.Keeps == 0 || stall(Span{in.From, in.Until}) >= keepsStall {
			continue
		}
		for _, b := range h.Beliefs {
			if b.Term != in.Keeps && b.First.Before > in.From && b.First.Before < in.Until {
				vs = append(vs, violation(RuleKeeps, b.First.Before,
					"term %d led before the fault, which must not change that; %v", in.Keeps, b))
			}
		}
	}
	return vs
}

func somebodyLeads(h *History, slack time.Duration,
	stall func(Span) time.Duration) (vs []Violation) {
	for _, in := range h.Injections {
		if in.Silent {
			continue
		}
		bound := in.Bound + slack + 2*stall(Span{in.From, in.Until})
		if took := h.Leaderless(in); took > bound {
			vs = append(vs, violation(RuleSomebody, in.To,
				"nobody led for %v, more than %v (%v by design)", took, bound, in.Bound))
		}
		if !in.idle && !h.worked(in) && !h.pausedIn(Span{in.To, in.Until}) {
			vs = append(vs, violation(RuleStartsWork, in.To,
				"no run started between %v and %v", in.To, in.Until))
		}
	}
	return vs
}

// pausedIn reports whether everything was paused for a part of the span: what
// the harness took for a run after the fault may have started just before, and
// none could follow.
func (h *History) pausedIn(s Span) bool {
	return slices.ContainsFunc(h.pauses(), func(p Pause) bool {
		return p.From < s.To && s.From < p.To
	})
}

// worked reports whether a run started after the injection was over and before
// the harness went on.
func (h *History) worked(in Injection) bool {
	return slices.ContainsFunc(h.Runs, func(r Run) bool {
		return r.Start >= in.To && r.Start <= in.Until
	})
}
