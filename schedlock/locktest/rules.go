package locktest

import (
	"fmt"
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

// A ruleCase is a rule and how it is tested, in an environment of its kind.
type ruleCase[E any] struct {
	Rule
	slow bool
	run  func(E)
}

// A testCase is one of a Store, a namedCase of a namedlock.Store, a queueCase of a taskqueue.Store.
type (
	testCase  = ruleCase[*env]
	namedCase = ruleCase[*namedEnv]
	queueCase = ruleCase[*queueEnv]
)

// runAll tests each rule in a subtest of its own, in an environment that prepare makes for it.
func runAll[E any](t *testing.T, what string, cases []ruleCase[E],
	prepare func(t testing.TB, r Rule) E) {
	for _, c := range cases {
		t.Run(fmt.Sprintf("%02d %s", c.Number, c.Name), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("%s %d: %s If it is broken: %s", what, c.Number, c.Text, c.Breaks)
				}
			})
			if c.slow && testing.Short() {
				t.Skip("takes long")
			}
			c.run(prepare(t, c.Rule))
		})
	}
}

// provide skips the test of a rule that needs what the database is known to lack, and fails that of
// one that needs something else that is missing: nothing is left out in silence. missing says why a
// feature is.
func (r Rule) provide(t testing.TB, database string, without []Feature,
	missing func(Feature) string) {
	for _, f := range r.Needs {
		why := missing(f)
		switch {
		case why == "":
		case slices.Contains(without, f):
			t.Skipf("without %s: %s", f, why)
		default:
			t.Fatalf("rule %d needs %s, but %s: add it, or list it in %s.Without", r.Number, f, why,
				database)
		}
	}
}

// Rules is the contract of a Store, in the order of its numbers.
func Rules() []Rule { return rulesOf(cases()) }

// NamedRules is the contract of a namedlock.Store, in the order of its numbers.
func NamedRules() []Rule { return rulesOf(namedCases()) }

// QueueRules is the contract of a taskqueue.Store, in the order of its numbers,
// which are its own.
func QueueRules() []Rule { return rulesOf(queueCases()) }

func rulesOf[E any](cases []ruleCase[E]) (rules []Rule) {
	for _, c := range cases {
		rules = append(rules, c.Rule)
	}
	return rules
}

func cases() []testCase {
	return slices.Concat(lookCases, acquireCases, heartbeatCases, releaseCases, fenceCases,
		hintCases, ledgerCases, runCases, retryCases, orderCases, pauseCases, pruneCases,
		revokeCases, cursorCases, appCases, auditCases, replicaCases,
		attemptCases, hearsayCases, leftoverCases)
}

func namedCases() []namedCase {
	return slices.Concat(namedRowCases, namedFenceCases, namedClockCases, namedRevokeCases)
}

func queueCases() []queueCase {
	return slices.Concat(queueAddCases, queueCaptureCases, queueEndCases, queueFailCases,
		queueTxCases, queueListCases)
}
