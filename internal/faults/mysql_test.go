//go:build linux

package faults

import (
	"testing"

	"example.com/schedlock/internal/missing"
)

// The first one is what the default run has of MariaDB.
var mysqlGroups = []group{
	{name: "MariaDB", on: kindMySQL, sign: true, sessions: true, two: true, faults: []string{
		"kill -9 of the leader", "server restarted, immediate", "the leader's backends terminated",
	}},
	{name: "processes on MariaDB", on: kindMySQL, sameOwner: true, faults: []string{
		"kill -9 of the leader", "SIGSTOP past the TTL, SIGCONT", "SIGTERM in the middle of a job",
		"SIGSTOP past the TTL, one pid and host for all", "job ignores its cancellation",
		"leader revoked in the middle of a job", "the app's pool exhausted",
	}},
	{name: "network of MariaDB", on: kindMySQL, locks: true, faults: []string{
		"partition of the leader", "partition of a standby", "partition of all",
		"SIGSTOP in the middle of a heartbeat",
		"partition for a quarter of the TTL", "answers after 2 s", "answers lost after the commit",
		"kill -9 of the holder of a lock", "SIGSTOP of the holder of a lock past its TTL, SIGCONT",
	}},
	{name: "server of MariaDB", on: kindMySQL, faults: []string{
		"server restarted, fast", "server restarted, immediate", "server stopped past the TTL",
		"all backends terminated", "all backends terminated, again and again",
		"max_connections reached, the leader's backends terminated", "DDL behind a reader",
	}},
	{name: "rows of MariaDB", on: kindMySQL, faults: []string{
		"row deleted, SIGSTOP for a moment", "row's token edited, SIGSTOP for a moment",
		"row's term edited, SIGSTOP for a moment", "row's pid edited, SIGSTOP for a moment",
		"row stamped into the past, SIGSTOP for a moment",
		"row stamped into the future, SIGSTOP for a moment",
		"row's TTL set to 1 ms, SIGSTOP for a moment", "write lock held for 0.4 TTL",
		"write lock held beyond the TTL",
	}},
	{name: "sessions of MariaDB", on: kindMySQL, sign: true, sessions: true, faults: []string{
		"kill -9 of the leader", "SIGSTOP, session ended, another leads, SIGCONT",
		"the leader's session ended every 200 ms", "partition of the leader",
		"server restarted, immediate",
	}},
	{name: "fail-over of MariaDB", on: kindMySQL, locks: true, faults: []string{
		"replica promoted, the last heartbeats lost", "replica promoted, the last acquisition lost",
		"a lost acquisition makes no second leader on a promoted replica",
	}},
	{name: "disk and clock of MariaDB", on: kindMySQL, small: true, locks: true, faults: []string{
		"disk of the server full", "clock of the server stepped by an hour, and back",
		"kill -9 of the holder of a lock, clock of the server set back",
	}},
	{name: "nodes of Galera", on: kindGalera, locks: true, faults: []string{
		"node killed, and it joins again", "the leader's node killed, and it joins again",
		"the leader's node stopped past the TTL, SIGCONT",
		"the leader's node cut off from the others", "nodes restarted one after the other",
		"SIGSTOP past the TTL, SIGCONT", "partition of the leader",
	}},
}

// Every fault twice in a full run, else those of the first group.
func TestNoFaultOfMariaDBMakesTwoLeadersOrNoneForLong(t *testing.T) {
	missing.Long(t, "starts MariaDB")
	run := newTestRun(t)
	groups := mysqlGroups[:1]
	if missing.Full() || *soakFor > 0 {
		groups = mysqlGroups
	}
	var together together
	run.inject(&together, groups, 700, 2)
	together.Wait()
}
