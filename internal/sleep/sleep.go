// Package sleep waits for a time that something else may end.
package sleep

import (
	"context"
	"time"
)

// For lasts for d, or until ctx ends. It reports whether ctx goes on.
func For(ctx context.Context, d time.Duration) bool {
	return !Until(ctx.Done(), d)
}

// Until lasts until done is closed, but not for longer than limit. It reports
// whether done is closed.
func Until(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	}
	select {
	case <-done: // both at the same moment
		return true
	default:
		return false
	}
}
