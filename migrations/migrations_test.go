package migrations_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gofrs/flock"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
	_ "github.com/ncruces/go-sqlite3/vfs/memdb"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/migrations"
)

// ours is the DSN that our own stores use; plain is what an app may have.
func ours(path string) string {
	return "file:" + path +
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)&_txlock=immediate"
}

func plain(path string) string { return "file:" + path }

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func newPath(t *testing.T) string { return filepath.Join(pgtest.TempDir(t), "app.db") }

// migrated returns the path of a file with a current schema.
func migrated(t *testing.T) string {
	t.Helper()
	path := newPath(t)
	db, err := sql.Open("sqlite3", ours(path))
	require.NoError(t, err)
	require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
	require.NoError(t, db.Close())
	return path
}

func exec1(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// column returns the first column of all rows.
func column(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	require.NoError(t, err, query)
	defer rows.Close()
	all := []string{}
	for rows.Next() {
		var s string
		require.NoError(t, rows.Scan(&s))
		all = append(all, s)
	}
	require.NoError(t, rows.Err())
	return all
}

func version(t *testing.T, db *sql.DB) int64 {
	t.Helper()
	v, err := migrations.Version(t.Context(), db, migrations.SQLite)
	require.NoError(t, err)
	return v
}

// content reads files in another process: closing a descriptor of a database in this one could drop
// SQLite's locks.
func content(t *testing.T, paths ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cat", paths...).Output()
	require.NoError(t, err)
	return out
}

func TestUpCreatesTheTables(t *testing.T) {
	db := open(t, ours(newPath(t)))
	assert.Zero(t, version(t, db))
	require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
	assert.Equal(t, migrations.Latest, version(t, db))
	assertSchema(t, db)
}

var ourTables = []string{
	"named_locks", "named_locks_floor", "queue_tasks", "scheduler_jobs", "scheduler_lock",
	"scheduler_lock_migrations", "scheduler_lock_schema",
	"scheduler_pauses", "scheduler_requests", "scheduler_runs", "scheduler_terms",
}

// assertSchema checks everything that users of the tables rely on.
func assertSchema(t *testing.T, db *sql.DB) {
	t.Helper()
	want := map[string]string{
		"scheduler_lock": "id pid hostname created_at heartbeat_at token term beat state" +
			" ttl_ms renew_deadline_ms heartbeat_ms file_id grace_ms ttl_only app program",
		"scheduler_terms": "term token pid hostname acquired_at ended_at end_reason next_term" +
			" ttl_ms file_id revoked_at revoked_by revoke_reason ended_file_id app program",
		"scheduler_jobs": "job spec cursor_at updated_at" +
			" done_count failed_count failure_streak last_done_at last_failed_at last_error" +
			" done_us longest_us",
		"scheduler_runs": "id job scheduled_at started_at finished_at status term pid hostname" +
			" attempt error until count retry_at requested_by request_reason",
		"scheduler_requests":    "job requested_at requested_by reason",
		"scheduler_pauses":      "job paused_at paused_by reason resumed_at resumed_by",
		"scheduler_lock_schema": "version min_code",
		"named_locks": "kind name token term pid hostname acquired_at expires_at hold_until" +
			" boot_id expires_ms hold_ms ttl_ms ttl_of",
		"named_locks_floor": "id term timeline since",
		"queue_tasks": "seq queue id state retries_left attempts token boot_id visible_ms" +
			" visible_at last_error created_at updated_at",
	}
	for table, columns := range want {
		assert.Equal(t, strings.Fields(columns),
			column(t, db, "SELECT name FROM pragma_table_info('"+table+"') ORDER BY cid"), table)
		assert.Equal(t, []string{"1"},
			column(t, db, "SELECT strict FROM pragma_table_list WHERE name = '"+
				table+"'"), "%s must be STRICT", table)
	}
	assert.Equal(t, ourTables,
		column(t, db,
			`SELECT name FROM sqlite_master
				WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name`))
	assert.Equal(t, []string{
		"named_locks_expires_at", "queue_tasks_ended", "queue_tasks_last", "queue_tasks_ready",
		"queue_tasks_waiting",
		"scheduler_runs_in_progress", "scheduler_runs_retry_at", "scheduler_runs_scheduled_at",
	},
		column(t, db,
			`SELECT name FROM sqlite_master
				WHERE type = 'index' AND sql IS NOT NULL ORDER BY name`))
	assert.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"},
		column(t, db,
			"SELECT version_id FROM scheduler_lock_migrations WHERE is_applied ORDER BY id"))
	assert.Equal(t, []string{"1 1", "2 1", "3 1", "4 1", "5 1", "6 1", "7 1", "8 1", "9 1", "10 1"},
		column(t, db, "SELECT version || ' ' || min_code FROM scheduler_lock_schema"))
	assert.Equal(t, []string{"ok"}, column(t, db, "PRAGMA integrity_check"))
}

func TestTheShellShowsWhatAColumnIs(t *testing.T) {
	db := open(t, plain(migrated(t)))
	for _, ddl := range column(t, db,
		"SELECT sql FROM sqlite_master WHERE type = 'table' AND sql LIKE '%STRICT'") {
		for line := range strings.Lines(ddl) {
			if regexp.MustCompile(`^    [a-z]`).MatchString(line) {
				assert.Contains(t, line, " -- ", "a column without a comment")
			}
		}
	}
	shown := strings.Join(column(t, db, "SELECT sql FROM sqlite_master WHERE type = 'table'"), "\n")
	added := added(t, migrations.SQLite)
	require.NotEmpty(t, added)
	for _, name := range added {
		_, name, _ = strings.Cut(name, ".")
		assert.Regexp(t, `, `+name+` [^,]*/\* \w`, shown, "an added column without a comment")
	}
}

func TestTheTablesRefuseWhatMustNotBe(t *testing.T) {
	db := open(t, plain(migrated(t)))
	const (
		lock = `INSERT INTO scheduler_lock VALUES (%s, 1, 'a', 'x', 'x', 't', 1, 1, %s, 1, 1, %s,
			NULL, NULL, NULL, NULL, NULL)`
		term = `INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at,
			end_reason, next_term, ttl_ms, file_id)
			VALUES (%s, 't', 1, 'a', 'x', %s, %s, NULL, 1, NULL)`
		run = `INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt)
			VALUES ('j', %s, %s, 1, 1, 'a', 1)`
		pause = `INSERT INTO scheduler_pauses VALUES (%s, 'x', 'me', '', %s, %s)`
		named = `INSERT INTO named_locks (kind, name, term, pid, hostname, acquired_at, expires_at,
			hold_until, boot_id, expires_ms, hold_ms)
			VALUES (%s, %s, 1, 1, 'a', 'x', 'x', %s, 'b', 1, %s)`
		task = `INSERT INTO queue_tasks (queue, id, state, retries_left, token, boot_id, visible_ms,
			visible_at, created_at, updated_at)
			VALUES ('q', %s, %s, %s, %s, 'x', 'x')`
	)
	for _, good := range []string{
		fmt.Sprintf(lock, "1", "'leading'", "1"),
		fmt.Sprintf(term, "1", "NULL", "NULL"),
		fmt.Sprintf(term, "2", "'x'", "'proven dead'"),
		fmt.Sprintf(run, "'x'", "'in_progress'"),
		fmt.Sprintf(run, "'y'", "'skipped'"),
		fmt.Sprintf(pause, "''", "NULL", "NULL"),
		fmt.Sprintf(pause, "'j'", "'x'", "'me'"),
		`INSERT INTO scheduler_requests VALUES ('j', 'x', 'me', '')`,
		fmt.Sprintf(named, "'lock'", "'a'", "NULL", "NULL"),
		fmt.Sprintf(named, "'task'", "'a'", "'x'", "1"),
		fmt.Sprintf(named, "'timeout'", `printf('%.200c', 'a')`, "NULL", "NULL"),
		fmt.Sprintf(task, "'a'", "'pending'", "0", "NULL, NULL, NULL, NULL"),
		fmt.Sprintf(task, "'b'", "'in_progress'", "3", "'t', 'b', 1, 'x'"),
		fmt.Sprintf(task, "'c'", "'done'", "3", "'t', NULL, NULL, NULL"),
	} {
		exec1(t, db, good)
	}
	for name, bad := range map[string]string{
		"a second lock row":       fmt.Sprintf(lock, "2", "'leading'", "1"),
		"the same lock row again": fmt.Sprintf(lock, "1", "'leading'", "1"),
		"an unknown state":        `UPDATE scheduler_lock SET state = 'asleep'`,
		"a float":                 `UPDATE scheduler_lock SET ttl_ms = 1.5`,
		"a text for a number":     `UPDATE scheduler_lock SET beat = 'x'`,
		"no token":                `UPDATE scheduler_lock SET token = NULL`,
		"an end without a reason": fmt.Sprintf(term, "3", "'x'", "NULL"),
		"a reason without an end": fmt.Sprintf(term, "3", "NULL", "'lost'"),
		"an unknown reason":       fmt.Sprintf(term, "3", "'x'", "'bored'"),
		"a term twice":            fmt.Sprintf(term, "1", "NULL", "NULL"),
		"a run twice":             fmt.Sprintf(run, "'x'", "'done'"),
		"an unknown status":       fmt.Sprintf(run, "'z'", "'maybe'"),
		"a pause twice":           fmt.Sprintf(pause, "''", "NULL", "NULL"),
		"a resumption by nobody":  fmt.Sprintf(pause, "'k'", "'x'", "NULL"),
		"a request twice":         `INSERT INTO scheduler_requests VALUES ('j', 'x', 'you', '')`,
		"a request of nobody":     `INSERT INTO scheduler_requests VALUES ('j', 'y', NULL, '')`,
		"an unknown kind":         fmt.Sprintf(named, "'clock'", "'a'", "NULL", "NULL"),
		"a name twice":            fmt.Sprintf(named, "'lock'", "'a'", "NULL", "NULL"),
		"a lock without a name":   fmt.Sprintf(named, "'lock'", "''", "NULL", "NULL"),
		"a name of 201 bytes": fmt.Sprintf(named, "'lock'",
			`printf('%.199c', 'a') || 'ä'`, "NULL", "NULL"),
		"a name with NUL": fmt.Sprintf(named, "'lock'", `'a' || char(0)`, "NULL",
			"NULL"),
		"half a time to rest": fmt.Sprintf(named, "'lock'", "'b'", "'x'", "NULL"),
		"a second floor":      `INSERT INTO named_locks_floor (id, term) VALUES (2, 1)`,
		"a task twice": fmt.Sprintf(task, "'a'", "'pending'", "0",
			"NULL, NULL, NULL, NULL"),
		"an unknown state of a task": fmt.Sprintf(task, "'d'", "'asleep'", "0",
			"NULL, NULL, NULL, NULL"),
		"a task without a name": fmt.Sprintf(task, "''", "'pending'", "0",
			"NULL, NULL, NULL, NULL"),
		"fewer retries than none": fmt.Sprintf(task, "'d'", "'pending'", "-1",
			"NULL, NULL, NULL, NULL"),
		"a task that nobody works on": fmt.Sprintf(task, "'d'", "'in_progress'", "0",
			"NULL, 'b', 1, 'x'"),
		"a task that is held for ever": fmt.Sprintf(task, "'d'", "'in_progress'", "0",
			"'t', NULL, NULL, NULL"),
		"a task that has ended and is held": fmt.Sprintf(task, "'d'", "'done'", "0",
			"'t', 'b', 1, 'x'"),
		"a migration without minimum": `INSERT INTO scheduler_lock_schema (version) VALUES (10)`,
	} {
		_, err := db.ExecContext(t.Context(), bad)
		assert.Error(t, err, "%s was accepted", name)
	}
}

// What a heartbeat updates must not be indexed.
func TestTheHeartbeatTouchesNoIndex(t *testing.T) {
	db := open(t, plain(migrated(t)))
	assert.Empty(t, column(t, db, "SELECT name FROM pragma_index_list('scheduler_lock')"))
	assert.NotRegexp(t, `INDEX \w+ ON scheduler_lock\b`, ddl(t, migrations.PostgreSQL))
}

var (
	createTable = regexp.MustCompile(`(?ms)^CREATE TABLE (\w+) \((.*?)^\)`)
	columnName  = regexp.MustCompile(`(?m)^    ([a-z_]+) `)
	alterTable  = regexp.MustCompile(`(?ms)^ALTER TABLE (\w+)\s(.*?);$`)
	addColumn   = regexp.MustCompile(`ADD COLUMN (\w+)`)
)

// created lists "table.column" of the tables that the SQL files of a dialect create.
func created(t *testing.T, dialect migrations.Dialect) []string {
	return columns(t, dialect, createTable, columnName)
}

// added lists "table.column" of the columns that were added to them later.
func added(t *testing.T, dialect migrations.Dialect) []string {
	return columns(t, dialect, alterTable, addColumn)
}

func columns(t *testing.T, dialect migrations.Dialect, table, column *regexp.Regexp) []string {
	t.Helper()
	var all []string
	for _, found := range table.FindAllStringSubmatch(ddl(t, dialect), -1) {
		for _, name := range column.FindAllStringSubmatch(found[2], -1) {
			all = append(all, found[1]+"."+name[1])
		}
	}
	require.NotEmpty(t, all)
	return all
}

// ddl is all SQL files of a dialect.
func ddl(t *testing.T, dialect migrations.Dialect) string {
	t.Helper()
	var all []byte
	for _, file := range sqlFiles(t, dialect) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all = append(all, text...)
	}
	return string(all)
}

func sqlFiles(t *testing.T, dialect migrations.Dialect) []string {
	t.Helper()
	names, err := fs.Glob(os.DirFS("."), string(dialect)+"/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	return names
}

func TestBothDialectsHaveTheSameColumns(t *testing.T) {
	postgresOnly := []string{
		"scheduler_lock.backend_pid", "scheduler_lock.backend_start",
		"scheduler_lock.postmaster_start",
		"scheduler_lock.timeline", "scheduler_terms.timeline",
	}
	addedToPostgresOnly := []string{"scheduler_lock_schema.timeline"}
	// PostgreSQL has no lease file, and one clock for all.
	addedToSQLiteOnly := []string{"scheduler_terms.ended_file_id"}
	sqliteOnly := []string{
		"named_locks.boot_id", "named_locks.expires_ms", "named_locks.hold_ms",
		"queue_tasks.boot_id", "queue_tasks.visible_ms",
	}
	postgres := created(t, migrations.PostgreSQL)
	assert.ElementsMatch(t, append(created(t, migrations.SQLite), postgresOnly...),
		append(slices.Clone(postgres), sqliteOnly...))
	assert.ElementsMatch(t, append(added(t, migrations.SQLite), addedToPostgresOnly...),
		append(added(t, migrations.PostgreSQL), addedToSQLiteOnly...))

	ddl := ddl(t, migrations.PostgreSQL)
	for _, name := range append(postgres, added(t, migrations.PostgreSQL)...) {
		assert.Contains(t, ddl, "COMMENT ON COLUMN "+name+" IS ")
	}
}

func TestEveryMigrationOnlyAddsAndSaysWhichCodeItNeeds(t *testing.T) {
	for _, dialect := range []migrations.Dialect{migrations.SQLite, migrations.PostgreSQL} {
		names := sqlFiles(t, dialect)
		for i, name := range names {
			assert.True(t, strings.HasPrefix(filepath.Base(name), fmt.Sprintf("%05d_", i+1)),
				"%s: a gap in the numbers", name)
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			assert.NotContains(t, string(text), "+goose Down", name)
			assert.Contains(t, string(text),
				fmt.Sprintf("INSERT INTO scheduler_lock_schema (version, min_code) VALUES (%d, ",
					i+1), name)
		}
		assert.EqualValues(t, migrations.Latest, len(names), "Latest must be the newest file of %s",
			dialect)
	}
}

// Only reads are allowed to a connection that finds a current schema, and the files stay as they
// are, byte for byte.
func TestUpOnACurrentSchemaWritesNothing(t *testing.T) {
	path := migrated(t)
	other := open(t, ours(path))
	exec1(t, other, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
		VALUES ('in', 'the', 'write-ahead', 'log')`)
	require.NoError(t, os.Remove(path+"-migrate.lock"))

	var statements []string
	db, err := driver.Open(ours(path), func(c *sqlite3.Conn) error {
		err := c.SetAuthorizer(func(action sqlite3.AuthorizerActionCode, _, name, _,
			_ string) sqlite3.AuthorizerReturnCode {
			switch action {
			case sqlite3.AUTH_SELECT, sqlite3.AUTH_READ, sqlite3.AUTH_FUNCTION, sqlite3.AUTH_PRAGMA:
				return sqlite3.AUTH_OK
			}
			t.Errorf("not a read: action %d on %q", action, name)
			return sqlite3.AUTH_DENY
		})
		if err != nil {
			return err
		}
		return c.Trace(sqlite3.TRACE_STMT, func(_ sqlite3.TraceEvent, _, sql any) error {
			statements = append(statements, fmt.Sprint(sql))
			return nil
		})
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	require.NoError(t, db.PingContext(t.Context()))
	statements = nil

	before := content(t, path, path+"-wal")
	require.Greater(t, len(content(t, path+"-wal")), 0, "nothing to compare")
	for range 3 {
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
	}
	assert.True(t, bytes.Equal(before, content(t, path, path+"-wal")),
		"Up has written to the database")
	assert.Len(t, statements, 9, "three reads each")
	assert.NoFileExists(t, path+"-migrate.lock", "a current schema needs no lock")
}

func TestUpWorksOnWhateverTheAppHasOpened(t *testing.T) {
	t.Run("no WAL, no busy timeout, one connection", func(t *testing.T) {
		path := newPath(t)
		db := open(t, plain(path)+"?_pragma=busy_timeout(0)")
		db.SetMaxOpenConns(1)
		exec1(t, db, `CREATE TABLE bans (address TEXT)`)
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
		exec1(t, db, `DROP TABLE bans`)
		assertSchema(t, db)
		assert.Equal(t, []string{"delete"}, column(t, db, "PRAGMA journal_mode"),
			"the journal mode is the app's")
		assert.FileExists(t, path+"-migrate.lock")
	})
	t.Run("in memory", func(t *testing.T) {
		db := open(t, ":memory:")
		db.SetMaxOpenConns(1)
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
		assertSchema(t, db)
	})
	t.Run("in memory, shared", func(t *testing.T) {
		const dsn = "file:/shared.db?vfs=memdb"
		var all sync.WaitGroup
		for range 8 {
			db := open(t, dsn)
			require.NoError(t, db.PingContext(t.Context()))
			all.Go(func() { assert.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite)) })
		}
		all.Wait()
		assertSchema(t, open(t, dsn))
		assert.NoFileExists(t, "/shared.db-migrate.lock")
	})
	t.Run("a relative path", func(t *testing.T) {
		path := newPath(t)
		t.Chdir(filepath.Dir(path))
		require.NoError(t, migrations.Up(t.Context(), open(t, "app.db"), migrations.SQLite))
		assertSchema(t, open(t, plain(path)))
		assert.FileExists(t, path+"-migrate.lock")
	})
}

func TestAReadOnlyDatabase(t *testing.T) {
	t.Run("with a current schema is fine", func(t *testing.T) {
		db := open(t, plain(migrated(t))+"?mode=ro")
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
	})
	t.Run("without one is an error at once", func(t *testing.T) {
		path := newPath(t)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		start := time.Now()
		err := migrations.Up(t.Context(), open(t, plain(path)+"?mode=ro"), migrations.SQLite)
		require.ErrorIs(t, err, sqlite3.READONLY)
		assert.Less(t, time.Since(start), 2*time.Second, "trying again does not help")
		assert.ErrorContains(t, err, path)
		assert.ErrorContains(t, err, "scheduler_lock_migrations")
		assertUnlocked(t, path)
	})
}

func assertUnlocked(t *testing.T, path string) {
	t.Helper()
	lock := flock.New(path + "-migrate.lock")
	ok, err := lock.TryLock()
	require.NoError(t, err)
	assert.True(t, ok, "the migration lock was not released")
	require.NoError(t, lock.Unlock())
}

func TestANewerSchema(t *testing.T) {
	newer := func(t *testing.T, minCode int) (*sql.DB, string) {
		path := migrated(t)
		db := open(t, ours(path))
		exec1(t, db, `CREATE TABLE scheduler_of_tomorrow (id INTEGER PRIMARY KEY)`)
		exec1(t, db,
			`INSERT INTO scheduler_lock_migrations (version_id, is_applied)
				VALUES (98, 1), (99, 1)`)
		exec1(t, db, `INSERT INTO scheduler_lock_schema VALUES (98, ?), (99, 1)`, minCode)
		return db, path
	}
	t.Run("that this code can work with is accepted", func(t *testing.T) {
		db, path := newer(t, int(migrations.Latest))
		require.NoError(t, os.Remove(path+"-migrate.lock"))
		before := content(t, path, path+"-wal")
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
		assert.True(t, bytes.Equal(before, content(t, path, path+"-wal")),
			"Up has written to the database")
		assert.NoFileExists(t, path+"-migrate.lock", "nothing to do needs no lock")
		assert.EqualValues(t, 99, version(t, db))
	})
	t.Run("that this code cannot work with is refused", func(t *testing.T) {
		db, path := newer(t, 98)
		err := migrations.Up(t.Context(), db, migrations.SQLite)
		var tooNew *migrations.TooNewError
		require.ErrorAs(t, err, &tooNew)
		assert.Equal(t, migrations.TooNewError{
			Database: path, DatabaseVersion: 99, MinCode: 98, CodeVersion: migrations.Latest,
		}, *tooNew)
		assert.EqualError(t, err, "migrations: the schema in "+
			path+" has version 99, which needs code of version 98 or newer, "+
			fmt.Sprintf("and this code has version %d: deploy a newer release of this program, "+
				"or restore the backup from before the upgrade", migrations.Latest))
		assert.EqualValues(t, 99, version(t, db), "Version only tells")
	})
}

func TestForeignContentIsAClearError(t *testing.T) {
	for name, dsn := range map[string]func(string) string{"ours": ours, "plain": plain} {
		t.Run(name, func(t *testing.T) {
			t.Run("not a database", func(t *testing.T) {
				path := newPath(t)
				require.NoError(t, os.WriteFile(path,
					[]byte(strings.Repeat("this is a letter\n", 300)), 0o600))
				db := open(t, dsn(path))
				err := migrations.Up(t.Context(), db, migrations.SQLite)
				require.ErrorIs(t, err, sqlite3.NOTADB)
				assert.ErrorContains(t, err, "file is not a database")
				if name == "plain" {
					assert.ErrorContains(t, err, path)
				}
				_, err = migrations.Version(t.Context(), db, migrations.SQLite)
				assert.ErrorIs(t, err, sqlite3.NOTADB)
			})
			t.Run("a folder", func(t *testing.T) {
				path := t.TempDir()
				err := migrations.Up(t.Context(), open(t, dsn(path)), migrations.SQLite)
				require.ErrorIs(t, err, sqlite3.CANTOPEN)
				assert.ErrorContains(t, err, path)
			})
			t.Run("in a folder that does not exist", func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "none", "app.db")
				err := migrations.Up(t.Context(), open(t, dsn(path)), migrations.SQLite)
				require.ErrorIs(t, err, sqlite3.CANTOPEN)
			})
		})
	}
	t.Run("a table of the same name", func(t *testing.T) {
		path := newPath(t)
		db := open(t, plain(path))
		exec1(t, db, `CREATE TABLE scheduler_runs (mine TEXT)`)
		err := migrations.Up(t.Context(), db, migrations.SQLite)
		require.ErrorContains(t, err, "table scheduler_runs already exists")
		assert.ErrorContains(t, err, path)
		assert.ErrorContains(t, err, "sqlite/00001_scheduler_lock.sql")
		assert.Zero(t, version(t, db), "a migration is applied wholly or not at all")
		assertUnlocked(t, path)

		exec1(t, db, `DROP TABLE scheduler_runs`)
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
		assertSchema(t, db)
	})
	t.Run("our own table dropped by hand", func(t *testing.T) {
		path := migrated(t)
		db := open(t, plain(path))
		exec1(t, db, `DROP TABLE scheduler_lock_schema`)
		err := migrations.Up(t.Context(), db, migrations.SQLite)
		require.ErrorContains(t, err, "edited by hand")
		assert.ErrorContains(t, err, path)
		assertUnlocked(t, path)
	})
	t.Run("something else where the lock file belongs", func(t *testing.T) {
		path := newPath(t)
		require.NoError(t, os.Symlink("app.db-migrate.lock", path+"-migrate.lock"),
			"a link to itself")
		err := migrations.Up(t.Context(), open(t, plain(path)), migrations.SQLite)
		require.ErrorContains(t, err, path+"-migrate.lock")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
}

// The app may use goose for its own tables, in the same database and the same process.
func TestTheAppsOwnGooseIsLeftAlone(t *testing.T) {
	path := newPath(t)
	db := open(t, ours(path))
	app, err := goose.NewProvider(goose.DialectSQLite3, db, fstest.MapFS{
		"00001_bans.sql": {Data: []byte("-- +goose Up\nCREATE TABLE bans (address TEXT);\n")},
		"00042_more.sql": {Data: []byte("-- +goose Up\nALTER TABLE bans ADD COLUMN until TEXT;\n")},
	})
	require.NoError(t, err)
	_, err = app.Up(t.Context())
	require.NoError(t, err)
	const history = `SELECT id || ' ' || version_id || ' ' || is_applied || ' ' || tstamp
		FROM goose_db_version`
	before := column(t, db, history)
	require.Len(t, before, 3)

	goose.AddNamedMigrationContext("00043_app.go", func(context.Context, *sql.Tx) error {
		return errors.New("a migration of the app was run")
	}, nil)
	t.Cleanup(goose.ResetGlobalMigrations)

	require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
	assert.Equal(t, before, column(t, db, history))
	assert.Equal(t, migrations.Latest, version(t, db))
}

// inTheMiddle opens a database that calls hook once, when it is about to create a later table of a
// migration, inside its transaction.
func inTheMiddle(t *testing.T, dsn string, hook func()) *sql.DB {
	t.Helper()
	db, err := driver.Open(dsn, func(c *sqlite3.Conn) error { return hookInTheMiddle(c, hook) })
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func hookInTheMiddle(c *sqlite3.Conn, hook func()) error {
	hook = sync.OnceFunc(hook)
	return c.SetAuthorizer(func(action sqlite3.AuthorizerActionCode, name, _, _,
		_ string) sqlite3.AuthorizerReturnCode {
		if action == sqlite3.AUTH_CREATE_TABLE && (name == "scheduler_runs" ||
			name == "scheduler_pauses") {
			hook()
		}
		return sqlite3.AUTH_OK
	})
}

// inVain lets Up wait until its context ends, with more and more time until it has
// come as far as its error must tell: a starved machine is slow.
func inVain(t *testing.T, db *sql.DB, dialect migrations.Dialect, limit time.Duration,
	far func(error) bool) error {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := migrations.Up(ctx, db, dialect)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if limit *= 4; far(err) || limit > 5*time.Minute {
			return err
		}
	}
}

func TestUpWaits(t *testing.T) {
	t.Parallel()
	const soon = 500 * time.Millisecond
	t.Run("for a writer that holds the database", func(t *testing.T) {
		path := newPath(t)
		writer := open(t, ours(path))
		tx, err := writer.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), `CREATE TABLE bans (address TEXT)`)
		require.NoError(t, err)

		db := open(t, plain(path)+"?_pragma=busy_timeout(0)")
		err = inVain(t, db, migrations.SQLite, soon, func(err error) bool {
			return errors.Is(err, sqlite3.BUSY)
		})
		require.ErrorIs(t, err, sqlite3.BUSY)
		assert.ErrorContains(t, err, path)
		assertUnlocked(t, path)

		done := make(chan error)
		go func() { done <- migrations.Up(t.Context(), db, migrations.SQLite) }()
		select {
		case err := <-done:
			t.Fatalf("Up did not wait for the writer: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		require.NoError(t, tx.Commit())
		require.NoError(t, <-done)
		assert.Equal(t, migrations.Latest, version(t, db))
	})
	t.Run("for a driver that waits by itself no longer than its context", func(t *testing.T) {
		path := newPath(t)
		tx, err := open(t, ours(path)).BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { assert.NoError(t, tx.Rollback()) }()
		db := open(t, plain(path)+"?_pragma=busy_timeout(600000)")
		_ = inVain(t, db, migrations.SQLite, soon, func(error) bool { return true })
	})
	t.Run("for a process that migrates, whatever path either came by", func(t *testing.T) {
		path := newPath(t)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		link := filepath.Join(t.TempDir(), "link.db")
		require.NoError(t, os.Symlink(path, link))
		lock := flock.New(path + "-migrate.lock")
		require.NoError(t, lock.Lock())

		db := open(t, plain(link))
		err := inVain(t, db, migrations.SQLite, soon, func(err error) bool {
			return strings.Contains(err.Error(), path+"-migrate.lock")
		})
		assert.ErrorContains(t, err, path+"-migrate.lock")

		require.NoError(t, lock.Unlock())
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
		assert.Equal(t, migrations.Latest, version(t, db))
		assert.NoFileExists(t, link+"-migrate.lock")
	})
	t.Run("for another migration in memory", func(t *testing.T) {
		stalled, goOn := make(chan struct{}), make(chan struct{})
		first := inTheMiddle(t, "file:/stalled.db?vfs=memdb", func() { close(stalled); <-goOn })
		done := make(chan error)
		go func() { done <- migrations.Up(t.Context(), first, migrations.SQLite) }()
		<-stalled
		second := open(t, "file:/other.db?vfs=memdb")
		const waits = "wait for another migration of the in-memory database"
		err := inVain(t, second, migrations.SQLite, soon, func(err error) bool {
			return strings.Contains(err.Error(), waits)
		})
		close(goOn)
		require.NoError(t, <-done)
		assert.ErrorContains(t, err, waits)
		require.NoError(t, migrations.Up(t.Context(), second, migrations.SQLite))
	})
	t.Run("no longer than its context, in the middle of a migration", func(t *testing.T) {
		path := newPath(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := migrations.Up(ctx, inTheMiddle(t, ours(path), cancel), migrations.SQLite)
		require.ErrorIs(t, err, context.Canceled)
		assert.ErrorContains(t, err, path)
		assertUnlocked(t, path)
		db := open(t, ours(path))
		assert.Zero(t, version(t, db), "a migration is applied wholly or not at all")
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
		assertSchema(t, db)
	})
	t.Run("not at all when its context has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, migrations.Up(ctx, open(t, plain(newPath(t))), migrations.SQLite),
			context.Canceled)
	})
}

func TestTheLockFileIsOpenToThoseWhoMayWriteTheDatabase(t *testing.T) {
	path := newPath(t)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Chmod(path, 0o664))
	require.NoError(t, migrations.Up(t.Context(), open(t, plain(path)), migrations.SQLite))
	info, err := os.Stat(path + "-migrate.lock")
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o660), info.Mode())
}

func TestWhatUpAndVersionRefuse(t *testing.T) {
	db := open(t, ":memory:")
	const unknown = `migrations: dialect "mysql" is unknown: use "sqlite" or "postgres"`
	require.EqualError(t, migrations.Up(t.Context(), db, "mysql"), unknown)
	_, err := migrations.Version(t.Context(), db, "mysql")
	require.EqualError(t, err, unknown)
	require.ErrorContains(t, migrations.Up(t.Context(),
		db, migrations.SQLite, migrations.WithLogger(nil)), "WithLogger")
}

func TestUpLogsWhatItChanged(t *testing.T) {
	path := newPath(t)
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	for range 2 {
		require.NoError(t, migrations.Up(t.Context(), open(t, plain(path)),
			migrations.SQLite, migrations.WithLogger(logger)))
	}
	assert.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
	assert.Contains(t, out.String(), `msg="scheduler lock schema migrated" database=`+
		path+` from=0 to=10 took=`)
}

// An operator has no more than the plain shell.
func TestThePlainShellReadsTheTimes(t *testing.T) {
	shell, err := exec.LookPath("sqlite3")
	if err != nil {
		missing.Skip(t, "the program sqlite3")
	}
	path := migrated(t)
	at := time.Date(2026, 11, 21, 9, 50, 46, 123_456_000,
		time.UTC).Format("2006-01-02T15:04:05.000000Z")
	db := open(t, ours(path))
	exec1(t, db, `INSERT INTO scheduler_lock VALUES (1, 7, 'host-a', ?1, ?1, hex(randomblob(16)),
		1795247612345, 1, 'leading', 60000, 45000, 10000, NULL, NULL, NULL, NULL, NULL)`, at)

	out, err := exec.CommandContext(t.Context(), shell, "-readonly", path,
		`SELECT heartbeat_at,
			strftime('%Y-%m-%d %H:%M:%f', heartbeat_at),
			strftime('%s', heartbeat_at),
			strftime('%s', '2026-11-21 09:51:46') - strftime('%s', heartbeat_at),
			length(token), term
		FROM scheduler_lock`).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Equal(t, "2026-11-21T09:50:46.123456Z|2026-11-21 09:50:46.123|"+
		"1795254646|60|32|1795247612345\n", string(out))
}

func TestASchemaIsRefusedWhereThereAreNone(t *testing.T) {
	err := migrations.Up(t.Context(), open(t, "file:"+filepath.Join(t.TempDir(), "app.db")),
		migrations.SQLite, migrations.WithSchema("billing"))
	assert.EqualError(t, err,
		`migrations: option WithSchema: schema "billing": sqlite has no schemas, use another file`)
	_, err = migrations.Version(t.Context(), nil, migrations.PostgreSQL,
		migrations.WithSchema("Billing"))
	assert.EqualError(t, err,
		`migrations: option WithSchema: schema "Billing": only a-z, 0-9 and _ are allowed`)
}
