//go:build !linux

package clock

import "time"

func bootTime() time.Duration { return monotonic() }
