package doctor

import (
	"database/sql"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/mysql"
)

// mariadbOf is a new database of the server that has its tables.
func mariadbOf(t testing.TB, server *mytest.Server) string {
	t.Helper()
	dsn := server.Database(t)
	s, err := mysql.Open(bg, dsn)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(bg))
	require.NoError(t, s.Close())
	return dsn
}

func openMariaDB(t testing.TB, dsn string) *mysql.Store {
	t.Helper()
	s, err := mysql.Open(bg, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// roleOf makes a user, and returns the address with it.
func roleOf(t testing.TB, server *mytest.Server, dsn string) (name, as string) {
	t.Helper()
	name = mytest.Name(dsn) + "_app"
	server.Exec(t, fmt.Sprintf(`CREATE USER '%s'@'127.0.0.1' IDENTIFIED BY '%s'`, name, secret))
	return fmt.Sprintf("'%s'@'127.0.0.1'", name),
		strings.Replace(dsn, "root@", name+":hunter2%2Fsecret%40x@", 1)
}

// A server with the defaults of an installation, which mytest trades for speed.
func durableMariaDB(t testing.TB, settings ...string) *mytest.Server {
	t.Helper()
	return mytest.Start(t, append([]string{"--innodb-flush-log-at-trx-commit=1",
		"--innodb-doublewrite=ON"}, settings...)...)
}

func TestAHeldDatabaseOnMariaDBIsHealthy(t *testing.T) {
	t.Parallel()
	server := durableMariaDB(t)
	dsn := mariadbOf(t, server)
	store := openMariaDB(t, dsn)
	lead(t, store)
	conn := server.Open(t, dsn)
	state := func() (s string) { // nothing is written
		for _, query := range []string{`SELECT concat_ws(' ', term, token, beat, heartbeat_at)
FROM scheduler_lock`, `SELECT group_concat(term, token ORDER BY term) FROM scheduler_terms`,
			`SELECT group_concat(term, token) FROM scheduler_fence`,
			`SELECT count(*) FROM information_schema.tables`} {
			var one string
			require.NoError(t, conn.QueryRow(query).Scan(&one))
			s += one + "\n"
		}
		return s
	}
	before := state()
	r := examined(dsn)
	assert.Equal(t, before, state())
	healthy(t, r)
	for _, check := range []string{"connection", "version", "role of the server", "galera",
		"server clock", "durability", "replication", "settings", "connections", "tables", "grants",
		"transactions", "schema", "lock", "timing", "clock", "flapping"} {
		finding(t, r, check, OK)
	}
	finding(t, r, "settings", Note, "idle_transaction_timeout is 0")
	finding(t, r, "settings", OK, "the lock's own sessions have what they need")

	server.Exec(t, "SET GLOBAL read_only = ON")
	finding(t, examined(dsn), "role of the server", Error, "read_only is on", "primary")
	server.Exec(t, "SET GLOBAL read_only = OFF") // else the release is repeated for 5 s
}

func TestADroppedTableIsRestoredFromABackupOnMariaDB(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	dsn := mariadbOf(t, server)
	openMariaDB(t, dsn)
	db := server.Open(t, dsn)
	for _, table := range []string{"scheduler_jobs", "scheduler_lock"} {
		_, err := db.Exec("DROP TABLE " + table)
		require.NoError(t, err)
		finding(t, examined(dsn), "tables", Error, "restore a backup")
	}
}

func TestAMariaDBThatMayForget(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t, "--log-bin", "--server-id=7", "--binlog-format=STATEMENT",
		"--wait-timeout=20", "--sql-mode=", "--transaction-isolation=SERIALIZABLE", "--autocommit=0",
		"--idle-transaction-timeout=60", "--max-connections=12")
	dsn := server.Database(t)
	r := examined(dsn)
	found := text(r)
	for _, says := range []string{"durability: innodb_flush_log_at_trx_commit is 2",
		"durability: sync_binlog is 0", "durability: innodb_doublewrite is OFF",
		"settings: wait_timeout is 20 s", "settings: tx_isolation is SERIALIZABLE"} {
		assert.Contains(t, found, "warning  "+says)
	}
	for _, says := range []string{`settings: sql_mode is ""`, "settings: autocommit is OFF",
		"replication: the binary log is on"} {
		assert.Contains(t, found, "note     "+says)
	}
	assert.NotContains(t, found, "idle_transaction_timeout")
	finding(t, r, "replication", Error, "binlog_format is STATEMENT", "MIXED")
	finding(t, r, "tables", Error, "no tables of the lock", "schedlock migrate")

	for range 8 {
		require.NoError(t, server.Open(t, dsn).Ping())
	}
	finding(t, examined(dsn), "connections", Warning, "of the server's 12 connections",
		"pools smaller")
	server.Exec(t, "SET GLOBAL binlog_format = ROW")
	server.Exec(t, "SET GLOBAL rpl_semi_sync_master_enabled = ON")
	finding(t, examined(dsn), "replication", Note, "AFTER_COMMIT")
	server.Kill(t)
	finding(t, examined(dsn), "connection", Error, "nobody listens", "start the server")
}

func TestNoConnectionToMariaDB(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	dsn := server.Database(t)
	_, as := roleOf(t, server, dsn)
	replace := func(old, with string) string { return strings.Replace(as, old, with, 1) }
	noConnection(t, map[string][2]string{
		as:                           {"may not use the database", "GRANT"},
		replace("secret", "another"): {"password is wrong", "ALTER USER"},
		replace("_app:", "_none:"):   {"password is wrong", "ALTER USER"},
		replace("127.0.0.1", "no-such-host.invalid"):       {"host name is not known", "DNS"},
		replace(fmt.Sprintf(":%d/", server.Port()), ":1/"): {"nobody listens", "start"},
		as + "&tls=true": {"TLS does not work", "tls="},
		dsn + "&hush=1":  {"the server refuses a parameter of the address", "log"},
		strings.Replace(dsn, "/test_", "/nowhere_", 1): {"no such database", "create it"},
	})
	r := examined(replace("@127", "%ZZ@127"))
	finding(t, r, "database", Error, "cannot be taken apart")
	assert.NotContains(t, text(r), "hunter2")

	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	finding(t, examined("mysql://app@"+listener.Addr().String()+"/app?timeout=1s&readTimeout=1s"),
		"connection", Error)
}

func TestGrantsOnMariaDB(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	dsn := mariadbOf(t, server)
	name, as := roleOf(t, server, dsn)
	server.Exec(t, fmt.Sprintf("GRANT SELECT ON %s.* TO %s", mytest.Name(dsn), name))
	server.Exec(t, fmt.Sprintf("GRANT INSERT, UPDATE ON %s.scheduler_lock TO %s", mytest.Name(dsn),
		name))
	r := examined(as)
	f := finding(t, r, "grants", Error, fmt.Sprintf("GRANT DELETE ON `%s`.scheduler_lock TO %s",
		mytest.Name(dsn), name))
	assert.NotContains(t, f.Do, "INSERT, UPDATE, DELETE ON `"+mytest.Name(dsn)+"`.scheduler_lock ")
	finding(t, r, "transactions", Note, "GRANT PROCESS ON *.*")
	finding(t, r, "lock", Note) // it could be read
	server.Exec(t, fmt.Sprintf("ALTER USER %s WITH MAX_USER_CONNECTIONS 3", name))
	finding(t, examined(as), "connections", Warning, "of the user's 3 connections")
}

func TestTablesOfMariaDB(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	dsn := mariadbOf(t, server)
	db := server.Open(t, dsn)
	begin(t, db)
	limits := usual
	limits.longLock = 0
	var r Report
	require.Eventually(t, func() bool { // the server refreshes what it shows
		r = examine(bg, dsn, limits)
		return strings.Contains(text(r), "transactions: open for")
	}, 2*time.Minute, 100*time.Millisecond, "the transaction is not shown")
	finding(t, r, "transactions", Warning, "connection ", "root", "with locks", "KILL")

	_, err := server.Open(t, dsn).Exec(`ALTER TABLE named_locks_floor ENGINE = Aria`)
	require.NoError(t, err)
	finding(t, examined(dsn), "tables", Error, "named_locks_floor (Aria)", "InnoDB")
}

// begin leaves a transaction open that has locked the row of the fence.
func begin(t testing.TB, db *sql.DB) {
	t.Helper()
	tx, err := db.Begin()
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	rows, err := tx.Query(`SELECT term FROM scheduler_fence FOR UPDATE`)
	require.NoError(t, err)
	require.NoError(t, rows.Close())
}

func TestWhatANodeOfGaleraSaysOfItself(t *testing.T) {
	t.Parallel()
	node := map[string]string{"wsrep_on": "ON", "wsrep_ready": "ON", "wsrep_connected": "ON",
		"wsrep_cluster_status": "Primary", "wsrep_cluster_size": "3",
		"wsrep_local_state_comment": "Synced"}
	judged := func(name, value string) Report {
		x := maps.Clone(node)
		x[name] = value
		return found(func(f *findings) { judgeGalera(f, x) })
	}
	r := judged("", "")
	healthy(t, Report{Database: "x", Findings: r.Findings})
	finding(t, r, "galera", OK, "Synced in a Primary component of 3 nodes")
	finding(t, r, "galera", Note, "this node only")
	finding(t, judged("wsrep_cluster_status", "non-Primary"), "galera", Error, "majority", "bootstrap")
	finding(t, judged("wsrep_cluster_status", "Disconnected"), "galera", Error, "refuses")
	for _, name := range []string{"wsrep_ready", "wsrep_connected"} {
		finding(t, judged(name, "OFF"), "galera", Error, "not ready")
	}
	finding(t, judged("wsrep_local_state_comment", "Donor/Desynced"), "galera", Warning, "old rows")
	finding(t, judged("wsrep_cluster_size", "2"), "galera", Warning, "arbitrator")
	finding(t, judged("wsrep_on", "OFF"), "galera", OK, "not a node")
}

func TestSemiSynchronousReplication(t *testing.T) {
	t.Parallel()
	judged := func(point, status string) Report {
		return found(func(f *findings) {
			judgeReplication(f, map[string]string{"log_bin": "ON", "binlog_format": "MIXED",
				"rpl_semi_sync_master_enabled": "ON", "rpl_semi_sync_master_wait_point": point,
				"rpl_semi_sync_master_timeout": "10000", "rpl_semi_sync_master_clients": "0",
				"rpl_semi_sync_master_status": status})
		})
	}
	finding(t, judged("AFTER_SYNC", "ON"), "replication", OK, "10000 ms")
	finding(t, judged("AFTER_COMMIT", "ON"), "replication", Note, "AFTER_COMMIT")
	finding(t, judged("AFTER_SYNC", "OFF"), "replication", Warning, "off now, with 0 replicas")
}

func TestAnExaminationOfMariaDBEndsInTime(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	dsn := mariadbOf(t, server)
	_, err := server.Open(t, dsn).Exec(`LOCK TABLES scheduler_lock WRITE`)
	require.NoError(t, err)
	limits := usual
	limits.statement = time.Second
	finding(t, examine(bg, dsn, limits), "tables", Error, "cannot be read within 1s")
}

func TestTheSignOfDeathOnMariaDB(t *testing.T) {
	t.Parallel()
	dsn := mariadbOf(t, mytest.Shared(t))
	grace := schedlock.WithSessionGrace(5 * time.Second)
	lease := lead(t, openMariaDB(t, dsn), grace)
	finding(t, examined(dsn), "sign of death", Note, "after its TTL", "mysql.WithSessionSign")
	require.NoError(t, lease.Release(bg))

	store, err := mysql.Open(bg, dsn, mysql.WithSessionSign())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	lead(t, store, grace)
	finding(t, examined(dsn), "sign of death", OK, "wait for 5s only")
}
