package faults

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What a process writes down of named locks, in a log of its own. Job is the
// name; Attempt is 1 if the process is quiet.
const (
	KindTook   Kind = "took"   // the first look that said that it is held; Tick is the time before it
	KindHolds  Kind = "holds"  // the time before a later one
	KindWrote  Kind = "wrote"  // a fenced write
	KindBarred Kind = "barred" // by the fence
	KindLeft   Kind = "left"   // the function has returned; Attempt is 1 if the lock had been lost
)

// The rules of named locks.
const (
	RuleOneHolder = "one holder"          // of a name, as "one leader"
	RuleNameTerms = "terms of names rise" // who holds a name later has the higher term, and no term is had twice
	RuleNameFence = "fence of names"      // no fenced write of a term of a name is committed after one of a later term
)

// A Hold is the time for which a process proves to have held a named lock: as a
// Belief, from the end of the first look that said so to the beginning of the
// last one, whatever stopped the process between. Of a single look it is a span
// that ends before it begins, and overlaps only what lies around it.
type Hold struct {
	Process string
	Name    string
	Term    int64
	Quiet   bool          // it looked only at the context
	Before  time.Duration // the first look began
	Span
	Lost bool // before its function had returned
}

// String names the hold as a message does.
func (d Hold) String() string {
	return fmt.Sprintf("%s held %q in term %d from %v to %v", d.Process, d.Name, d.Term, d.From, d.To)
}

// holdsOf makes holds of the records of one process. One that was so short, or
// so uncertain, that no look is written down is not there.
func holdsOf(process string, records []Record) []Hold {
	type key struct {
		name string
		term int64
	}
	var holds []Hold
	open := map[key]int{}
	for _, r := range records {
		k := key{r.Job, r.Term}
		i, known := open[k]
		switch {
		case r.Kind == KindTook:
			open[k] = len(holds)
			holds = append(holds, Hold{Process: process, Name: r.Job, Term: r.Term, Quiet: r.Attempt == 1,
				Before: time.Duration(r.Tick), Span: Span{r.At, time.Duration(r.Tick)}})
		case known && r.Kind == KindHolds:
			holds[i].To = max(r.At, holds[i].To)
		case known && r.Kind == KindLeft:
			holds[i].Lost = r.Attempt == 1
		}
	}
	for i := range holds {
		if holds[i].Quiet { // it may notice so much too late
			holds[i].To -= quietGrace
		}
	}
	return holds
}

// unproven reports whether two things that were decided about at these times
// prove nothing: the database forgot something meanwhile, or its clock was set.
func (h *History) unproven(from, to time.Duration) bool {
	return h.forgotBetween(from, to) || slices.ContainsFunc(h.Stepped, func(s Span) bool { return from <= s.To && s.From <= to })
}

// holdsByName returns the holds of each name, in order.
func (h *History) holdsByName(order func(a, b Hold) int) map[string][]Hold {
	by := map[string][]Hold{}
	for _, d := range slices.SortedStableFunc(slices.Values(h.Holds), order) {
		by[d.Name] = append(by[d.Name], d)
	}
	return by
}

func oneHolder(h *History) (vs []Violation) {
	for _, holds := range h.holdsByName(func(a, b Hold) int { return cmp.Compare(a.From, b.From) }) {
		last := 0 // of those before, the one that lasted longest
		for i, b := range holds {
			if a := holds[last]; i > 0 && a.overlaps(b.Span) && !h.unproven(a.From, b.From) {
				vs = append(vs, violation(RuleOneHolder, b.From, "%v; %v", a, b))
			}
			if b.To > holds[last].To {
				last = i
			}
		}
	}
	return vs
}

// nameTerms: as termsRise. The word of a quiet process is too vague.
func nameTerms(h *History) (vs []Violation) {
	before := h.holdsByName(func(a, b Hold) int { return cmp.Compare(a.From, b.From) })
	for name, holds := range h.holdsByName(func(a, b Hold) int { return cmp.Compare(a.Before, b.Before) }) {
		var (
			highest *Hold // of those that were certain before
			next    int
			byTerm  = map[int64]Hold{}
		)
		for _, b := range holds {
			if a, twice := byTerm[b.Term]; twice && !h.forgotBetween(a.From, b.From) {
				vs = append(vs, violation(RuleNameTerms, b.From, "one term twice: %v; %v", a, b))
			}
			byTerm[b.Term] = b
			for ; next < len(before[name]) && before[name][next].From < b.Before; next++ {
				if a := &before[name][next]; !a.Quiet && (highest == nil || a.Term >= highest.Term) {
					highest = a
				}
			}
			if highest != nil && !b.Quiet && highest.Term > b.Term && !h.forgotBetween(highest.From, b.From) {
				vs = append(vs, violation(RuleNameTerms, b.From, "%v, and later %v", *highest, b))
			}
		}
	}
	return vs
}

// nameFence has no exception: what a fence guards is in the same database.
func nameFence(h *History) (vs []Violation) {
	highest := map[string]int64{}
	for i, w := range h.LockWrites {
		if top, known := highest[w.Name]; known && w.Term < top {
			vs = append(vs, violation(RuleNameFence, 0, "write %d, of term %d of %q, was committed after one of term %d", i, w.Term, w.Name, top))
		}
		highest[w.Name] = max(w.Term, highest[w.Name])
	}
	return vs
}

// A LockWrite is a fenced write under a named lock.
type LockWrite struct {
	Name string
	Term int64
}
