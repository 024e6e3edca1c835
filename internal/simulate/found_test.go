package simulate

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/internal/missing"
)

// found are shrunk plans that broke a rule once, of the module or of a deliberate break of it.
var found = []struct {
	name string
	plan plan
}{}

// TestFound lets what was found happen again. Not every run of a plan is the same, so there are
// some.
func TestFound(t *testing.T) {
	runs := 3
	if missing.Full() {
		runs = 50
	}
	for _, f := range found {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for range runs {
				if v := simulate(t, f.plan); len(v.violations) > 0 {
					t.Fatal(v)
				}
			}
		})
	}
}

// A seed gives one plan. How much of a history it gives, too, the test only tells: who was elected,
// at which moment, and each start of a run.
func TestASeedGivesThePlanAndMostOfTheHistory(t *testing.T) {
	seeds, same := 10, 0
	if missing.Full() {
		seeds = 100
	}
	first := rand.Uint64() >> 1
	for seed := first; seed < first+uint64(seeds); seed++ {
		p := planOf(seed)
		assert.Equal(t, p, planOf(seed))
		assert.NotEqual(t, p, planOf(seed+1))
		a, b := simulate(t, p), simulate(t, planOf(seed))
		if assert.ObjectsAreEqual(a.outline, b.outline) {
			same++
		}
	}
	t.Logf("%d of %d histories were the same when they were run again", same, seeds)
}
