package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// checkVersion reports whether the server is one that the store can use.
func (m mariadb) checkVersion(ctx context.Context) bool {
	const tried = "use MariaDB 10.11 or newer: with other servers the store was not tried"
	var version string
	if !m.row(ctx, "version", `SELECT version()`, &version) {
		return true
	}
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	switch {
	case !strings.Contains(version, "MariaDB"):
		m.fail("version", version+", which is not MariaDB: some statements of the store are "+
			"unknown to it", tried)
		return false
	case major < 10 || major == 10 && minor < 11:
		m.warn("version", version+", older than MariaDB 10.11", tried)
	default:
		m.ok("version", version)
	}
	return true
}

func (m mariadb) checkReadOnly(ctx context.Context) {
	const check = "role of the server"
	var readOnly, session bool
	if !m.row(ctx, check, `SELECT @@global.read_only, @@session.tx_read_only`, &readOnly,
		&session) {
		return
	}
	switch {
	case readOnly:
		m.fail(check, "read_only is on: the server is a replica, which the lock cannot write",
			"connect to the primary; if the primary is gone, promote this server: "+
				"STOP SLAVE; SET GLOBAL read_only = OFF")
	case session:
		m.note(check, "tx_read_only is on for new sessions: the lock sets its own; "+
			"the app's fenced transactions fail")
	default:
		m.ok(check, "it can be written")
	}
}

// judgeGalera judges this node only: each node answers for itself.
func judgeGalera(f *findings, x map[string]string) {
	const check = "galera"
	state := fmt.Sprintf("this node is %s in a %s component of %s nodes",
		x["wsrep_local_state_comment"], x["wsrep_cluster_status"], x["wsrep_cluster_size"])
	switch size, _ := strconv.Atoi(x["wsrep_cluster_size"]); {
	case x["wsrep_on"] != "ON":
		f.ok(check, "none: the server is not a node of a cluster")
	case x["wsrep_cluster_status"] != "Primary":
		f.fail(check, state+": it is cut off from the majority and refuses statements",
			"connect to a node of the primary component; bring the network back; "+
				"if all nodes are down, bootstrap the most advanced one")
	case x["wsrep_ready"] != "ON" || x["wsrep_connected"] != "ON":
		f.fail(check, state+": it is not ready, and refuses statements",
			"wait until it is synced, or connect to another node; look at its log")
	case x["wsrep_local_state_comment"] != "Synced":
		f.warn(check, state+": it may answer with old rows",
			"wait until it is Synced, or connect to another node")
	case size < 3:
		f.warn(check, state+": with fewer than three nodes the loss of one can stop the other",
			"add a node, or an arbitrator (garbd)")
	default:
		f.ok(check, state)
	}
	if x["wsrep_on"] == "ON" {
		f.note(check, "the transactions and connections below are those of this node only")
	}
}

// judgeDurability says whether an acquisition that was acknowledged outlives a crash of
// the server's machine.
func judgeDurability(f *findings, x map[string]string) {
	const check = "durability"
	if flush := x["innodb_flush_log_at_trx_commit"]; flush != "1" && flush != "3" {
		f.warn(check, fmt.Sprintf("innodb_flush_log_at_trx_commit is %s: after a loss of power "+
			"the last acquisition may be gone, and another replica leads beside its holder "+
			"until that notices, at its next heartbeat", flush),
			"SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration")
	}
	if x["log_bin"] == "ON" && x["sync_binlog"] != "1" {
		f.warn(check, fmt.Sprintf("sync_binlog is %s: after a loss of power the binary log may "+
			"lack the last transactions, so that replicas miss an acquisition that the server has",
			x["sync_binlog"]),
			"SET GLOBAL sync_binlog = 1, and in the server's configuration")
	}
	if x["innodb_doublewrite"] == "OFF" {
		f.warn(check, "innodb_doublewrite is OFF: a page that was half written at a loss of "+
			"power is damaged",
			"turn it on, unless the file system writes pages as a whole, such as ZFS")
	}
	f.fine(check, "what was committed is on the server's disk")
}

// judgeReplication judges the binary log and what follows it.
func judgeReplication(f *findings, x map[string]string) {
	const check = "replication"
	if x["log_bin"] != "ON" {
		f.ok(check, "none: the server writes no binary log")
		return
	}
	if x["binlog_format"] == "STATEMENT" {
		f.fail(check, "binlog_format is STATEMENT: the server refuses the lock's transactions, "+
			"which are READ COMMITTED", "SET GLOBAL binlog_format = MIXED, or ROW, "+
			"and in the server's configuration; then reconnect")
	}
	const lost = "the last acquisition may be missing on a replica that is promoted; " +
		"then the lock waits for one TTL"
	switch {
	case x["rpl_semi_sync_master_enabled"] != "ON":
		f.note(check, "the binary log is on and replicas, if there are any, follow "+
			"asynchronously: "+lost)
	case x["rpl_semi_sync_master_status"] != "ON":
		f.warn(check, fmt.Sprintf("semi-synchronous replication is enabled, but off now, with %s "+
			"replicas: %s", x["rpl_semi_sync_master_clients"], lost),
			"look why no replica answers: SHOW SLAVE STATUS there")
	case x["rpl_semi_sync_master_wait_point"] != "AFTER_SYNC":
		f.note(check, "semi-synchronous, AFTER_COMMIT: others read a row before a replica has it, "+
			"so "+lost+"; AFTER_SYNC waits before")
	default:
		f.ok(check, fmt.Sprintf("semi-synchronous, AFTER_SYNC; after %s ms without an answer of "+
			"a replica it goes on asynchronously", x["rpl_semi_sync_master_timeout"]))
	}
}

// judgeMySQLSettings judges what new sessions get. The lock's own sessions set what they
// need; the app's, in which it fences transactions, do not.
func judgeMySQLSettings(f *findings, x map[string]string) {
	const check = "settings"
	number := func(name string) float64 {
		n, _ := strconv.ParseFloat(x[name], 64)
		return n
	}
	if wait := number("wait_timeout"); wait > 0 && wait < 60 {
		f.warn(check, fmt.Sprintf("wait_timeout is %g s: the server ends connections that are "+
			"idle between two heartbeats, and each heartbeat connects anew", wait),
			"SET GLOBAL wait_timeout = 600, or higher")
	}
	if idle := number("idle_transaction_timeout"); idle == 0 {
		f.note(check, "idle_transaction_timeout is 0: a client that dies without a word inside a "+
			"fenced transaction keeps others from the lock until TCP gives it up; "+
			"let the app's sessions set it, such as 60")
	}
	if !strings.Contains(x["sql_mode"], "STRICT_") {
		f.note(check, fmt.Sprintf("sql_mode is %q, which is not strict: the lock sets its own; "+
			"the app's statements cut texts without an error", x["sql_mode"]))
	}
	if x["tx_isolation"] == "SERIALIZABLE" {
		f.warn(check, "tx_isolation is SERIALIZABLE: a transaction of the app's that only reads "+
			"the lock's tables delays heartbeats",
			"SET GLOBAL tx_isolation = 'READ-COMMITTED', or let nobody read these tables in a "+
				"transaction; status and the page do not")
	}
	if x["autocommit"] == "OFF" {
		f.note(check, "autocommit is OFF: the lock sets its own; a shell that reads a table keeps "+
			"a transaction open, and migrations wait for it")
	}
	f.fine(check, "the lock's own sessions have what they need")
}

const sqlMySQLConnections = `
SELECT @@max_connections,
       (SELECT variable_value FROM information_schema.global_status
        WHERE variable_name = 'THREADS_CONNECTED'),
       if(@@max_user_connections > 0, @@max_user_connections, -1), count(*)
FROM information_schema.processlist WHERE user = substring_index(current_user(), '@', 1)`

func (m mariadb) checkConnections(ctx context.Context) {
	var most, used, userMost, userUsed int
	if m.row(ctx, "connections", sqlMySQLConnections, &most, &used, &userMost, &userUsed) {
		m.judgeConnections("", share{"server", used, most, 0},
			share{"user", userUsed, userMost, 0})
	}
}

// checkTables reports whether the tables are there.
func (m mariadb) checkTables(ctx context.Context) bool {
	engines, ok := m.lines(ctx, "tables", `
SELECT concat(table_name, ' (', coalesce(engine, 'no engine'), ')') FROM information_schema.tables
WHERE table_schema = database() AND (table_name LIKE 'scheduler\_%' OR table_name LIKE 'named\_%'
      OR table_name = 'queue_tasks') AND table_type = 'BASE TABLE' AND engine IS NOT NULL
      AND (engine <> 'InnoDB' OR table_name = 'scheduler_lock') ORDER BY 1`)
	if !ok {
		return true
	}
	found := false
	var others []string
	for _, e := range engines {
		if strings.HasPrefix(e, "scheduler_lock (") {
			found = true
		}
		if !strings.HasSuffix(e, "(InnoDB)") {
			others = append(others, e)
		}
	}
	switch {
	case !found:
		m.fail("tables", fmt.Sprintf("there are no tables of the lock in database %q, or user %s "+
			"may not see them", m.database, m.user),
			m.toMake(ctx))
	case len(others) > 0:
		m.fail("tables", "they have engines without transactions: "+list(others),
			"somebody has changed them: ALTER TABLE … ENGINE = InnoDB, with the app stopped")
	default:
		m.ok("tables", fmt.Sprintf("they are in database %q, and InnoDB's", m.database))
	}
	return found
}

// sqlLongMySQL needs the right PROCESS. The server refreshes it ten times a second.
const sqlLongMySQL = `
SELECT concat('connection ', t.trx_mysql_thread_id, coalesce(concat(' (', p.user, ')'), ''),
              ', in a transaction for ', timestampdiff(SECOND, t.trx_started, sysdate()), ' s',
              if(t.trx_tables_locked > 0 OR t.trx_rows_locked > 0, ', with locks', ''))
FROM information_schema.innodb_trx t
LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
WHERE t.trx_mysql_thread_id NOT IN (0, connection_id())
  AND t.trx_started <= sysdate() - INTERVAL ? MICROSECOND
ORDER BY t.trx_started`

func (m mariadb) checkTransactions(ctx context.Context) {
	const check = "transactions"
	long, ok := m.lines(ctx, check, sqlLongMySQL, m.limits.longLock.Microseconds())
	switch {
	case !ok:
	case len(long) > 0:
		m.warn(check, fmt.Sprintf("open for more than %s: %s", m.limits.longLock, list(long)),
			"one that is fenced keeps others from the lock, and one that has read its tables "+
				"keeps migrations waiting; to end it: KILL and the connection's number")
	default:
		m.ok(check, fmt.Sprintf("none is open for more than %s", m.limits.longLock))
	}
}
