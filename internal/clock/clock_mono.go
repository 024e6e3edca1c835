package clock

import "time"

var processStart = time.Now()

// monotonic is the time since the process started. Where the system has no
// clock that counts suspend it takes that clock's place; what is then lost is
// told in the documentation of package schedlock.
func monotonic() time.Duration { return time.Since(processStart) }
