package faults

import (
	"cmp"
	"fmt"
	"math"
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
	RuleOneLeader   = "one leader"             // the times for which processes led do not overlap
	RuleTermsRise   = "terms rise"             // who leads later has the higher term, and no term is had twice
	RuleRunsApart   = "runs apart"             // a run is over, or knows that it must end, when one of a later term starts
	RuleRunOnce     = "no run twice"           // no (job, tick, attempt) starts twice
	RuleLedgerOrder = "ledger order"           // nobody starts a run when a later term has
	RuleLedgerTrue  = "ledger true"            // every run that started is in the ledger, with its term; every term in the history
	RuleFence       = "fence"                  // no fenced write of a term is committed after one of a later term
	RuleSomebody    = "somebody leads"         // within the bound of the fault
	RuleKeeps       = "same leader"            // where the fault must not change it
	RuleLives       = "the process lives"      // nobody exits unasked
	RuleFault       = "outcome of the fault"   // what the fault itself looks at
	RuleStartsWork  = "a leader runs its jobs" // after each fault
)

// resumeGrace is how long a process that was resumed may need until its
// watcher has cancelled the lease's context.
const resumeGrace = 250 * time.Millisecond

// Check returns every violation of the rules, oldest first. slack is added to
// every bound; stall tells how long the machine itself stood still at most
// within a span, and is added twice (nil: never).
func Check(h *History, slack time.Duration, stall func(Span) time.Duration) []Violation {
	if stall == nil {
		stall = func(Span) time.Duration { return 0 }
	}
	var vs []Violation
	for _, rule := range []func(*History) []Violation{
		oneLeader, termsRise, runsApart, runOnce, ledgerOrder, ledgerTrue, fenced, outcomes,
	} {
		vs = append(vs, rule(h)...)
	}
	vs = append(vs, somebodyLeads(h, slack, stall)...)
	for i := range vs {
		for _, in := range h.Injections {
			if in.From <= vs[i].At {
				vs[i].Fault = in.Fault
			}
		}
	}
	slices.SortStableFunc(vs, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return vs
}

func violation(rule string, at time.Duration, format string, args ...any) Violation {
	return Violation{Rule: rule, At: at, Text: fmt.Sprintf(format, args...)}
}

func oneLeader(h *History) (vs []Violation) {
	bs := slices.SortedFunc(slices.Values(h.Beliefs), func(a, b Belief) int { return cmp.Compare(a.First.After, b.First.After) })
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
	for _, b := range slices.SortedFunc(slices.Values(h.Beliefs), func(a, b Belief) int { return cmp.Compare(a.First.Before, b.First.Before) }) {
		if owner, known := byTerm[b.Term]; known && owner != b.Process {
			vs = append(vs, violation(RuleTermsRise, b.First.Before, "term %d belongs to %s and to %s", b.Term, owner, b.Process))
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

// runsApart: the start of a run proves that its term had begun. Runs of earlier
// terms must by then have returned, or have been told to. A process that was
// stopped could not be told; it must be, soon after it was resumed.
func runsApart(h *History) (vs []Violation) {
	byTerm := slices.SortedFunc(slices.Values(h.Runs), func(a, b Run) int { return cmp.Compare(b.Term, a.Term) })
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
			vs = append(vs, violation(RuleRunsApart, later.Start, "%v still went on at %v; %v", r, later.Start, later))
		}
	}
	return vs
}

func runOnce(h *History) (vs []Violation) {
	type key struct {
		job     string
		tick    int64
		attempt int
	}
	seen := map[key]Run{}
	for _, r := range slices.SortedFunc(slices.Values(h.Runs), func(a, b Run) int { return cmp.Compare(a.Start, b.Start) }) {
		k := key{r.Job, r.Tick, r.Attempt}
		if first, twice := seen[k]; twice && !h.forgotBetween(first.Start, r.Start) {
			vs = append(vs, violation(RuleRunOnce, r.Start, "%v; %v", first, r))
		}
		seen[k] = r
	}
	return vs
}

func (h *History) forgotBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(h.Forgot, func(s Span) bool { return from <= s.To && s.From <= to })
}

func ledgerOrder(h *History) (vs []Violation) {
	highest := int64(math.MinInt64)
	for _, row := range h.Ledger {
		if row.Term < highest {
			vs = append(vs, violation(RuleLedgerOrder, 0, "term %d wrote %s/%d into the ledger after term %d had written", row.Term, row.Job, row.Tick, highest))
		}
		highest = max(highest, row.Term)
	}
	return vs
}

// ledgerTrue: what happened since the database last forgot must be in it.
func ledgerTrue(h *History) (vs []Violation) {
	since := time.Duration(0)
	for _, s := range h.Forgot {
		since = max(since, s.To)
	}
	type key struct {
		job     string
		tick    int64
		attempt int
		term    int64
	}
	rows := map[key]bool{}
	for _, row := range h.Ledger {
		if row.Started {
			rows[key{row.Job, row.Tick, row.Attempt, row.Term}] = true
		}
	}
	if h.Ledger != nil {
		for _, r := range h.Runs {
			if r.Start > since && !rows[key{r.Job, r.Tick, r.Attempt, r.Term}] {
				vs = append(vs, violation(RuleLedgerTrue, r.Start, "not in scheduler_runs: %v", r))
			}
		}
	}
	if h.Terms != nil {
		for _, b := range h.Beliefs {
			if b.First.Before > since && !slices.Contains(h.Terms, b.Term) {
				vs = append(vs, violation(RuleLedgerTrue, b.First.Before, "not in scheduler_terms: %v", b))
			}
		}
	}
	return vs
}

func fenced(h *History) (vs []Violation) {
	highest := int64(math.MinInt64)
	for i, term := range h.Writes {
		if term < highest {
			vs = append(vs, violation(RuleFence, 0, "write %d, of term %d, was committed after one of term %d", i, term, highest))
		}
		highest = max(highest, term)
	}
	return vs
}

// outcomes: what the faults saw themselves, and who exited.
func outcomes(h *History) (vs []Violation) {
	for _, in := range h.Injections {
		if in.Problem != "" {
			vs = append(vs, violation(RuleFault, in.From, "%s", in.Problem))
		}
		if in.Keeps == 0 {
			continue
		}
		for _, b := range h.Beliefs {
			if b.Term != in.Keeps && b.First.Before > in.From && b.First.Before < in.Until {
				vs = append(vs, violation(RuleKeeps, b.First.Before, "term %d led before the fault, which must not change that; %v", in.Keeps, b))
			}
		}
	}
	for _, e := range h.Exits {
		vs = append(vs, violation(RuleLives, e.At, "%s exited with %d: %s", e.Process, e.Code, strings.TrimSpace(e.Stderr)))
	}
	return vs
}

func somebodyLeads(h *History, slack time.Duration, stall func(Span) time.Duration) (vs []Violation) {
	for _, in := range h.Injections {
		if in.Silent {
			continue
		}
		bound := in.Bound + slack + 2*stall(Span{in.From, in.Until})
		if took := h.Leaderless(in); took > bound {
			vs = append(vs, violation(RuleSomebody, in.To, "nobody led for %v, more than %v (%v by design)", took, bound, in.Bound))
		}
		if !in.idle && !h.worked(in) {
			vs = append(vs, violation(RuleStartsWork, in.To, "no run started between %v and %v", in.To, in.Until))
		}
	}
	return vs
}

// worked reports whether a run started after the injection was over and before
// the harness went on.
func (h *History) worked(in Injection) bool {
	return slices.ContainsFunc(h.Runs, func(r Run) bool { return r.Start >= in.To && r.Start <= in.Until })
}
