//go:build linux

package faults

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	soakFor    = flag.Duration("faults.soak", 0, "how long TestSoak injects random faults; 0: it is skipped")
	soakMany   = flag.Int("faults.clusters", 3, "how many clusters of each kind TestSoak has")
	seedFlag   = flag.Uint64("faults.seed", 0, "seed of all choices; 0: a new one")
	slackFlag  = flag.Duration("faults.slack", 500*time.Millisecond, "added to every bound for a busy machine")
	reportFile = flag.String("faults.report", "", "file for the table, in Markdown")
	keepFiles  = flag.String("faults.keep", "", "folder in which the files of all processes are kept")
)

func TestMain(m *testing.M) {
	ServeProgram()
	goleak.VerifyTestMain(m)
}
