package schedlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

func TestAHeldErrorSaysWhoSinceWhenAndWhatToDo(t *testing.T) {
	held := func(heartbeatAge time.Duration) error {
		return &schedlock.HeldError{Info: schedlock.LockInfo{
			PID: 7, Hostname: "a", Term: 12, CreatedAt: time.Date(2026, 11, 21, 9, 50, 46, 0,
				time.UTC),
			Age: 3 * time.Minute, HeartbeatAge: heartbeatAge,
			Timing: driver.Timing{TTL: time.Minute},
		}}
	}
	assert.ErrorIs(t, held(0), schedlock.ErrHeld)
	for _, word := range []string{`pid 7`, `"a"`, "term 12", "2026-11-21T09:50:46Z", "for 3m0s",
		"last heartbeat was 2s ago", "TTL 1m0s", "stop that process",
		"wait until the TTL has passed"} {
		assert.ErrorContains(t, held(2*time.Second), word)
	}
	assert.ErrorContains(t, held(-time.Hour), "stamped 1h0m0s in the future")
}
