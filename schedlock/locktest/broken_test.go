package locktest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/memory"
)

var bg = context.Background()

// short is the patience with a broken store.
const short = time.Second

// A broken store breaks a rule.
type broken struct {
	rule  int
	name  string // what is wrong with the store
	says  string // a part of what the suite must say
	fault any    // see play; a func() any makes one that remembers something
}

// Every rule of the suite, broken at least once.
var brokenStores = slices.Concat(brokenLocks, brokenLedgers, brokenOrders)

func TestEveryRuleCatchesABrokenStore(t *testing.T) {
	catch(t, cases(), brokenStores, 1, func(t testing.TB, r Rule, fault any) *env {
		return prepare(t, r, database(fault), short)
	})
}

// catch fails unless the suite notices each broken store, in one of so many
// tries, nothing is wrong with a sound one, and there is a broken one for each rule.
func catch[E any](t *testing.T, cases []ruleCase[E], stores []broken, tries int,
	prepare func(t testing.TB, r Rule, fault any) E) {
	try := func(t *testing.T, c ruleCase[E], fault any) string {
		return record(t, func(t testing.TB) { c.run(prepare(t, c.Rule, fault)) })
	}
	for _, c := range cases {
		caught := false
		for _, b := range stores {
			if b.rule != c.Number {
				continue
			}
			caught = true
			t.Run(fmt.Sprintf("%02d %s", b.rule, b.name), func(t *testing.T) {
				said := ""
				for n := 0; n < tries && said == ""; n++ {
					fault := b.fault
					if anew, ok := fault.(func() any); ok {
						fault = anew()
					}
					said = try(t, c, fault)
				}
				require.NotEmpty(t, said, "the suite did not notice")
				assert.Contains(t, said, b.says)
			})
		}
		assert.True(t, caught, "no broken store for rule %d: %s", c.Number, c.Name)
		assert.Empty(t, try(t, c, nil), "a sound store breaks rule %d: %s", c.Number, c.Name)
	}
}

func TestTheRulesAreNumbered(t *testing.T) {
	for _, rules := range [][]Rule{Rules(), NamedRules(), QueueRules()} {
		for i, r := range rules {
			assert.Equal(t, i+1, r.Number, "%s: a new rule ends the last list, with the next number",
				r.Name)
			assert.NotEmpty(t, r.Name)
			assert.NotEmpty(t, r.Text)
			assert.NotEmpty(t, r.Breaks)
		}
	}
}

// irrevocable is a store without revocations, and without a ledger.
type irrevocable struct{ driver.Store }

func (irrevocable) Revoke(ctx context.Context, term int64, by,
	reason string) (driver.Revocation, error) {
	return driver.Base{}.Revoke(ctx, term, by, reason)
}

func TestWhatADatabaseLacksIsNotPassedOver(t *testing.T) {
	refuses := func(database string, rules []Rule, prepare func(t testing.TB, r Rule)) {
		for _, r := range rules {
			// A store without hints never gives one, and its rules say so.
			if len(r.Needs) > 0 && r.Needs[0] != Hints {
				said := record(t, func(t testing.TB) { prepare(t, r) })
				assert.Contains(t, said, "add it, or list it in "+database+".Without", r.Name)
			}
		}
	}
	refuses("Database", Rules(), func(t testing.TB, r Rule) {
		s := irrevocable{memory.New()}
		prepare(t, r, Database{Open: func(testing.TB) driver.Store { return s }}, short)
	})
	refuses("NamedDatabase", NamedRules(), func(t testing.TB, r Rule) {
		s := memory.New().Named()
		open := func(testing.TB) namedlock.Store { return s }
		prepareNamed(t, r, NamedDatabase{Open: open}, short)
	})
	refuses("QueueDatabase", QueueRules(), func(t testing.TB, r Rule) {
		s := memory.New().Queue()
		open := func(testing.TB) taskqueue.Store { return s }
		prepareQueue(t, r, QueueDatabase{Open: open}, short)
	})
}
