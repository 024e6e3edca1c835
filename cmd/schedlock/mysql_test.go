package main

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock"
)

// migratedMaria is a database of the shared server of MariaDB that has its tables.
func migratedMaria(t testing.TB) string {
	t.Helper()
	url := mytest.Shared(t).Database(t)
	migrateServer(t, url)
	return url
}

// alter runs statements on any database.
func alter(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	switch {
	case isPostgres(dsn):
		execute(t, dsn, statements...)
	case !isMySQL(dsn):
		edit(t, dsn, statements...)
	default:
		db := mytest.Shared(t).Open(t, dsn)
		for _, s := range statements {
			_, err := db.Exec(s)
			require.NoError(t, err, s)
		}
	}
}

// openAs opens a database as an app does.
func openAs(t testing.TB, dsn string) store {
	t.Helper()
	s, err := (&tool{dsn: dsn}).openAndMigrate(bg, discard)
	require.NoError(t, err)
	return s
}

// leadOn makes this process the leader.
func leadOn(t testing.TB, dsn string) *schedlock.Lease {
	t.Helper()
	store := openAs(t, dsn)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return silentLease(t, store)
}

// inAll is inBoth, and on a new database of MariaDB without tables.
func inAll(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	inBoth(t, test)
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		test(t, mytest.Shared(t).Database(t))
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
	lease := leadOn(t, databaseURL)
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
