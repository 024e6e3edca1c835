package bounded

import (
	"sync"
	"time"
)

// outageInterval is the least time between two lines about one outage.
const outageInterval = 30 * time.Second

// An Outage is a row of failures. It says which are worth a line in the log: the first, at most
// one every 30 s after that, and the end. Its zero value is ready. It may be used concurrently:
// lines come in the order of what they tell.
type Outage struct {
	mu          sync.Mutex
	since, said time.Time
	failures    int
}

// Failed notes a failure, and calls say if it is worth a line.
func (o *Outage) Failed(now time.Time, say func(lasts time.Duration, failures int)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures++; o.failures == 1 {
		o.since = now
	} else if now.Sub(o.said) < outageInterval {
		return
	}
	o.said = now
	say(now.Sub(o.since), o.failures)
}

// Over notes a success, and calls say if it ends an outage.
func (o *Outage) Over(now time.Time, say func(lasted time.Duration, failures int)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures > 0 {
		say(now.Sub(o.since), o.failures)
		o.failures = 0
	}
}
