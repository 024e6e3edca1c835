//go:build linux

package faults

import (
	"regexp"
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
	{name: "network of MariaDB", on: kindMySQL, locks: true, faults: append(
		ofMySQL("^partition|^answers|middle of a heartbeat"),
		"kill -9 of the holder of a lock", "SIGSTOP of the holder of a lock past its TTL, SIGCONT",
	)},
	{name: "server of MariaDB", on: kindMySQL,
		faults: ofMySQL("^server|^all backends|^max_connections|^DDL")},
	{name: "rows of MariaDB", on: kindMySQL, faults: ofMySQL("^row|^write lock")},
	{name: "sessions of MariaDB", on: kindMySQL, sign: true, sessions: true, faults: []string{
		"kill -9 of the leader", "SIGSTOP, session ended, another leads, SIGCONT",
		"the leader's session ended every 200 ms", "partition of the leader",
		"server restarted, immediate",
	}},
	{name: "fail-over of MariaDB", on: kindMySQL, locks: true, faults: []string{
		"replica promoted, the last heartbeats lost", "replica promoted, the last acquisition lost",
		"replica promoted, the leader still at the read-only server",
		"a lost acquisition makes no second leader on a promoted replica",
	}},
	{name: "disk and clock of MariaDB", on: kindMySQL, small: true, locks: true, faults: []string{
		"disk of the server full", "clock of the server stepped by an hour, and back",
		"kill -9 of the holder of a lock, clock of the server set back",
	}},
	{name: "nodes of Galera killed", on: kindGalera, locks: true, faults: []string{
		"node killed, and it joins again", "the leader's node killed, and it joins again",
		"nodes restarted one after the other",
	}},
	{name: "nodes of Galera stopped", on: kindGalera, locks: true, faults: []string{
		"the leader's node stopped past the TTL, SIGCONT",
		"the leader's node cut off from the others", "SIGSTOP past the TTL, SIGCONT",
		"partition of the leader",
	}},
}

// ofMySQL are the faults of a server of MariaDB whose names match.
func ofMySQL(pattern string) (names []string) {
	matches := regexp.MustCompile(pattern).MatchString
	for _, f := range mysqlFaults() {
		if matches(f.Name) {
			names = append(names, f.Name)
		}
	}
	return names
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
	run.inject(&together, groups, 40, 2)
	together.Wait()
}
