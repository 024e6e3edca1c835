package driver

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of a [Timing].
const (
	// MaxTTL bounds every TTL, also one that is read from a row: whatever
	// stands in the table, nobody waits longer than a day for a dead holder.
	MaxTTL = 24 * time.Hour

	// MinHeartbeatInterval is the shortest.
	MinHeartbeatInterval = 10 * time.Millisecond
)

// Timing holds the three periods of a lease. The holder's own values are
// stored in its row and every other replica judges the row by those, so a
// fleet whose replicas are configured differently stays safe.
type Timing struct {
	// TTL is how long a standby must have seen no heartbeat before it may
	// take the lock of a holder whose death it cannot prove. Default 60 s.
	TTL time.Duration

	// RenewDeadline is how long the holder trusts its lease after it has sent
	// the last heartbeat that succeeded. TTL − RenewDeadline is the time that
	// jobs have to stop before another replica may lead. Default ¾ TTL.
	RenewDeadline time.Duration

	// HeartbeatInterval is the time between two heartbeats. Default 10 s, or a
	// sixth of the TTL if that is less.
	HeartbeatInterval time.Duration
}

// Validate reports every rule that t breaks, each error naming the value and
// the rule: 10 ms ≤ heartbeat interval, heartbeat interval × 3 ≤ renew
// deadline ≤ 0.85 × TTL, TTL ≤ 24 h, all in whole milliseconds (the unit in
// which a row keeps them). The 0.85 leaves 10 % for clock rates that differ
// and the rest for jobs to stop.
func (t Timing) Validate() error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format, args...))
	}
	if t.TTL <= 0 { // the others may follow from it
		return fmt.Errorf("TTL %v is not above 0", t.TTL)
	}
	if t.HeartbeatInterval < MinHeartbeatInterval {
		add("heartbeat interval %v is below %v", t.HeartbeatInterval, MinHeartbeatInterval)
	}
	if t.TTL > MaxTTL {
		add("TTL %v is above %v", t.TTL, MaxTTL)
	}
	if t.TTL <= t.HeartbeatInterval {
		add("TTL %v is not above the heartbeat interval %v", t.TTL, t.HeartbeatInterval)
	}
	if t.RenewDeadline < 3*t.HeartbeatInterval {
		add("renew deadline %v is below 3 × heartbeat interval = %v", t.RenewDeadline,
			3*t.HeartbeatInterval)
	}
	if limit := t.TTL / 100 * 85; t.RenewDeadline > limit {
		add("renew deadline %v is above 0.85 × TTL = %v", t.RenewDeadline, limit)
	}
	for _, p := range []struct {
		name string
		d    time.Duration
	}{{"TTL", t.TTL}, {"renew deadline", t.RenewDeadline}, {"heartbeat interval",
		t.HeartbeatInterval}} {
		if p.d%time.Millisecond != 0 {
			add("%s %v is not a whole number of milliseconds", p.name, p.d)
		}
	}
	return errors.Join(errs...)
}

// RetryInterval is how long a holder waits before it repeats a heartbeat that
// failed, and a standby between two looks at the row: min(1 s, heartbeat
// interval).
func (t Timing) RetryInterval() time.Duration {
	return min(time.Second, t.HeartbeatInterval)
}
