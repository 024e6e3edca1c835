package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
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

// checkGalera looks at this node only: each node answers for itself.
func (m mariadb) checkGalera(ctx context.Context) {
	const check = "galera"
	x, ok := m.values(ctx, check, "global_status", "wsrep_ready", "wsrep_connected",
		"wsrep_cluster_status", "wsrep_cluster_size", "wsrep_local_state_comment")
	if !ok {
		return
	}
	on, ok := m.values(ctx, check, "global_variables", "wsrep_on")
	if ok {
		judgeGalera(m.findings, on["wsrep_on"], x)
	}
}

func judgeGalera(f *findings, on string, x map[string]string) {
	const check = "galera"
	state := fmt.Sprintf("this node is %s in a %s component of %s nodes",
		x["wsrep_local_state_comment"], x["wsrep_cluster_status"], x["wsrep_cluster_size"])
	switch size, _ := strconv.Atoi(x["wsrep_cluster_size"]); {
	case on != "ON":
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
	if on == "ON" {
		f.note(check, "the transactions and connections below are those of this node only")
	}
}

func (m mariadb) checkClock(ctx context.Context) {
	var server time.Time
	sent := time.Now()
	if !m.row(ctx, "server clock", `SELECT sysdate(6)`, &server) {
		return
	}
	trip := time.Since(sent)
	apart := server.Sub(sent.Add(trip / 2)).Round(time.Millisecond)
	judgeClocks(m.findings, max(apart.Abs()-trip/2, 0), apart > 0)
}

// checkDurability asks whether an acquisition that was acknowledged outlives a crash of
// the server's machine.
func (m mariadb) checkDurability(ctx context.Context) {
	x, ok := m.values(ctx, "durability", "global_variables", "innodb_flush_log_at_trx_commit",
		"sync_binlog", "log_bin", "innodb_doublewrite")
	if ok {
		judgeDurability(m.findings, x)
	}
}

func judgeDurability(f *findings, x map[string]string) {
	const check = "durability"
	fine := true
	warn := func(found, do string) {
		fine = false
		f.warn(check, found, do)
	}
	if flush := x["innodb_flush_log_at_trx_commit"]; flush != "1" && flush != "3" {
		warn(fmt.Sprintf("innodb_flush_log_at_trx_commit is %s: after a loss of power the last "+
			"acquisition may be gone, and another replica leads beside its holder "+
			"until that notices, at its next heartbeat", flush),
			"SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration")
	}
	if x["log_bin"] == "ON" && x["sync_binlog"] != "1" {
		warn(fmt.Sprintf("sync_binlog is %s: after a loss of power the binary log may lack the "+
			"last transactions, so that replicas miss an acquisition that the server has",
			x["sync_binlog"]),
			"SET GLOBAL sync_binlog = 1, and in the server's configuration")
	}
	if x["innodb_doublewrite"] == "OFF" {
		warn("innodb_doublewrite is OFF: a page that was half written at a loss of power is "+
			"damaged", "turn it on, unless the file system writes pages as a whole, such as ZFS")
	}
	if fine {
		f.ok(check, "what was committed is on the server's disk")
	}
}

// checkReplication looks at the binary log and what follows it.
func (m mariadb) checkReplication(ctx context.Context) {
	const check = "replication"
	x, ok := m.values(ctx, check, "global_variables", "log_bin", "binlog_format",
		"rpl_semi_sync_master_enabled", "rpl_semi_sync_master_wait_point",
		"rpl_semi_sync_master_timeout")
	if !ok {
		return
	}
	status, ok := m.values(ctx, check, "global_status", "rpl_semi_sync_master_status",
		"rpl_semi_sync_master_clients")
	if ok {
		judgeReplication(m.findings, x, status)
	}
}

func judgeReplication(f *findings, x, status map[string]string) {
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
	case status["rpl_semi_sync_master_status"] != "ON":
		f.warn(check, fmt.Sprintf("semi-synchronous replication is enabled, but off now, with %s "+
			"replicas: %s", status["rpl_semi_sync_master_clients"], lost),
			"look why no replica answers: SHOW SLAVE STATUS there")
	case x["rpl_semi_sync_master_wait_point"] != "AFTER_SYNC":
		f.note(check, "semi-synchronous, AFTER_COMMIT: others read a row before a replica has it, "+
			"so "+lost+"; AFTER_SYNC waits before")
	default:
		f.ok(check, fmt.Sprintf("semi-synchronous, AFTER_SYNC; after %s ms without an answer of "+
			"a replica it goes on asynchronously", x["rpl_semi_sync_master_timeout"]))
	}
}

// checkSettings looks at what new sessions get. The lock's own sessions set what they
// need; the app's, in which it fences transactions, do not.
func (m mariadb) checkSettings(ctx context.Context) {
	x, ok := m.values(ctx, "settings", "global_variables", "sql_mode", "tx_isolation", "time_zone",
		"system_time_zone", "autocommit", "wait_timeout", "idle_transaction_timeout",
		"idle_write_transaction_timeout", "lock_wait_timeout", "innodb_rollback_on_timeout")
	if ok {
		judgeMySQLSettings(m.findings, x)
	}
}

func judgeMySQLSettings(f *findings, x map[string]string) {
	const check = "settings"
	fine := true
	note := func(found string) { f.note(check, found) }
	warn := func(found, do string) {
		fine = false
		f.warn(check, found, do)
	}
	number := func(name string) float64 {
		n, _ := strconv.ParseFloat(x[name], 64)
		return n
	}
	if wait := number("wait_timeout"); wait > 0 && wait < 60 {
		warn(fmt.Sprintf("wait_timeout is %g s: the server ends connections that are idle between "+
			"two heartbeats, and each heartbeat connects anew", wait),
			"SET GLOBAL wait_timeout = 600, or higher")
	}
	if idle := number("idle_transaction_timeout"); idle == 0 {
		note("idle_transaction_timeout is 0: a client that dies without a word inside a fenced " +
			"transaction keeps others from the lock until TCP gives it up; " +
			"let the app's sessions set it, such as 60")
	}
	if !strings.Contains(x["sql_mode"], "STRICT_") {
		note(fmt.Sprintf("sql_mode is %q, which is not strict: the lock sets its own; "+
			"the app's statements cut texts without an error", x["sql_mode"]))
	}
	if x["tx_isolation"] == "SERIALIZABLE" {
		warn("tx_isolation is SERIALIZABLE: a transaction of the app's that only reads the "+
			"lock's tables delays heartbeats",
			"SET GLOBAL tx_isolation = 'READ-COMMITTED', or let nobody read these tables in a "+
				"transaction; status and the page do not")
	}
	if x["autocommit"] == "OFF" {
		note("autocommit is OFF: the lock sets its own; a shell that reads a table keeps a " +
			"transaction open, and migrations wait for it")
	}
	zone := x["time_zone"]
	if zone == "SYSTEM" {
		zone += " (" + x["system_time_zone"] + ")"
	}
	f.note(check, "time_zone is "+zone+"; the times in the tables are UTC, whatever it is")
	if fine {
		f.ok(check, "nothing that hurts the lock")
	}
}

func (m mariadb) checkConnections(ctx context.Context) {
	const check = "connections"
	x, ok := m.values(ctx, check, "global_variables", "max_connections")
	if !ok {
		return
	}
	status, ok := m.values(ctx, check, "global_status", "threads_connected")
	if !ok {
		return
	}
	var ofUser, userMost int
	if !m.row(ctx, check, `SELECT count(*), @@max_user_connections
FROM information_schema.processlist
WHERE user = substring_index(current_user(), '@', 1)`, &ofUser, &userMost) {
		return
	}
	most, _ := strconv.Atoi(x["max_connections"])
	used, _ := strconv.Atoi(status["threads_connected"])
	free := most - used
	found := fmt.Sprintf("%d of the server's %d connections are used", used, most)
	if userMost > 0 && userMost-ofUser < free {
		free = userMost - ofUser
		found = fmt.Sprintf("%d of the user's %d connections are used", ofUser, userMost)
	}
	if free < m.limits.freeConnections {
		m.warn(check, found+fmt.Sprintf(": %d are free", max(free, 0)),
			"each replica needs one for the lock, the leader a few more: "+
				"make the apps' pools smaller, or raise the limit")
		return
	}
	m.ok(check, found)
}

// checkTables reports whether the tables are there.
func (m mariadb) checkTables(ctx context.Context) bool {
	engines, err := m.lines(ctx, `
SELECT concat(table_name, ' (', coalesce(engine, 'no engine'), ')') FROM information_schema.tables
WHERE table_schema = database() AND (table_name LIKE 'scheduler\_%' OR table_name LIKE 'named\_%'
      OR table_name = 'queue_tasks') AND table_type = 'BASE TABLE' AND engine IS NOT NULL
      AND (engine <> 'InnoDB' OR table_name = 'scheduler_lock') ORDER BY 1`)
	if err != nil {
		m.note("tables", "not looked at: "+err.Error())
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
			"may not see them", m.config.DBName, m.config.User),
			"start the app, which makes them, or run `schedlock migrate`; "+
				"if the app runs, this is not its database")
	case len(others) > 0:
		m.fail("tables", "they have engines without transactions: "+list(others),
			"somebody has changed them: ALTER TABLE … ENGINE = InnoDB, with the app stopped")
	default:
		m.ok("tables", fmt.Sprintf("they are in database %q, and InnoDB's", m.config.DBName))
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
	long, err := m.lines(ctx, sqlLongMySQL, m.limits.longLock.Microseconds())
	switch {
	case err != nil && strings.Contains(err.Error(), "PROCESS"):
		m.note(check, "not looked at: it needs the right PROCESS")
	case err != nil:
		m.note(check, "not looked at: "+err.Error())
	case len(long) > 0:
		m.warn(check, fmt.Sprintf("open for more than %s: %s", m.limits.longLock, list(long)),
			"one that is fenced keeps others from the lock, and one that has read its tables "+
				"keeps migrations waiting; to end it: KILL and the connection's number")
	default:
		m.ok(check, fmt.Sprintf("none is open for more than %s", m.limits.longLock))
	}
}
