package locktest

import "slices"

// A Rule is one line of the contract of a Store.
type Rule struct {
	Number int    // never given to another rule
	Name   string // of the subtest
	Text   string
	Breaks string // what goes wrong in a fleet if a store does not keep the rule
	Needs  []Feature
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
	return slices.Concat(lookCases, acquireCases, heartbeatCases, releaseCases, fenceCases, hintCases, ledgerCases, runCases, retryCases, orderCases, revokeCases)
}
