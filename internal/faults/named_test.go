//go:build linux

package faults

import (
	"testing"

	"example.com/schedlock/internal/missing"
)

// The processes of these clusters use named locks and a queue beside their
// jobs.
var lockGroups = []group{
	{name: "locks", locks: true, faults: []string{
		"kill -9 of the holder of a lock", "SIGSTOP of the holder of a lock past its TTL, SIGCONT",
		"SIGSTOP of the holder of a lock for a part of its TTL", "kill -9 of the leader",
		"kill -9 of all",
		"SIGSTOP past the TTL, SIGCONT", "SIGTERM in the middle of a job",
	}},
	{name: "locks on a server", locks: true, on: kindPostgres, faults: []string{
		"kill -9 of the holder of a lock", "SIGSTOP of the holder of a lock past its TTL, SIGCONT",
		"SIGSTOP of the holder of a lock for a part of its TTL", "kill -9 of the leader",
		"SIGTERM in the middle of a job", "the leader's backends terminated",
		"answers lost after the commit",
		"kill -9 of the holder of a lock, clock of the server set back",
	}},
}

func TestNoFaultMakesTwoHoldersOfALockOrLosesATask(t *testing.T) {
	missing.Long(t, "takes 20 seconds")
	run := newTestRun(t)
	var together together
	run.inject(&together, lockClusters(), 20, 1)
	together.Wait()
}
