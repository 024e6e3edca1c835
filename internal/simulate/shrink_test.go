package simulate

import (
	"slices"
	"testing"
	"time"
)

const (
	// tries is how often a plan may be run until it breaks a rule: not every run need do so.
	tries = 4
	// shrinkLimit bounds how long a plan is shrunk, by the machine's clock.
	shrinkLimit = 20 * time.Second
)

// shrink looks for a smaller plan that breaks a rule too, and returns it with what it breaks. Each
// step makes the plan simpler in one place, and stays if the plan still breaks a rule.
func shrink(t *testing.T, p plan, v verdict) (small plan, broken verdict, runs int) {
	begin := time.Now()
	try := func(smaller plan) bool {
		for range tries {
			if time.Since(begin) > shrinkLimit {
				return false
			}
			runs++
			if again := simulate(t, smaller); len(again.violations) > 0 {
				p, v = smaller, again
				return true
			}
		}
		return false
	}
	for shrunk := true; shrunk; {
		shrunk = false
		for i := len(p.Faults) - 1; i >= 0; i-- {
			smaller := p.clone()
			smaller.Faults = slices.Delete(smaller.Faults, i, i+1)
			shrunk = try(smaller) || shrunk
		}
		for i := len(p.Members) - 1; i >= 0 && len(p.Members) > 1; i-- {
			shrunk = try(p.without(i)) || shrunk
		}
		for i := range p.Members {
			for _, simpler := range []func(*member){
				func(m *member) { m.Start = 0 }, func(m *member) { m.Latency = 0 },
				func(m *member) { m.Rate = 0 }, func(m *member) { m.Strict = false },
			} {
				smaller := p.clone()
				if simpler(&smaller.Members[i]); smaller.Members[i] != p.Members[i] {
					shrunk = try(smaller) || shrunk
				}
			}
		}
	}
	return p, v, runs
}

func (p plan) clone() plan {
	return plan{Members: slices.Clone(p.Members), Faults: slices.Clone(p.Faults)}
}

// without is the plan without a replica, and what happens to it.
func (p plan) without(replica int) plan {
	p = p.clone()
	p.Members = slices.Delete(p.Members, replica, replica+1)
	p.Faults = slices.DeleteFunc(p.Faults, func(f fault) bool { return f.Replica == replica })
	for i, f := range p.Faults {
		if f.Replica > replica {
			p.Faults[i].Replica--
		}
	}
	return p
}
