package faults

import (
	"fmt"
	"slices"
	"time"
)

// What a process writes down of named locks, in a log of its own. Job is the
// name; Attempt is 1 if the process is quiet.
const (
	// the first look that said that it is held; Tick is the time before it
	KindTook   Kind = "took"
	KindHolds  Kind = "holds"  // the time before a later one
	KindWrote  Kind = "wrote"  // a fenced write
	KindBarred Kind = "barred" // by the fence
	KindLeft   Kind = "left"   // the function has returned; Attempt is 1 if the lock had been lost
)

// The rules of named locks.
const (
	RuleOneHolder = "one holder" // of a name, as "one leader"
	// who holds a name later has the higher term, and no term is had twice
	RuleNameTerms = "terms of names rise"
	// no fenced write of a term of a name is committed after one of a later term
	RuleNameFence = "fence of names"
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
	return fmt.Sprintf("%s held %q in term %d from %v to %v", d.Process, d.Name, d.Term,
		d.From, d.To)
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
			holds = append(holds, Hold{Process: process,
				Name: r.Job, Term: r.Term, Quiet: r.Attempt == 1,
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

// restoredBetween is forgotBetween without the fail-overs.
func (h *History) restoredBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(h.Forgot, func(s Span) bool {
		return s.touches(from, to) && !slices.Contains(h.Promoted, s)
	})
}

// steppedBetween reports whether a clock was set that names are judged by.
func (h *History) steppedBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(h.Stepped, func(s Span) bool { return s.touches(from, to) })
}

// steppedAround reports whether both moments lie within the time in which a clock
// was set that names are judged by.
func (h *History) steppedAround(from, to time.Duration) bool {
	return slices.ContainsFunc(h.Stepped, func(s Span) bool { return s.From <= from && to <= s.To })
}

// unproven reports whether two things that were decided about at these times
// prove nothing: the database forgot something meanwhile, or its clock was set.
func (h *History) unproven(from, to time.Duration) bool {
	return h.forgotBetween(from, to) || h.steppedBetween(from, to)
}

// holdsByName returns the holds of each name, in the order of their first looks' ends, or
// beginnings.
func (h *History) holdsByName(moment func(Hold) time.Duration) map[string][]Hold {
	by := map[string][]Hold{}
	for _, d := range sortedBy(h.Holds, moment) {
		by[d.Name] = append(by[d.Name], d)
	}
	return by
}

func looked(d Hold) time.Duration    { return d.From }
func beganLook(d Hold) time.Duration { return d.Before }

func oneHolder(h *History) (vs []Violation) {
	for _, holds := range h.holdsByName(looked) {
		last := 0 // of those before, the one that lasted longest
		for i, b := range holds {
			if a := holds[last]; i > 0 && a.overlaps(b.Span) &&
				!h.restoredBetween(a.From, b.From) && !h.steppedBetween(a.From, b.From) {
				vs = append(vs, violation(RuleOneHolder, b.From, "%v; %v", a, b))
			}
			if b.To > holds[last].To {
				last = i
			}
		}
	}
	return vs
}

// nameTerms: as termsRise. The word of a quiet process is too vague. A clock that
// is set forward ends a hold early: while it is set, the one whose hold it was may
// look later than the next holder.
func nameTerms(h *History) (vs []Violation) {
	before := h.holdsByName(looked)
	for name, holds := range h.holdsByName(beganLook) {
		var (
			highest *Hold // of those that were certain before
			next    int
			byTerm  = map[int64]Hold{}
		)
		for _, b := range holds {
			if a, twice := byTerm[b.Term]; twice && !h.restoredBetween(a.From, b.From) {
				vs = append(vs, violation(RuleNameTerms, b.From, "one term twice: %v; %v", a, b))
			}
			byTerm[b.Term] = b
			for ; next < len(before[name]) && before[name][next].From < b.Before; next++ {
				if a := &before[name][next]; !a.Quiet &&
					(highest == nil || a.Term >= highest.Term) {
					highest = a
				}
			}
			if highest != nil && !b.Quiet && highest.Term > b.Term &&
				!h.restoredBetween(highest.From, b.From) && !h.steppedAround(highest.From, b.From) {
				vs = append(vs, violation(RuleNameTerms, b.From, "%v, and later %v", *highest, b))
			}
		}
	}
	return vs
}
