package faults

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"example.com/schedlock/internal/linear"
)

// oneRow: there is an order of the statements on the lock row, each between its sending and its
// answer, in which one row that takes the steps of the model gives these answers. Where somebody
// else wrote into the row it may be anything afterwards. All but looks may be refused although the
// row is as they expect it: because of another claim, or as the file is gone.
func oneRow(h *History) (vs []Violation) {
	spans := append(sortedBy(h.Rewritten, func(s Span) time.Duration { return s.From }),
		Span{linear.Never, linear.Never})
	from, anything := time.Duration(0), false
	for _, s := range spans {
		part := during(h.Statements, from, s.From)
		result, first := linear.Check(part, anything, linear.Acquire, linear.Renew, linear.Release)
		switch result {
		case porcupine.Unknown: // many statements without an answer make the search long
			h.Undecided = append(h.Undecided, fmt.Sprintf(
				"%s: no order of the %d statements after %v was found, nor that there is none",
				RuleOneRow, len(part), from))
		case porcupine.Illegal:
			vs = append(vs, violation(RuleOneRow, time.Duration(first.From),
				"the answers to %d statements after %v: %v; no order was found that has a place for "+
					"%v\n%s", len(part), from, result, first, linear.Around(part, first)))
		}
		from, anything = max(from, s.To), true
	}
	return vs
}

// during returns the statements of a time. One that had begun before, or was answered after it, may
// have had its effect in it, or not. A look has none.
func during(all []linear.Op, from, to time.Duration) (some []linear.Op) {
	for _, op := range all {
		began, ended := time.Duration(op.From), time.Duration(op.To)
		switch {
		case ended <= from || began >= to:
			continue
		case began < from || ended > to && op.Answer != linear.Unknown:
			op.Result = linear.Result{Answer: linear.Unknown}
			op.From, op.To = int64(max(began, from)), linear.Never
		}
		if op.Op != linear.Look || op.Answer != linear.Unknown {
			some = append(some, op)
		}
	}
	return some
}
