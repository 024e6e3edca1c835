//go:build unix

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
)

func TestLogHasALinePerChangeOfStateAndNonePerHeartbeat(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "LOG=json", "LOCK_TTL=6s", "LOCK_HEARTBEAT=100ms", "TICK=100ms")
	leader, term := f.startLeader()
	standby := f.start()
	leader.awaitStatus("done", 0)
	leader.awaitLine("block list has faults")
	standby.awaitLine("standing by")

	lines := func() int { // a machine that is busy may miss ticks, which has a line
		return len(leader.jsonLines()) - len(leader.log.with("ticks skipped")) +
			len(standby.jsonLines())
	}
	eventually(t, "10 heartbeats and as many runs have no line", func() error {
		before, failed := lines(), leader.failedHeartbeats() // which has lines, on a busy machine
		leader.awaitHeartbeats(10)
		if now := lines(); now != before {
			return fmt.Errorf("%d lines, then %d; %d heartbeats failed", before, now,
				leader.failedHeartbeats()-failed)
		}
		return nil
	})

	leader.kill()
	next := standby.awaitLeading()
	standby.awaitLine(`"msg":"leading"`)
	require.Equal(t, []string{"leading", "standing by"},
		standby.messages("leading", "standing by", "lost the lock", "draining", "released"))
	line := standby.line("leading")
	require.InDelta(t, float64(next), line["term"], 0)
	require.InDelta(t, float64(leader.pid()), line["holder_pid"], 0)
	require.InDelta(t, float64(term), line["holder_term"], 0)
	require.NotEmpty(t, line["holder_host"])
	require.Contains(t, []any{"expired", "proven dead"}, line["previous_end"])

	standby.awaitStatus("done", next)
	standby.stop()
	require.Equal(t, []string{"draining", "leading", "released", "standing by"},
		standby.messages("leading", "standing by", "lost the lock", "draining", "released"))
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

// logBuffer is what a replica has written so far.
type logBuffer struct{ logtest.Log }

// with returns the lines that contain all of the words. A line that is being
// written is none yet.
func (b *logBuffer) with(words ...string) (lines []string) {
	for line := range strings.Lines(b.String()) {
		lacks := func(w string) bool { return !strings.Contains(line, w) }
		if strings.HasSuffix(line, "\n") && !slices.ContainsFunc(words, lacks) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// awaitLine waits for a line with all of the words: a change can be seen a
// moment before it is logged.
func (r *replica) awaitLine(words ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("the log has a line with %q", words), func() error {
		if len(r.log.with(words...)) == 0 {
			return errors.New("it has not")
		}
		return nil
	})
}

// errorLines are the lines of level ERROR.
func (r *replica) errorLines() []string {
	return append(r.log.with("level=ERROR"), r.log.with(`"level":"ERROR"`)...)
}

// jsonLines decodes a log in JSON, of which every line must be an object.
func (r *replica) jsonLines() (lines []map[string]any) {
	r.t.Helper()
	for text := range strings.Lines(r.log.String()) {
		if !strings.HasSuffix(text, "\n") {
			break // being written
		}
		var line map[string]any
		require.NoError(r.t, json.Unmarshal([]byte(text), &line), "%s", text)
		lines = append(lines, line)
	}
	return lines
}

// line returns the first line of a JSON log with that message, nil if there is
// none yet.
func (r *replica) line(msg string) map[string]any {
	r.t.Helper()
	for _, line := range r.jsonLines() {
		if line["msg"] == msg {
			return line
		}
	}
	return nil
}
