//go:build linux

package faults

import (
	"regexp"
	"slices"
)

// everyFault are all of them, in the order of the table. MariaDB has most of PostgreSQL's.
func everyFault() []Fault {
	return slices.Concat(Faults, PostgresFaults, MySQLFaults, GaleraFaults, LockFaults)
}

// Faults are those of each database, and of a file.
var Faults = []Fault{
	{Name: "kill -9 of the leader", Inject: onLeader(KillLeader)},
	{Name: "kill -9 of all", Inject: onLeader(KillAll), Alone: true},
	{Name: "SIGSTOP past the TTL, SIGCONT", Inject: onLeader(StopPastTTL), Alone: true},
	{Name: "SIGSTOP past the TTL, one pid and host for all",
		Inject: onLeader(StopSameOwner), Alone: true},
	{Name: "SIGSTOP, another leads, kill -9 of the stopped one",
		Inject: onLeader(StopThenKill), Alone: true},
	{Name: "SIGSTOP, another leads, kill -9 of that one", Inject: onLeader(StopOld), Alone: true},
	{Name: "SIGSTOP for a quarter of the TTL", Inject: onLeader(StopShort), Alone: true},
	{Name: "SIGTERM in the middle of a job", Inject: onLeader(TerminateInJob)},
	{Name: "leader revoked in the middle of a job", Inject: onLeader(Revoke), Alone: true},
	{Name: "job ignores its cancellation", Inject: onLeader(IgnoreCancel)},
	{Name: "job panics", Inject: onLeader(PanicJob)},
	{Name: "job fails, kill -9 of the leader before its next attempt",
		Inject: onLeader(FailJob), Alone: true},
	{Name: "job leaves a child behind, kill -9 of the leader", Inject: onLeader(ChildLeft)},
	{Name: "write lock held for 0.4 TTL", Inject: onLeader(BlockPart)},
	{Name: "write lock held beyond the TTL", Inject: onLeader(BlockBeyond)},
	{Name: "disk full", Inject: onDB(FillDisk)},
	{Name: "file read-only", Inject: onBoth(ReadOnly), Alone: true},
	{Name: "file deleted", Inject: onBoth(Unlink), Restore: true, Alone: true},
	{Name: "file moved away and back", Inject: onDB(MoveAway), Alone: true},
	{Name: "file replaced by an older copy",
		Inject: onDB(ReplaceOlder), Restore: true, Alone: true},
	{Name: "side files removed", Inject: onBoth(RemoveSideFiles), Rewrites: true, Alone: true},
	{Name: "hard link made", Inject: onBoth(LinkHard), Alone: true},
	{Name: "folder switched", Inject: onDB(SwitchFolder), Rewrites: true, Alone: true},
	{Name: "lease file deleted", Inject: onBoth(DeleteLeaseFile), Alone: true},
	{Name: "another user locks what he may read, kill -9 of the leader",
		Inject: onBoth(LockAsStranger), Alone: true},
	{Name: "row deleted, SIGSTOP for a moment",
		Inject: edit(editDelete), Rewrites: true, Alone: true},
	{Name: "row and lease file deleted, SIGSTOP for a moment",
		Inject: onBoth(DeleteRowAndLeaseFile), Rewrites: true, Alone: true},
	{Name: "row's token edited, SIGSTOP for a moment",
		Inject: edit(editToken), Rewrites: true, Alone: true},
	{Name: "row's term edited, SIGSTOP for a moment",
		Inject: edit(editTerm), Rewrites: true, Alone: true},
	{Name: "row's pid edited, SIGSTOP for a moment", Inject: harmless(editPID), Alone: true},
	{Name: "row stamped into the past, SIGSTOP for a moment",
		Inject: harmless(editPast), Alone: true},
	{Name: "row stamped into the future, SIGSTOP for a moment",
		Inject: harmless(editFuture), Alone: true},
	{Name: "row's TTL set to 1 ms, SIGSTOP for a moment", Inject: harmless(editTTL), Alone: true},
	{Name: "clock of the leader stepped by an hour, and back",
		Inject: onLeader(ClockOfLeader), Clock: true},
	{Name: "clock of all stepped by an hour, and back", Inject: onLeader(ClockOfAll), Clock: true},
	{Name: "the app's pool exhausted", Inject: onLeader(ExhaustPool)},
	{Name: "the app's pool exhausted, kill -9 of the leader", Inject: ExhaustPoolKill, Alone: true},
	{Name: "header corrupted", Inject: CorruptHeader, Last: true, Alone: true},
	{Name: "pages corrupted", Inject: CorruptPages, Last: true, Alone: true},
}

// PostgresFaults are those that only a server, or a network, can have.
var PostgresFaults = []Fault{
	{Name: "server restarted, fast", Inject: restart(false), Alone: true},
	{Name: "server restarted, immediate", Inject: restart(true), Alone: true},
	{Name: "server stopped past the TTL", Inject: onDB(StopServer), Alone: true},
	{Name: "kill -9 of the postmaster", Inject: onDB(KillPostmaster), Alone: true},
	{Name: "all backends terminated", Inject: terminateBackends(1, false)},
	{Name: "all backends terminated, again and again", Inject: terminateBackends(6, false)},
	{Name: "the leader's backends terminated", Inject: terminateBackends(1, true)},
	{Name: "the leader's session ended every 200 ms", Inject: onBoth(TerminateAlways), Alone: true},
	{Name: "SIGSTOP, session ended, another leads, SIGCONT",
		Inject: onBoth(StopSessionEnded), Alone: true},
	{Name: "partition of the leader", Inject: onDB(PartitionLeader), Alone: true},
	{Name: "idle time-out in a partition", Inject: onBoth(IdleTimeout), Alone: true},
	{Name: "forwarder in between", Inject: onDB(ForwarderBetween), Alone: true},
	{Name: "partition of a standby", Inject: onBoth(PartitionStandby), Alone: true},
	{Name: "partition of all", Inject: onDB(PartitionAll), Alone: true},
	{Name: "partition for a quarter of the TTL", Inject: onBoth(PartitionShort)},
	{Name: "SIGSTOP in the middle of a heartbeat", Inject: onBoth(StopInHeartbeat), Alone: true},
	{Name: "answers after 2 s", Inject: onDB(Delay)},
	{Name: "answers lost after the commit", Inject: onDB(LoseAnswers)},
	{Name: "PgBouncer restarted", Inject: onDB(RestartBouncer), Alone: true},
	{Name: "replica promoted, the last heartbeats lost",
		Inject: onReplica(PromoteLosingBeats), Restore: true, Alone: true},
	{Name: "replica promoted, the last acquisition lost",
		Inject: onReplica(PromoteLosingTerm), Restore: true, Alone: true},
	{Name: "false news of a release, SIGSTOP for a moment",
		Inject: harmless(editTold), Alone: true},
	{Name: "row deleted, false news of a release, SIGSTOP for a moment",
		Inject: edit(editDeletedTold), Rewrites: true, Alone: true},
	{Name: "tables put back to a backup", Inject: onDB(RestoreTables), Restore: true, Alone: true},
	{Name: "clock of the server stepped by an hour, and back",
		Inject: onBoth(ClockOfServer), Clock: true},
	{Name: "max_connections reached, the leader's backends terminated",
		Inject: onBoth(ExhaustServer), Alone: true},
	{Name: "disk of the server full", Inject: onBoth(FillServerDisk), Alone: true},
}

// MySQLFaults are those that only MariaDB can have.
var MySQLFaults = []Fault{
	{Name: "DDL behind a reader", Inject: onBoth(ChangeBehindReader), Alone: true},
	{Name: "replica promoted, the leader still at the read-only server",
		Inject: onReplica(SwitchOver), Restore: true, Alone: true},
}

// mysqlFaults are what one server of MariaDB can suffer, and its network.
func mysqlFaults() []Fault {
	likePostgres := []string{
		"server restarted, fast", "server restarted, immediate", "server stopped past the TTL",
		"all backends terminated", "all backends terminated, again and again",
		"the leader's backends terminated", "the leader's session ended every 200 ms",
		"SIGSTOP, session ended, another leads, SIGCONT", "partition of the leader",
		"partition of a standby", "partition of all", "partition for a quarter of the TTL",
		"SIGSTOP in the middle of a heartbeat", "answers after 2 s",
		"answers lost after the commit",
		"max_connections reached, the leader's backends terminated",
		"replica promoted, the last heartbeats lost", "replica promoted, the last acquisition lost",
		"clock of the server stepped by an hour, and back", "disk of the server full",
	}
	faults := sharedFaults()
	for _, f := range PostgresFaults {
		if slices.Contains(likePostgres, f.Name) {
			faults = append(faults, f)
		}
	}
	return append(faults, MySQLFaults...)
}

// galeraFaults are GaleraFaults, and what else the nodes can suffer: a lock of a session, or
// of a table, is of one node.
func galeraFaults() []Fault {
	ofOne := regexp.MustCompile("server |session|write lock|DDL|max_connections|replica")
	return append(slices.DeleteFunc(mysqlFaults(), func(f Fault) bool {
		return ofOne.MatchString(f.Name)
	}), GaleraFaults...)
}

// sharedFaults are those of Faults that a server can suffer too: not those
// of a file, nor those of a clock that its store does not ask.
func sharedFaults() []Fault {
	return slices.DeleteFunc(slices.Clone(Faults), func(f Fault) bool {
		return f.Last || f.Clock || f.Restore || slices.Contains([]string{
			"disk full", "file read-only", "file moved away and back", "lease file deleted",
			"another user locks what he may read, kill -9 of the leader",
			"side files removed", "hard link made", "folder switched",
			"row and lease file deleted, SIGSTOP for a moment",
		}, f.Name)
	})
}
