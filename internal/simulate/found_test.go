package simulate

import (
	"math/rand/v2"
	"slices"
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

// A seed gives one plan. How much of the history it gives, too, the test only tells: tokens and
// pauses are random, and so is what goroutines of one moment do first.
func TestASeedGivesThePlanAndMostOfTheHistory(t *testing.T) {
	seeds, leaders, starts := 10, 0, 0
	if missing.Full() {
		seeds = 100
	}
	first := rand.Uint64() >> 1
	for seed := first; seed < first+uint64(seeds); seed++ {
		p := planOf(seed)
		assert.Equal(t, p, planOf(seed))
		assert.NotEqual(t, p, planOf(seed+1))
		a, b := simulate(t, p), simulate(t, p)
		if slices.Equal(a.leaders, b.leaders) {
			leaders++
		}
		if slices.Equal(a.starts, b.starts) {
			starts++
		}
	}
	t.Logf("of %d histories that were run again, %d had the same leaders at the same moments, "+
		"and %d the same starts of runs", seeds, leaders, starts)
}
