//go:build unix

package migrations_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/migrations"
)

func openMySQL(t *testing.T, url string, settings ...string) *sql.DB {
	t.Helper()
	db := mytest.Shared(t).Open(t, url, settings...)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func upMySQL(t *testing.T, db *sql.DB) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	return migrations.Up(ctx, db, migrations.MySQL)
}

// schemaMySQL is all columns, indexes and constraints of a database, its versions, and the rows
// that the migrations make. What goose has noted may lack the last one: it would be repeated.
func schemaMySQL(t *testing.T, db *sql.DB) string {
	t.Helper()
	return strings.Join(lines(t, db,
		`SELECT concat_ws(' ', table_name, column_name, ordinal_position, column_type, is_nullable,
		 coalesce(column_default, ''), coalesce(collation_name, ''), extra, column_comment)
		 FROM information_schema.columns WHERE table_schema = database()
		 ORDER BY table_name, ordinal_position`,
		`SELECT concat_ws(' ', table_name, index_name, seq_in_index, column_name, non_unique)
		 FROM information_schema.statistics WHERE table_schema = database()
		 ORDER BY table_name, index_name, seq_in_index`,
		`SELECT concat_ws(' ', table_name, constraint_name, check_clause)
		 FROM information_schema.check_constraints WHERE constraint_schema = database()
		 ORDER BY table_name, constraint_name`,
		`SELECT concat_ws(' ', table_name, constraint_name, referenced_table_name, delete_rule)
		 FROM information_schema.referential_constraints
		 WHERE constraint_schema = database() ORDER BY table_name, constraint_name`,
		`SELECT concat_ws(' ', version, min_code, server) FROM scheduler_lock_schema ORDER BY version`,
		`SELECT concat_ws(' ', term, token, '.') FROM scheduler_fence`,
		`SELECT concat_ws(' ', id, term, server) FROM named_locks_floor`), "\n")
}

func TestMySQLUpCommitsWhatTheSettingsOfTheAppWouldNot(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"autocommit=0", "sql_safe_updates=1"} {
		url := mytest.Shared(t).Database(t)
		require.NoError(t, upMySQL(t, openMySQL(t, url, setting)), setting)
		require.Equal(t, migrations.Latest, versionOf(t, openMySQL(t, url), migrations.MySQL),
			setting)
	}
}

func TestMySQLUpCreatesTheTables(t *testing.T) {
	t.Parallel()
	db := openMySQL(t, mytest.Shared(t).Database(t))
	db.SetMaxOpenConns(1) // Up needs one at a time
	before := lines(t, db, `SELECT @@lock_wait_timeout, @@sql_mode, @@time_zone`)
	require.Zero(t, versionOf(t, db, migrations.MySQL))
	for range 2 {
		require.NoError(t, upMySQL(t, db))
	}
	require.Equal(t, migrations.Latest, versionOf(t, db, migrations.MySQL))
	require.Equal(t, before, lines(t, db, `SELECT @@lock_wait_timeout, @@sql_mode, @@time_zone`),
		"a setting of the migrations stayed in the app's session")
	require.Equal(t, []string{"0"}, lines(t, db,
		`SELECT count(*) FROM information_schema.columns
		 WHERE table_schema = database() AND column_comment = ''
		 AND table_name <> 'scheduler_lock_migrations'`), "columns without a comment")
	require.Equal(t, []string{"0"}, lines(t, db,
		`SELECT count(*) FROM information_schema.columns
		 WHERE table_schema = database() AND collation_name <> 'utf8mb4_nopad_bin'`))
	tables := append(slices.Clone(ourTables), "named_locks_fence", "named_locks_fenced",
		"scheduler_fence", "scheduler_fenced", "scheduler_gate", "scheduler_gated")
	slices.Sort(tables)
	require.Equal(t, tables, lines(t, db, `SELECT table_name FROM information_schema.tables
		WHERE table_schema = database() ORDER BY 1`))
}

func TestMySQLTwentyStartAtOnce(t *testing.T) {
	t.Parallel()
	url := mytest.Shared(t).Database(t)
	twentyStart(t, migrations.MySQL, func() *sql.DB { return openMySQL(t, url) })
	db := openMySQL(t, url)
	assertSameAsNew(t, db)
	require.Equal(t, applied(), lines(t, db,
		"SELECT version_id FROM scheduler_lock_migrations ORDER BY id"), "one at a time")
}

// assertSameAsNew compares a database with one that was migrated at once.
func assertSameAsNew(t *testing.T, db *sql.DB) {
	t.Helper()
	fresh := openMySQL(t, mytest.Shared(t).Database(t))
	require.NoError(t, upMySQL(t, fresh))
	require.Equal(t, schemaMySQL(t, fresh), schemaMySQL(t, db))
}

// A mortal connects to the server, and dies after some statements.
type mortal struct {
	driver.Connector
	left *int
}

func (m mortal) Connect(ctx context.Context) (driver.Conn, error) {
	if *m.left < 0 {
		return nil, errDied
	}
	conn, err := m.Connector.Connect(ctx)
	return mortalConn{conn, m.left}, err
}

var errDied = errors.New("it died")

// mortalConn has no more than Prepare, so each statement goes through it.
type mortalConn struct {
	driver.Conn
	left *int
}

func (m mortalConn) Prepare(query string) (driver.Stmt, error) {
	if *m.left--; *m.left < 0 {
		_ = m.Close()
		return nil, errDied
	}
	return m.Conn.Prepare(query)
}

func connectorOf(t *testing.T, config *mysql.Config) driver.Connector {
	t.Helper()
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	return connector
}

func TestMySQLADeathAfterEachStatementLetsTheNextGoOn(t *testing.T) {
	t.Parallel()
	s := mytest.Shared(t)
	url := s.Database(t)
	config, err := mysql.ParseDSN(s.DSN(mytest.Name(url)))
	require.NoError(t, err)
	connector := connectorOf(t, config)
	// Each one dies a statement later than the one before, on what that has left.
	deaths := 0
	for ; ; deaths++ {
		left := deaths
		db := sql.OpenDB(mortal{connector, &left})
		err := upMySQL(t, db)
		require.NoError(t, db.Close())
		if err == nil {
			break
		}
		require.ErrorIs(t, err, errDied)
	}
	t.Logf("%d deaths", deaths)
	require.Greater(t, deaths, 20)
	assertSameAsNew(t, openMySQL(t, url))
	want := schemaMySQL(t, openMySQL(t, url))

	// Each one dies on an empty database.
	step := 5
	if missing.Full() {
		step = 1
	}
	for n := 0; ; n += step {
		url := s.Database(t)
		config := config.Clone()
		config.DBName = mytest.Name(url)
		left := n
		db := sql.OpenDB(mortal{connectorOf(t, config), &left})
		err := upMySQL(t, db)
		require.NoError(t, db.Close())
		if err == nil {
			break // it had all the statements that it needs
		}
		require.ErrorIs(t, err, errDied)
		after := openMySQL(t, url)
		require.NoError(t, upMySQL(t, after), "after %d statements", n)
		require.Equal(t, want, schemaMySQL(t, after), "after %d statements", n)
	}
}

func TestMySQLWhoWaitsForAnotherThatMigratesSaysSo(t *testing.T) {
	t.Parallel()
	db := openMySQL(t, mytest.Shared(t).Database(t))
	other, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer other.Close()
	_, err = other.ExecContext(t.Context(),
		`DO get_lock(concat('schedlock-migrate-', md5(database())), 0)`)
	require.NoError(t, err)
	waitsFor(t, db, "wait for the process that migrates database")
	_, err = other.ExecContext(t.Context(), `DO release_all_locks()`)
	require.NoError(t, err)
	require.NoError(t, upMySQL(t, db))
}

// waitsFor tries to migrate until the deadline, which a slow machine may reach too early, and wants
// the error to say what it has waited for.
func waitsFor(t *testing.T, db *sql.DB, what string) {
	t.Helper()
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := migrations.Up(ctx, db, migrations.MySQL)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if strings.Contains(err.Error(), what) {
			return
		}
		require.Less(t, limit, 10*time.Second, "%v", err)
	}
}

// A deadNetwork lets some writes through, and then nothing.
type deadNetwork struct {
	mu    sync.Mutex
	left  int
	conns []net.Conn
}

type deadConn struct {
	net.Conn
	network *deadNetwork
}

func (n *deadNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, conn)
	return deadConn{conn, n}, nil
}

func (c deadConn) Write(b []byte) (int, error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.network.left--; c.network.left < 0 {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestMySQLAServerThatAnswersNoMoreIsWaitedForUntilTheDeadline(t *testing.T) {
	t.Parallel()
	s := mytest.Shared(t)
	url := s.Database(t)
	config, err := mysql.ParseDSN(s.DSN(mytest.Name(url)))
	require.NoError(t, err)
	assertWaitsForNobody(t, migrations.MySQL, func(network *deadNetwork) driver.Connector {
		config := config.Clone()
		config.DialFunc = network.dial
		return connectorOf(t, config)
	})
	require.NoError(t, upMySQL(t, openMySQL(t, url)))
}

func assertWaitsForNobody(t *testing.T, dialect migrations.Dialect,
	connect func(*deadNetwork) driver.Connector) {
	t.Helper()
	for _, writes := range missing.Some(12, 1, 3, 6, 30, 40, 80, 21) {
		network := deadNetwork{left: writes}
		db := sql.OpenDB(connect(&network))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- migrations.Up(ctx, db, dialect) }()
		select {
		case err := <-done:
			require.ErrorIs(t, err, context.DeadlineExceeded, "after %d", writes)
		case <-time.After(20 * time.Second):
			t.Fatal("it waits for ever")
		}
		network.mu.Lock()
		for _, conn := range network.conns {
			_ = conn.Close() // to say good-bye takes a driver seconds
		}
		network.mu.Unlock()
		require.NoError(t, db.Close())
	}
}

func TestMySQLEveryVersionUpwardKeepsItsRows(t *testing.T) {
	t.Parallel()
	for _, version := range missing.Some(earlier()...) {
		db := openMySQL(t, mytest.Shared(t).Database(t))
		applyVersion(t, db, migrations.MySQL, version)
		assertUpgradeKeeps(t, db, migrations.MySQL)
		require.Equal(t, migrations.Latest, versionOf(t, db, migrations.MySQL))
	}
}

// A statement that changes a table gives way to whoever reads it: so heartbeats never wait.
func TestMySQLAMigrationThatCannotGoOnLetsHeartbeatsPass(t *testing.T) {
	t.Parallel()
	db := openMySQL(t, mytest.Shared(t).Database(t), "lock_wait_timeout=0")
	require.NoError(t, upMySQL(t, db))
	exec1(t, db, `INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token,
		term, beat, state, ttl_ms, renew_deadline_ms, heartbeat_ms)
		VALUES (1, 1, 'h', now(6), now(6), 't', 1, 0, 'leading', 1, 1, 1)`)
	exec1(t, db, `ALTER TABLE scheduler_lock DROP COLUMN app`)
	exec1(t, db, `DELETE FROM scheduler_lock_schema WHERE version >= 10`)
	exec1(t, db, `DELETE FROM scheduler_lock_migrations WHERE version_id >= 10`)
	reader, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var beat int
	require.NoError(t, reader.QueryRow(`SELECT beat FROM scheduler_lock`).Scan(&beat))

	// On a machine that stands still it may not come to try in time.
	for limit := time.Second; ; limit *= 2 {
		beats, err := beatsWhile(t, db, limit)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if beats > 10 && strings.Contains(err.Error(), "1205") { // it has tried, and gave way
			break
		}
		require.Less(t, limit, time.Minute, "%d heartbeats: %v", beats, err)
	}
	require.NoError(t, reader.Rollback())
	require.NoError(t, upMySQL(t, db))
}

// beatsWhile counts the heartbeats while somebody tries to migrate for so long.
func beatsWhile(t *testing.T, db *sql.DB, limit time.Duration) (beats int, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- migrations.Up(ctx, db, migrations.MySQL) }()
	for ; ; beats++ {
		select {
		case err := <-done:
			return beats, err
		default:
			exec1(t, db, `UPDATE scheduler_lock SET beat = beat + 1`)
		}
	}
}

func TestMySQLErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	s := mytest.Shared(t)
	url := s.Database(t)
	name := mytest.Name(url)
	s.Exec(t, fmt.Sprintf(`CREATE USER '%[1]s_ro' IDENTIFIED BY 'hush'`, name))
	s.Exec(t, fmt.Sprintf(`GRANT SELECT ON %[1]s.* TO '%[1]s_ro'`, name))
	fails := func(dsn string, opts []migrations.Option, want ...string) {
		t.Helper()
		db, err := sql.Open("mysql", dsn)
		require.NoError(t, err)
		defer db.Close()
		err = migrations.Up(t.Context(), db, migrations.MySQL, opts...)
		for _, text := range want {
			require.ErrorContains(t, err, text)
		}
		require.NotContains(t, err.Error(), "hush")
	}
	address := func(user string) string {
		return fmt.Sprintf("%s@tcp(127.0.0.1:%d)/", user, s.Port())
	}
	fails(s.DSN(""), nil, "no database", "name one in the URL")
	fails(s.DSN("none_such"), nil, "none_such", "create the database")
	fails(address(name+"_ro:hush")+name, nil, fmt.Sprintf("database %q on ", name), "GRANT CREATE")
	fails(address(name+"_ro:hushh")+name, nil, "check the user and the password")
	fails(s.DSN(name), []migrations.Option{migrations.WithSchema("app")}, `"app"`,
		"name another database in the URL")
}

func init() { roles["mysql"] = replicaOfMySQL }

// replicaOfMySQL is replica on MariaDB, with the driver's own settings.
func replicaOfMySQL(dsn string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_ = mysql.SetLogger(&mysql.NopLogger{}) // what it would say comes as an error, too
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return migrateOnce(db, migrations.MySQL, time.Now())
}

// GET_LOCK, which lets one process migrate at a time, is known on its node only.
func TestTwentyProcessesStartAtOnceOnThreeNodes(t *testing.T) {
	missing.OnlyFull(t, "starts three nodes and twenty processes; by default it is one server")
	nodes := mytest.Galera(t, 3)
	defer func() {
		for i, node := range nodes {
			if t.Failed() {
				t.Log("node", i, lines(t, node.Open(t, node.URL("")), `SELECT concat_ws(' ',
					id, db, command, time, state, info) FROM information_schema.processlist`))
			}
		}
	}()
	slowest := time.Duration(0)
	for round := range 5 {
		name := fmt.Sprint("round_", round)
		nodes[0].Exec(t, "CREATE DATABASE "+name)
		var dsns []string
		for i := range 20 {
			dsns = append(dsns, nodes[i%len(nodes)].DSN(name))
		}
		slowest = max(slowest, startAll(t, "mysql", dsns, func() {}))
		fresh := fmt.Sprint("fresh_", round)
		nodes[0].Exec(t, "CREATE DATABASE "+fresh)
		want := nodes[0].Open(t, nodes[0].URL(fresh), "wsrep_sync_wait=7")
		require.NoError(t, upMySQL(t, want))
		for _, node := range nodes {
			db := node.Open(t, node.URL(name), "wsrep_sync_wait=7")
			require.Equal(t, schemaMySQL(t, want), schemaMySQL(t, db), "round %d", round)
			require.NoError(t, upMySQL(t, db))
		}
	}
	t.Logf("the slowest needed %v", slowest)

	// A node that has no cluster yet may have one soon.
	nodes[2].Exec(t, "SET GLOBAL wsrep_cluster_address = ''")
	waitsFor(t, nodes[2].Open(t, nodes[2].URL("round_0")), "Error 1047")
}
