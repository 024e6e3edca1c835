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
)

func TestConformance(t *testing.T) {
	t.Parallel()
	Run(t, func(t testing.TB) Database {
		t.(*testing.T).Parallel()
		return database(nil)
	})
}

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
	all := cases()
	catch(t, Rules(), brokenStores, 1, func(t testing.TB, rule int, fault any) {
		all[rule-1].try(t, database(fault), short)
	})
}

// catch fails unless the suite notices each broken store, in one of so many
// tries, and there is one for each rule.
func catch(t *testing.T, rules []Rule, stores []broken, tries int,
	try func(t testing.TB, rule int, fault any)) {
	caught := map[int]bool{}
	for _, b := range stores {
		t.Run(fmt.Sprintf("%02d %s", b.rule, b.name), func(t *testing.T) {
			said := ""
			for n := 0; n < tries && said == ""; n++ {
				fault := b.fault
				if anew, ok := fault.(func() any); ok {
					fault = anew()
				}
				said = record(t, func(t testing.TB) { try(t, b.rule, fault) })
			}
			require.NotEmpty(t, said, "the suite did not notice")
			assert.Contains(t, said, b.says)
			caught[b.rule] = true
		})
	}
	for _, r := range rules {
		assert.True(t, caught[r.Number], "no broken store for rule %d: %s", r.Number, r.Name)
	}
}

func TestTheRulesAreNumbered(t *testing.T) {
	for _, rules := range [][]Rule{Rules(), NamedRules(), QueueRules()} {
		for i, r := range rules {
			assert.Equal(t, i+1, r.Number)
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

func TestAFeatureThatIsMissingIsNotPassedOver(t *testing.T) {
	for _, c := range cases() {
		for _, f := range c.Needs {
			if f == Hints {
				continue // a store without hints never gives one, and its rule says so
			}
			said := record(t, func(t testing.TB) {
				db := database(nil)
				db.Edit, db.Backup, db.Begin = nil, nil, nil
				if f == Ledger || f == Revocations {
					open := db.Open
					db.Open = func(t testing.TB) driver.Store { return irrevocable{open(t)} }
				}
				c.try(t, db, short)
			})
			assert.Contains(t, said, "add it, or list it in Database.Without", c.Name)
		}
	}
}
