package schedlock

import (
	"time"

	"example.com/schedlock/schedlock/driver"
)

// defaultHeartbeatInterval is that of a TTL from 60 s on; see WithHeartbeatInterval.
const defaultHeartbeatInterval = 10 * time.Second

// watchInterval is how often a holder looks whether its lease is over, since
// timers do not count the time for which a machine was suspended.
func watchInterval(t driver.Timing) time.Duration {
	return max(min(time.Second, (t.TTL-t.RenewDeadline)/4), time.Millisecond)
}
