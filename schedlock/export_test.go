package schedlock

import (
	"time"

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/internal/clock/clocktest"
	"example.com/schedlock/schedlock/driver"
)

// UseBubbleClock gives l a clock of its own. Call it before l is used.
func UseBubbleClock(l *Lock) *clocktest.Fake {
	c := clocktest.New()
	l.clock = clock.Clock{Now: c.Now, Boot: c.Boot}
	return c
}

// UseClock gives l another clock. Call it before l is used.
func UseClock(l *Lock, now func() time.Time) {
	l.clock = clock.Clock{Now: now, Boot: clock.System.Boot}
}

// RenewByHand lets l's leases not renew themselves. Call it before l is used.
func RenewByHand(l *Lock) { l.byHand = true }

// Known is the newest term that l has read or held.
func Known(l *Lock) driver.Term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known
}

// RenewItself lets a lease renew itself that RenewByHand has kept from it.
func RenewItself(l *Lease) { l.renewItself() }
