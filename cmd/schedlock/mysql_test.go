package main

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/mysql"
)

// migratedMaria is a database of the shared server of MariaDB that has its tables.
func migratedMaria(t testing.TB) string {
	t.Helper()
	url := mytest.Shared(t).Database(t)
	migrateServer(t, url)
	return url
}

func executeMaria(t testing.TB, databaseURL string, statements ...string) {
	t.Helper()
	db := mytest.Shared(t).Open(t, databaseURL)
	for _, s := range statements {
		_, err := db.Exec(s)
		require.NoError(t, err, s)
	}
}

func leadMaria(t testing.TB, databaseURL string) *schedlock.Lease {
	t.Helper()
	store, err := mysql.Open(bg, databaseURL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return silentLease(t, store)
}

// inAll is inBoth, and on a new database of MariaDB.
func inAll(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	inBoth(t, test)
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		test(t, migratedMaria(t))
	})
}

// fenceMaria runs the statement of schedlock fence in a transaction whose snapshot is
// older than what others have committed since, and returns how many rows it finds.
func fenceMaria(t testing.TB, databaseURL, statement string) (n int64) {
	t.Helper()
	tx, err := mytest.Shared(t).Open(t, databaseURL).BeginTx(bg,
		&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	rows, err := tx.Query(statement)
	require.NoError(t, err, statement)
	for rows.Next() {
		n++
	}
	require.NoError(t, rows.Err(), statement)
	require.NoError(t, rows.Close())
	left := 1
	require.NoError(t, tx.QueryRow(`SELECT (SELECT count(*) FROM scheduler_fenced)
+ (SELECT count(*) FROM named_locks_fenced)`).Scan(&left))
	require.Zero(t, left, "a row of the fence is left behind")
	return n
}

// A statement of schedlock fence sees what was committed after the snapshot of its
// transaction, and keeps others from the lock until that ends.
func TestTheFenceOnMariaDBAndTheSnapshotOfItsTransaction(t *testing.T) {
	t.Parallel()
	databaseURL := migratedMaria(t)
	lease := leadMaria(t, databaseURL)
	db := mytest.Shared(t).Open(t, databaseURL)
	var token string
	require.NoError(t, db.QueryRow(`SELECT token FROM scheduler_lock`).Scan(&token))
	tool := &tool{dsn: databaseURL, lookup: func(name string) (string, bool) {
		return map[string]string{variableKind: kindScheduler, variableToken: token,
			variableTerm: fmt.Sprint(lease.Term())}[name], true
	}}
	statement, err := tool.fence()
	require.NoError(t, err)
	begin := func() *sql.Tx {
		tx, err := db.BeginTx(bg, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })
		var n int
		require.NoError(t, tx.QueryRow(`SELECT count(*) FROM scheduler_fence`).Scan(&n))
		return tx
	}
	finds := func(tx *sql.Tx) bool {
		rows, err := tx.Query(statement)
		if err != nil { // the server has seen that the snapshot is too old
			require.ErrorContains(t, err, "1020")
			return false
		}
		defer rows.Close()
		return rows.Next()
	}
	fenced, old := begin(), begin()
	require.True(t, finds(fenced))
	_, err = db.Exec(`SET STATEMENT innodb_lock_wait_timeout = 0 FOR DELETE FROM scheduler_fence`)
	require.ErrorContains(t, err, "1205", "another may take the lock meanwhile")
	require.NoError(t, fenced.Commit())
	require.NoError(t, lease.Release(bg))
	require.False(t, finds(old))
	require.False(t, finds(begin()))
}

func TestStatusOfEveryMariaDB(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	server.Exec(t, `CREATE OR REPLACE USER 'needs_password'@'127.0.0.1' IDENTIFIED BY 'right'`)
	as := func(url, user string) string {
		return strings.Replace(url, "root@", user+":"+secret+"@", 1)
	}
	free, held := migratedMaria(t), migratedMaria(t)
	lease := leadMaria(t, held)
	server.Exec(t, `CREATE OR REPLACE USER 'app'@'127.0.0.1' IDENTIFIED BY 'ge/heim'`)
	server.Exec(t, `GRANT ALL ON `+mytest.Name(held)+`.* TO 'app'@'127.0.0.1'`)
	driverDSN := strings.Replace(server.DSN(mytest.Name(held)), "root@", "app:ge/heim@", 1)
	silent, deleted := migratedMaria(t), migratedMaria(t)
	leadMaria(t, silent)
	executeMaria(t, silent,
		`UPDATE scheduler_lock SET heartbeat_at = utc_timestamp(6) - INTERVAL 1 HOUR`)
	leadMaria(t, deleted)
	executeMaria(t, deleted, `DELETE FROM scheduler_lock`)
	newer, older := migratedMaria(t), migratedMaria(t)
	executeMaria(t, newer, `INSERT INTO scheduler_lock_schema (version, min_code) VALUES (99, 98)`)
	executeMaria(t, older, fmt.Sprintf(`DELETE FROM scheduler_lock_schema WHERE version = %d`,
		migrations.Latest))
	for _, tc := range []struct {
		name, url string
		code      int
		says      []string
	}{
		{"free", free, exitNothing, []string{"free: nobody has ever held"}},
		{"held", as(held, "app"), exitDone, []string{"held: ", fmt.Sprint(lease.Term())}},
		{"held, with a DSN of the driver", driverDSN, exitDone, []string{"held: "}},
		{"stale", silent, exitStale, []string{"stale: ", "last heartbeat was 1h"}},
		{"no row", deleted, exitStale, []string{"not free: ", "has no end"}},
		{"newer tables", newer, exitUnknown, []string{"needs code of version 98"}},
		{"older tables", older, exitUnknown, []string{"older than this tool", "schedlock migrate"}},
		{"no tables", server.Database(t), exitUnknown, []string{"has no scheduler tables",
			"schedlock migrate"}},
		{"down", as("mysql://root@127.0.0.1:1/app", "app"), exitUnknown,
			[]string{"127.0.0.1:1", "see that the server runs"}},
		{"unknown host", as("mysql://root@no-such-host.invalid/app", "app"), exitUnknown,
			[]string{"no-such-host.invalid"}},
		{"unknown database", server.URL("nowhere"), exitUnknown,
			[]string{`database "nowhere"`, "create the database"}},
		{"wrong password", as(free, "needs_password"), exitUnknown,
			[]string{`check the password of user "needs_password"`}},
		{"a slash in the password of a DSN without a database", "app:ge/heim@tcp(127.0.0.1:1)",
			exitUsage, []string{"address of a server"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := call(t, "status", "--db", tc.url)
			assert.Equal(t, tc.code, r.code, r)
			first, _, _ := strings.Cut(r.out+r.err, "\n")
			for _, s := range tc.says {
				assert.Contains(t, first, s)
			}
			j := call(t, "status", "--db", tc.url, "--json")
			assert.Equal(t, tc.code, j.code)
			all := r.out + r.err + j.out + j.err + call(t, "doctor", "--db", tc.url).out
			assert.NotContains(t, all, secret)
			assert.NotContains(t, all, "heim")
		})
	}
}

// Every command that works on PostgreSQL works on MariaDB.
func TestTheCommandsOnMariaDB(t *testing.T) {
	t.Parallel()
	databaseURL := mytest.Shared(t).Database(t)
	with := func(args ...string) []string { return append(args, "--db", databaseURL) }
	first := startReplica(t, databaseURL, "20s")
	was := leads(t, databaseURL, first)
	second := startReplica(t, databaseURL, "20s")
	w := startWatch(t, databaseURL)
	w.await(t, "start", was.Lock.Term)
	var r releaseJSON
	strict(t, expect(t, exitDone, with("release", "--force", "--yes", "--by", "ann", "--reason",
		"to see", "--wait", patience.String(), "--json")...), &r)
	assert.True(t, r.Ended)
	assert.Equal(t, "revoked", r.Reason)
	now := leads(t, databaseURL, second)
	w.await(t, "ended", was.Lock.Term)
	w.await(t, "leader", now.Lock.Term)
	assert.Equal(t, exitDone, w.stop(t))
	out := expect(t, exitDone, with("history", "-o", "wide")...)
	assert.Contains(t, out, "by ann: to see")
	assert.Contains(t, out, fmt.Sprint(was.Lock.Term))

	var asked requestJSON
	strict(t, expect(t, exitDone, with("run", "work", "--by", "ann", "--wait", patience.String(),
		"--json")...), &asked)
	assert.EqualValues(t, "done", asked.Run.Status)
	for _, command := range []string{"runs", "jobs"} {
		assert.Contains(t, expect(t, exitDone, with(command)...), "work")
	}
	expect(t, exitDone, with("pause", "work", "--by", "ann", "--reason", "a look")...)
	assert.Contains(t, expect(t, exitDone, with("jobs", "-o", "wide")...), "a look")
	expect(t, exitDone, with("resume", "work", "--by", "ann")...)
	expect(t, exitDone, with("reset-cursor", "work", "--by", "ann")...)
	assert.Contains(t, expect(t, exitDone, with("audit")...), "ann")
	expect(t, exitDone, with("locks")...)
	expect(t, exitDone, with("queue")...)
	call(t, with("replicas")...)
	report := call(t, with("doctor")...)
	assert.Equal(t, exitNothing, report.code, report) // the test server writes to no disk
	assert.NotContains(t, report.out, "not looked at")
	assert.Contains(t, report.out, "durability")
}

// A read-only server answers, and takes no orders.
func TestStatusOfAReadOnlyMariaDB(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	databaseURL := server.Database(t)
	migrateServer(t, databaseURL)
	server.Exec(t, `CREATE USER 'app'@'127.0.0.1'`)
	server.Exec(t, `GRANT ALL ON `+mytest.Name(databaseURL)+`.* TO 'app'@'127.0.0.1'`)
	server.Exec(t, `SET GLOBAL read_only = ON`)
	url := strings.Replace(databaseURL, "root@", "app@", 1)
	assert.Contains(t, expect(t, exitNothing, "status", "--db", url), "free")
	assert.Contains(t, expect(t, exitUnknown, "pause", "--all", "--db", url), "read-only")
	server.Kill(t)
	assert.Contains(t, expect(t, exitUnknown, "status", "--db", url), "see that the server runs")
}

func TestMariaDBHasNoSchemas(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"mysql://app@db/app", "app:secret/it@tcp(db)/app"} {
		says := expect(t, exitUsage, "status", "--schema", "billing", "--db", dsn)
		assert.Contains(t, says, "name another database in --db")
		assert.NotContains(t, says, "secret")
		assert.True(t, isAddress(dsn))
	}
}
