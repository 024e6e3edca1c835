//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.com/schedlock/internal/logtest"
)

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
