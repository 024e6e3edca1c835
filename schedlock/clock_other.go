//go:build !linux

package schedlock

import "time"

func bootTime() time.Duration { return monotonic() }
