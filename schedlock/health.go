package schedlock

import (
	"fmt"
	"time"
)

// Healthy is for a liveness probe. It returns an error if this process acts as
// the leader but cannot prove that it is: the last heartbeat that was confirmed
// is older than maxAge, and the lease is held still, or has ended but its work
// has not returned. A replica that does not lead is healthy, whatever its database
// does: restarting it would mend nothing.
//
// maxAge 0 means the TTL, which is what to use unless a probe shall fail
// sooner: below the renew deadline (¾ TTL) it also fails during an outage of
// the database that the lease may yet outlast. It asks no database.
func (l *Lock) Healthy(maxAge time.Duration) error {
	if maxAge <= 0 {
		maxAge = l.timing.TTL
	}
	l.mu.Lock()
	last := l.last
	l.mu.Unlock()
	if last == nil || last.returned.Load() {
		return nil
	}
	_ = last.check() // ends a lease that is past its deadline
	since := l.clock.Since(&last.confirmed.Load().sent)
	switch {
	case since <= maxAge:
		return nil
	case last.ctx.Err() == nil:
		return fmt.Errorf("leads (term %d), but no heartbeat was confirmed for %v (limit %v)",
			last.ref.Term, since.Round(time.Millisecond), maxAge)
	}
	return fmt.Errorf("the lease of term %d has ended, but its work has not returned; "+
		"last confirmed %v ago (limit %v)", last.ref.Term, since.Round(time.Millisecond), maxAge)
}
