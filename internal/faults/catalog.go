//go:build linux

package faults

import (
	"slices"
	"strings"
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
	{Name: "SIGSTOP past the TTL, one pid and host for all", Inject: StopSameOwner, Alone: true},
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
	{Name: "disk full", Inject: onFile(FillDisk)},
	{Name: "file read-only", Inject: onFileOfLeader(ReadOnly), Alone: true},
	{Name: "file deleted", Inject: onFileOfLeader(Unlink), Restore: true, Alone: true},
	{Name: "file moved away and back", Inject: onFile(MoveAway), Alone: true},
	{Name: "file replaced by an older copy", Inject: onFile(ReplaceOlder), Restore: true,
		Alone: true},
	{Name: "side files removed", Inject: onFile(RemoveSideFiles), Alone: true},
	{Name: "hard link made", Inject: onFileOfLeader(LinkHard), Alone: true},
	{Name: "folder switched", Inject: onFile(SwitchFolder), Alone: true},
	{Name: "lease file deleted", Inject: onFileOfLeader(DeleteLeaseFile), Alone: true},
	{Name: "another user locks what he may read, kill -9 of the leader",
		Inject: onFile(LockAsStranger), Alone: true},
	{Name: "row deleted, SIGSTOP for a moment", Inject: DeleteRow, Alone: true},
	{Name: "row and lease file deleted, SIGSTOP for a moment", Inject: onFile(DeleteRowAndLeaseFile),
		Alone: true},
	{Name: "row's token edited, SIGSTOP for a moment", Inject: EditToken, Alone: true},
	{Name: "row's term edited, SIGSTOP for a moment", Inject: EditTerm, Alone: true},
	{Name: "row's pid edited, SIGSTOP for a moment", Inject: EditPID, Alone: true},
	{Name: "row stamped into the past, SIGSTOP for a moment", Inject: StampPast, Alone: true},
	{Name: "row stamped into the future, SIGSTOP for a moment", Inject: StampFuture, Alone: true},
	{Name: "row's TTL set to 1 ms, SIGSTOP for a moment", Inject: EditTTL, Alone: true},
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
	{Name: "server restarted, fast", Inject: RestartFast, Alone: true},
	{Name: "server restarted, immediate", Inject: RestartImmediate, Alone: true},
	{Name: "server stopped past the TTL", Inject: StopServer, Alone: true},
	{Name: "kill -9 of the postmaster", Inject: KillPostmaster, Alone: true},
	{Name: "all backends terminated", Inject: TerminateAll},
	{Name: "all backends terminated, again and again", Inject: TerminateAgain},
	{Name: "the leader's backends terminated", Inject: TerminateLeaders},
	{Name: "the leader's session ended every 200 ms", Inject: TerminateAlways, Alone: true},
	{Name: "SIGSTOP, session ended, another leads, SIGCONT",
		Inject: onLeader(StopSessionEnded), Alone: true},
	{Name: "partition of the leader", Inject: PartitionLeader, Alone: true},
	{Name: "idle time-out in a partition", Inject: IdleTimeout, Alone: true},
	{Name: "forwarder in between", Inject: ForwarderBetween, Alone: true},
	{Name: "partition of a standby", Inject: PartitionStandby, Alone: true},
	{Name: "partition of all", Inject: PartitionAll, Alone: true},
	{Name: "partition for a quarter of the TTL", Inject: PartitionShort},
	{Name: "SIGSTOP in the middle of a heartbeat", Inject: StopInHeartbeat, Alone: true},
	{Name: "answers after 2 s", Inject: Delay},
	{Name: "answers lost after the commit", Inject: LoseAnswers},
	{Name: "PgBouncer restarted", Inject: RestartBouncer, Alone: true},
	{Name: "replica promoted, the last heartbeats lost", Inject: PromoteLosingBeats, Restore: true,
		Alone: true},
	{Name: "replica promoted, the last acquisition lost", Inject: PromoteLosingTerm, Restore: true,
		Alone: true},
	{Name: "tables put back to a backup", Inject: RestoreTables, Restore: true, Alone: true},
	{Name: "clock of the server stepped by an hour, and back", Inject: ClockOfServer, Clock: true},
	{Name: "max_connections reached, the leader's backends terminated", Inject: ExhaustServer,
		Alone: true},
	{Name: "disk of the server full", Inject: FillServerDisk, Alone: true},
}

// MySQLFaults are those that only MariaDB can have.
var MySQLFaults = []Fault{
	{Name: "DDL behind a reader", Inject: ChangeBehindReader, Alone: true},
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
	return append(slices.DeleteFunc(mysqlFaults(), func(f Fault) bool {
		return slices.ContainsFunc([]string{"server ", "session", "write lock", "DDL",
			"max_connections", "replica"}, func(part string) bool { return strings.Contains(f.Name, part) })
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
