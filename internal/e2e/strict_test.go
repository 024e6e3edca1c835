//go:build unix

package e2e

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStrictModeRefusesToStartWhileAnotherReplicaLeads(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t, "MODE=strict", "LOCK_HEARTBEAT=1s")
		leader, term := f.startLeader()
		pid := leader.pid()
		host, err := os.Hostname()
		require.NoError(t, err)

		requireWithin(t, 2*time.Second, func() time.Duration {
			second := f.launch()
			require.Equal(t, 3, second.wait())
			took := time.Since(second.begun)
			lines := second.log.with("demoapp: ")
			require.Len(t, lines, 1, "what an operator reads:\n%s", second.log.String())
			for what, words := range map[string]string{
				"who":            fmt.Sprintf("pid %d on host %q (term %d)", pid, host, term),
				"for how long":   `, for (\d+m)?\d+(\.\d+)?m?s;`,
				"last heartbeat": `last heartbeat was \d+(\.\d+)?m?s ago`,
				"what to do": `stop that process.*` +
					`wait until the TTL has passed and start again`,
			} {
				if what == "who" {
					words = regexp.QuoteMeta(words)
				}
				require.Regexp(t, words, lines[0], what)
			}
			require.NotContains(t, second.log.String(), "serving", "it never came to serve")
			return took
		})
		leader.awaitHeartbeats(1)
		require.Zero(t, leader.failedHeartbeats(), "whoever was refused has disturbed it")
		require.True(t, leader.lock().Self.Leader)
		require.Len(t, leader.terms(), 1)

		leader.stop()
		third, next := f.startLeader() // now it is free
		require.Greater(t, next, term)
		third.stop()
		f.requireNoRow()
	})
}
