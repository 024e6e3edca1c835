//go:build unix

package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogHasALinePerChangeOfStateAndNonePerHeartbeat(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "LOG=json", "LOCK_TTL=6s", "LOCK_HEARTBEAT=100ms", "TICK=100ms")
	leader, term := f.startLeader()
	standby := f.start()
	leader.awaitRun("a run is done", func(r runRow) bool { return r.Status == "done" })
	leader.awaitLine("block list has faults")
	standby.awaitLine("standing by")

	lines := func() int { // a machine that is busy may miss ticks, which has a line
		return len(leader.jsonLines()) - len(leader.log.with("ticks skipped")) + len(standby.jsonLines())
	}
	before := lines()
	leader.awaitHeartbeats(10)
	require.Zero(t, leader.failedHeartbeats(), "else the log has something to say")
	require.Equal(t, before, lines(), "lines before and after 10 heartbeats and as many runs")

	leader.kill()
	next := standby.awaitLeading()
	standby.awaitLine(`"msg":"leading"`)
	require.Equal(t, []string{"leading", "standing by"}, standby.messages("leading", "standing by", "lost the lock", "draining", "released"))
	line := standby.line("leading")
	require.InDelta(t, float64(next), line["term"], 0)
	require.InDelta(t, float64(leader.pid()), line["holder_pid"], 0)
	require.InDelta(t, float64(term), line["holder_term"], 0)
	require.NotEmpty(t, line["holder_host"])
	require.Contains(t, []any{"expired", "proven dead"}, line["previous_end"])

	standby.stop()
	require.Equal(t, []string{"draining", "leading", "released", "standing by"}, standby.messages("leading", "standing by", "lost the lock", "draining", "released"))
	for _, r := range []*replica{leader, standby} {
		for _, line := range r.jsonLines() {
			require.Contains(t, line, "time")
			require.Contains(t, line, "msg")
			require.Contains(t, []any{"INFO", "WARN"}, line["level"], "%v", line)
		}
	}
}

// messages are those of the JSON log that are among the wanted ones, sorted.
func (r *replica) messages(wanted ...string) (found []string) {
	r.t.Helper()
	for _, line := range r.jsonLines() {
		if msg, _ := line["msg"].(string); slices.Contains(wanted, msg) {
			found = append(found, msg)
		}
	}
	slices.Sort(found)
	return found
}
