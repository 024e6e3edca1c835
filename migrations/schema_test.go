package migrations_test

import (
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	_ "github.com/ncruces/go-sqlite3/vfs/memdb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/migrations"
)

var ourTables = []string{
	"named_locks", "named_locks_floor", "queue_tasks", "scheduler_attempts", "scheduler_audit",
	"scheduler_jobs", "scheduler_lock", "scheduler_lock_migrations", "scheduler_lock_schema",
	"scheduler_pauses", "scheduler_replicas", "scheduler_requests", "scheduler_runs",
	"scheduler_terms",
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
		"scheduler_attempts": "run_id attempt started_at finished_at status term pid hostname" +
			" error",
		"scheduler_requests":    "job requested_at requested_by reason",
		"scheduler_pauses":      "job paused_at paused_by reason resumed_at resumed_by",
		"scheduler_audit":       "id at what job by reason",
		"scheduler_replicas":    "instance pid hostname version state reason seen_at",
		"scheduler_lock_schema": "version min_code",
		"named_locks": "kind name token term pid hostname acquired_at expires_at hold_until" +
			" boot_id expires_ms hold_ms ttl_ms ttl_of",
		"named_locks_floor": "id term timeline since",
		"queue_tasks": "seq queue id state retries_left attempts token boot_id visible_ms" +
			" visible_at last_error created_at updated_at",
	}
	for table, columns := range want {
		assert.Equal(t, strings.Fields(columns),
			lines(t, db, "SELECT name FROM pragma_table_info('"+table+"') ORDER BY cid"), table)
		assert.Equal(t, []string{"1"},
			lines(t, db, "SELECT strict FROM pragma_table_list WHERE name = '"+
				table+"'"), "%s must be STRICT", table)
	}
	assert.Equal(t, ourTables,
		lines(t, db,
			`SELECT name FROM sqlite_master
				WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name`))
	assert.Equal(t, []string{
		"named_locks_expires_at", "queue_tasks_ended", "queue_tasks_last", "queue_tasks_ready",
		"queue_tasks_waiting",
		"scheduler_runs_in_progress", "scheduler_runs_retry_at", "scheduler_runs_scheduled_at",
	},
		lines(t, db,
			`SELECT name FROM sqlite_master
				WHERE type = 'index' AND sql IS NOT NULL ORDER BY name`))
	assert.Equal(t, applied(), lines(t, db,
		"SELECT version_id FROM scheduler_lock_migrations WHERE is_applied ORDER BY id"))
	// During a deploy, and after a roll-back, code of version 1 starts on these tables.
	assert.Equal(t, applied()[1:], lines(t, db,
		"SELECT version FROM scheduler_lock_schema WHERE min_code = 1 ORDER BY version"))
	assert.Equal(t, []string{"ok"}, lines(t, db, "PRAGMA integrity_check"))
}

func TestTheShellShowsWhatAColumnIs(t *testing.T) {
	db := open(t, plain(migrated(t)))
	for _, ddl := range lines(t, db,
		"SELECT sql FROM sqlite_master WHERE type = 'table' AND sql LIKE '%STRICT'") {
		for line := range strings.Lines(ddl) {
			if regexp.MustCompile(`^    [a-z]`).MatchString(line) {
				assert.Contains(t, line, " -- ", "a column without a comment")
			}
		}
	}
	shown := strings.Join(lines(t, db, "SELECT sql FROM sqlite_master WHERE type = 'table'"), "\n")
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
			VALUES ('q', %s, 'x', 'x')`
		free = `, NULL, NULL, NULL, NULL` // by nobody, and now
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
		`INSERT INTO scheduler_audit VALUES (1, 'x', 'hand-over', '', 'me', '')`,
		fmt.Sprintf(named, "'lock'", "'a'", "NULL", "NULL"),
		fmt.Sprintf(named, "'task'", "'a'", "'x'", "1"),
		fmt.Sprintf(named, "'timeout'", `printf('%.200c', 'a')`, "NULL", "NULL"),
		fmt.Sprintf(task, "'a', 'pending', 0"+free),
		fmt.Sprintf(task, "'b', 'in_progress', 3, 't', 'b', 1, 'x'"),
		fmt.Sprintf(task, "'c', 'done', 3, 't', NULL, NULL, NULL"),
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
		"an unknown order":        `INSERT INTO scheduler_audit VALUES (2, 'x', 'dance', '', 'me', '')`,
		"an order of nobody":      `INSERT INTO scheduler_audit VALUES (2, 'x', 'run', 'j', NULL, '')`,
		"an unknown kind":         fmt.Sprintf(named, "'clock'", "'a'", "NULL", "NULL"),
		"a name twice":            fmt.Sprintf(named, "'lock'", "'a'", "NULL", "NULL"),
		"a lock without a name":   fmt.Sprintf(named, "'lock'", "''", "NULL", "NULL"),
		"a name of 201 bytes": fmt.Sprintf(named, "'lock'",
			`printf('%.199c', 'a') || 'ä'`, "NULL", "NULL"),
		"a name with NUL": fmt.Sprintf(named, "'lock'", `'a' || char(0)`, "NULL",
			"NULL"),
		"half a time to rest": fmt.Sprintf(named, "'lock'", "'b'", "'x'", "NULL"),
		"a second floor":      `INSERT INTO named_locks_floor (id, term) VALUES (2, 1)`,
		"a task twice":        fmt.Sprintf(task, "'a', 'pending', 0"+free),
		"a task of no queue":  `UPDATE queue_tasks SET queue = ''`,
		"a task of 201 bytes": `UPDATE queue_tasks SET id = printf('%.199c', 'a') || 'ä'
			WHERE id = 'a'`,
		"a task with NUL":       `UPDATE queue_tasks SET id = 'a' || char(0) WHERE id = 'a'`,
		"a task that is taken":  `UPDATE queue_tasks SET token = 't' WHERE id = 'a'`,
		"an unknown task state": fmt.Sprintf(task, "'d', 'asleep', 0"+free),
		"a task without name":   fmt.Sprintf(task, "'', 'pending', 0"+free),
		"less than no retries":  fmt.Sprintf(task, "'d', 'pending', -1"+free),
		"a task of nobody":      fmt.Sprintf(task, "'d', 'in_progress', 0, NULL, 'b', 1, 'x'"),
		"a task held for ever":  fmt.Sprintf(task, "'d', 'in_progress', 0, 't', NULL, NULL, NULL"),
		"an end that is held":   fmt.Sprintf(task, "'d', 'done', 0, 't', 'b', 1, 'x'"),
		"no minimum of code":    `INSERT INTO scheduler_lock_schema (version) VALUES (99)`,
	} {
		_, err := db.ExecContext(t.Context(), bad)
		assert.Error(t, err, "%s was accepted", name)
	}
}

// What a heartbeat updates must not be indexed.
func TestTheHeartbeatTouchesNoIndex(t *testing.T) {
	db := open(t, plain(migrated(t)))
	assert.Empty(t, lines(t, db, "SELECT name FROM pragma_index_list('scheduler_lock')"))
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
