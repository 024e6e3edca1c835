//go:build linux

package faults

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"example.com/schedlock/internal/pgtest"
)

var (
	soakFor = flag.Duration("faults.soak", 0,
		"how long TestSoak injects random faults; 0: it is skipped")
	soakOn = flag.String("faults.database", kindSQLite,
		"what TestSoak runs on: sqlite, postgres, mysql or galera")
	onlyFlag = flag.String("faults.only", "",
		"regular expression: the only faults that TestSoak injects")
	soakMany   = flag.Int("faults.clusters", 3, "how many clusters of each kind TestSoak has")
	ordersFlag = flag.Int("faults.orders", 2,
		"how often TestSideFilesRemovedInAnyOrder removes files, in each of its clusters")
	loadFor = flag.Duration("faults.load", 0,
		"how long TestNothingUnderLoadStarvesTheScheduler keeps up the load, judged strictly, "+
			"for a quiet machine; 0: 10 s, judged leniently")
	patroniFlag = flag.Int("faults.patroni", 0,
		"how often each fault of TestPatroni comes; 0: it is skipped")
	seedFlag  = flag.Uint64("faults.seed", 0, "seed of all choices; 0: a new one")
	slackFlag = flag.Duration("faults.slack", -1,
		"added to every bound for a busy machine; below 0: half a second in TestSoak, "+
			"10 s elsewhere")
	reportFile = flag.String("faults.report", "", "file for the table, in Markdown")
	keepFiles  = flag.String("faults.keep", "",
		"folder in which the files of all processes are kept")
)

// stalls measures the machine for all tests.
var stalls *StallMeter

// withServers measures the machine, and ends the database servers of the tests, in the process of
// the tests only: the test program never comes here.
type withServers struct{ m *testing.M }

func (w withServers) Run() int {
	stalls = NewStallMeter()
	defer stalls.Stop()
	return pgtest.RunSeated(w.m)
}

func TestMain(m *testing.M) {
	ServeProgram()
	goleak.VerifyTestMain(withServers{m})
}
