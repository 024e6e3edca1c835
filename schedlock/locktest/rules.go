package locktest

import (
	"slices"
	"testing"
)

// A Rule is one line of the contract of a Store.
type Rule struct {
	Number int    // never given to another rule
	Name   string // of the subtest
	Text   string
	Breaks string // what goes wrong in a fleet if a store does not keep the rule
	Needs  []Feature
}

// explain says what the rule is when its test has failed.
func (r Rule) explain(t *testing.T, what string) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s %d: %s If it is broken: %s", what, r.Number, r.Text, r.Breaks)
		}
	})
}

// Rules is the contract of a Store, in the order of its numbers.
func Rules() []Rule {
	var rules []Rule
	for _, c := range cases() {
		rules = append(rules, c.Rule)
	}
	return rules
}

func cases() []testCase {
	return slices.Concat(lookCases, acquireCases, heartbeatCases, releaseCases, fenceCases,
		hintCases, ledgerCases, runCases, retryCases, orderCases, pauseCases, pruneCases,
		revokeCases, cursorCases, appCases, auditCases, replicaCases,
		attemptCases)
}
