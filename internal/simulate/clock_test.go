package simulate

import (
	"sync"
	"time"

	internalclock "example.com/schedlock/internal/clock"
	"example.com/schedlock/internal/clock/clocktest"
	"example.com/schedlock/schedlock"
)

// clocks guards what schedlock.New takes for the machine's clock: a new lock copies it. So each
// replica gets a clock of its own if it is set just before, and nobody else makes a lock meanwhile.
var clocks sync.Mutex

var machine = internalclock.System

// giveClock sets the clock for the lock that is made next, whose options include hasClock.
func (p *process) giveClock() {
	clocks.Lock()
	p.giving = true
	internalclock.System = p.w.clock(p.replica)
}

// hasClock is an option of the lock that changes nothing: the lock has taken its clock.
func (p *process) hasClock(*schedlock.Lock) error {
	if p.giving {
		p.giving = false
		internalclock.System = machine
		clocks.Unlock()
	}
	return nil
}

// clock is that of a replica's machine. It runs at its rate, all through the history. Its monotonic
// time stands still while the machine sleeps, and its wall clock is set, as the plan says.
func (w *world) clock(replica int) internalclock.Clock {
	rate := w.plan.Members[replica].Rate
	own := func(d time.Duration) time.Duration { return d + d/1000*time.Duration(rate) }
	read := func() (boot, slept, stepped time.Duration) {
		at, counted := w.planned(), time.Duration(0)
		for i, f := range w.plan.Faults {
			switch {
			case f.At > at || !w.hits(i, replica):
			case f.Kind == suspend:
				end := min(at, f.At+f.For)
				slept += max(end-max(f.At, counted), 0)
				counted = max(counted, end)
			case f.Kind == wall && f.active(at):
				stepped += f.Delay
			}
		}
		return own(at), own(slept), stepped
	}
	return internalclock.Clock{
		Now: func() time.Time {
			boot, slept, stepped := read()
			return clocktest.Forge(w.start.Add(boot+stepped), boot-slept)
		},
		Boot: func() time.Duration {
			boot, _, _ := read()
			return boot
		},
	}
}
