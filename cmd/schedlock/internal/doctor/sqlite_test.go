package doctor

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	lockdriver "example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
)

// newDatabase is a database that has its tables, and that a store has open.
func newDatabase(t testing.TB) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(bg, filepath.Join(t.TempDir(), "app.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(bg))
	return s
}

// closed is a database that nobody has open; its -wal file is gone.
func closed(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "app.db")
	s, err := sqlite.Open(bg, path)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(bg))
	lease, err := newLock(t, s).Acquire(bg)
	require.NoError(t, err)
	require.NoError(t, lease.Release(bg))
	require.NoError(t, s.Close())
	return path
}

func shell(t testing.TB, path string, statements ...string) {
	t.Helper()
	db := connect(t, path)
	for _, s := range statements {
		_, err := db.Exec(s)
		require.NoError(t, err)
	}
}

func connect(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := driver.Open("file:" + path)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

func TestAHeldDatabaseIsHealthyAndIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newDatabase(t)
	lead(t, s)
	before := listing(t, filepath.Dir(s.Path()))
	r := examined(s.Path())
	healthy(t, r)
	assert.Equal(t, before, listing(t, filepath.Dir(s.Path())))
	assert.Equal(t, s.Path(), r.Database)
	for _, check := range []string{"path", "database", "journal mode", "integrity", "wal", "schema",
		"lock", "timing", "clock", "flapping"} {
		finding(t, r, check, OK)
	}
	if s.ProofOfDeath() == nil {
		finding(t, r, "lease file", OK, "the holder lives")
		finding(t, r, "writers", OK)
	}
}

// On the app's pool, which is not opened anew.
func TestAFileThatWasRemovedUnderTheLeaderIsNamed(t *testing.T) {
	t.Parallel()
	path := closed(t)
	s, err := sqlite.Use(connect(t, path)).Open(bg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	if s.ProofOfDeath() != nil {
		missing.Skip(t, "a proof of death: %v", s.ProofOfDeath())
	}
	lead(t, s)
	finding(t, examined(path), "files", OK)
	require.NoError(t, os.Remove(path+"-shm"))
	require.NoError(t, os.Remove(path+"-wal"))
	finding(t, examined(path), "files", Error, path+"-wal is missing")
}

func TestADatabaseThatNobodyHasOpenStaysAsItIs(t *testing.T) {
	t.Parallel()
	path := closed(t)
	before := listing(t, filepath.Dir(path))
	require.NotContains(t, before, path+"-wal")
	r := examined("file:" + path)
	healthy(t, r)
	finding(t, r, "journal mode", OK, "wal")
	finding(t, r, "lock", Note, "nobody leads")
	assert.Equal(t, before, listing(t, filepath.Dir(path)))
}

// A copy of the files of an open database is what a crash leaves.
func TestADatabaseAfterACrashStaysAsItIs(t *testing.T) {
	missing.Long(t, "takes a second")
	t.Parallel()
	s := newDatabase(t)
	lead(t, s)
	copied := filepath.Join(t.TempDir(), "app.db")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		content, err := os.ReadFile(s.Path() + suffix)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(copied+suffix, content, 0o600))
	}
	before := listing(t, filepath.Dir(copied))
	r := examined(copied)
	finding(t, r, "lock", OK, "held: ") // which only the -wal file tells
	finding(t, r, "lease file", Warning, "deleted")
	assert.Equal(t, before, listing(t, filepath.Dir(copied)))

	require.NoError(t, os.Remove(copied+"-shm"))
	before = listing(t, filepath.Dir(copied))
	r = examined(copied)
	finding(t, r, "database", Error, "no -shm file", "start the app")
	assert.Equal(t, before, listing(t, filepath.Dir(copied)))
}

func TestPaths(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	r := examined(filepath.Join(folder, "app.db"))
	finding(t, r, "path", Error, "no such file", "folder "+folder+" exists",
		"first start of the app")
	finding(t, examined(filepath.Join(folder, "deep", "app.db")), "path", Error,
		"does not exist either")
	finding(t, examined(folder), "path", Error, "is a directory")
	finding(t, examined(os.DevNull), "path", Error, "is not a regular file but a device")
	assert.Empty(t, listing(t, folder))

	path := closed(t)
	link := filepath.Join(folder, "link.db")
	require.NoError(t, os.Symlink(path, link))
	r = examined(link)
	healthy(t, r)
	finding(t, r, "path", OK, link+" leads to "+path)

	require.NoError(t, os.Link(path, filepath.Join(folder, "hard.db")))
	finding(t, examined(path), "path", Warning, "2 names")

	require.NoError(t, os.Remove(path))
	finding(t, examined(link), "path", Error, "leads nowhere")
}

func TestWhatIsNoDatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path, make([]byte, 5000), 0o600))
	finding(t, examined(path), "database", Error, "not a database", "restore it")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	finding(t, examined(path), "schema", Error, "not there", "schedlock migrate")
	assert.Len(t, listing(t, filepath.Dir(path)), 1)
}

func TestADamagedDatabase(t *testing.T) {
	t.Parallel()
	path := closed(t)
	var page int64
	require.NoError(t, connect(t, path).QueryRow(
		`SELECT rootpage FROM sqlite_master WHERE name = 'scheduler_terms'`).Scan(&page))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte("garbage garbage garbage garbage garbage"), (page-1)*4096)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	finding(t, examined(path), "integrity", Error, "restore it from a backup")
}

func TestOtherJournalModes(t *testing.T) {
	t.Parallel()
	path := closed(t)
	shell(t, path, `PRAGMA journal_mode = DELETE`)
	before := listing(t, filepath.Dir(path))
	finding(t, examined(path), "journal mode", Warning, "delete", "PRAGMA journal_mode = WAL")
	assert.Equal(t, before, listing(t, filepath.Dir(path)))
}

func TestALargeLog(t *testing.T) {
	t.Parallel()
	s := newDatabase(t)
	limits := usual
	limits.largeWAL = 100
	finding(t, examine(bg, s.Path(), limits), "wal", Warning, "reader that never ends",
		"wal_checkpoint(TRUNCATE)")
}

func TestALargeDatabaseDoesNotTakeLong(t *testing.T) {
	missing.Long(t, "fills a database")
	t.Parallel()
	path := closed(t)
	shell(t, path, `PRAGMA journal_mode = OFF`, `PRAGMA synchronous = OFF`,
		`CREATE TABLE big (b BLOB)`, `INSERT INTO big VALUES (zeroblob(100 << 20))`,
		`PRAGMA journal_mode = WAL`)
	ctx, cancel := context.WithTimeout(bg, 2*time.Minute)
	defer cancel()
	r := Examine(ctx, path, "")
	finding(t, r, "integrity", Note, "100.", "PRAGMA quick_check")
	finding(t, r, "schema", OK)

	limits := usual
	limits.quickCheck = 1 << 40
	ctx, cancel = context.WithTimeout(bg, 2*time.Minute)
	defer cancel()
	r = examine(ctx, path, limits)
	require.NoError(t, ctx.Err())
	finding(t, r, "schema", OK)
}

// What people and leaders left is read from each database.
func TestRowsOfEveryDatabase(t *testing.T) {
	t.Parallel()
	type place struct {
		dsn   string
		store lockdriver.Store
		run   func(statement string)
	}
	for name, db := range map[string]struct {
		make func(t *testing.T) place
		odd  string            // a cursor that cannot be read; "": the column takes none
		at   *strings.Replacer // of times in statements
		more []string          // tables of its own
	}{
		"SQLite": {func(t *testing.T) place {
			s := newDatabase(t)
			return place{s.Path(), s, func(statement string) { shell(t, s.Path(), statement) }}
		}, "gestern", strings.NewReplacer("OLD", `'2020-01-01T00:00:00.000000Z'`,
			"NOW", `strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')`,
			"LATER", `strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 hour')`,
			"ODD", "'gestern'"), nil},
		"PostgreSQL": {func(t *testing.T) place {
			dsn := migrated(t)
			return place{dsn, open(t, dsn), func(statement string) { execute(t, dsn, statement) }}
		}, "infinity", strings.NewReplacer("OLD", `'2020-01-01T00:00:00Z'`, "NOW", `now()`,
			"LATER", `now() + interval '1 hour'`, "ODD", "'infinity'"), nil},
		"MariaDB": {func(t *testing.T) place {
			server := mytest.Shared(t)
			dsn := mariadbOf(t, server)
			conn := server.Open(t, dsn)
			return place{dsn, openMariaDB(t, dsn), func(statement string) {
				_, err := conn.Exec(statement)
				require.NoError(t, err, statement)
			}}
		}, "", strings.NewReplacer("OLD", `'2020-01-01 00:00:00'`, "NOW", `utc_timestamp(6)`,
			"LATER", `utc_timestamp(6) + INTERVAL 1 HOUR`, "ODD", `'2020-01-01 00:00:00'`),
			[]string{"scheduler_fenced", "scheduler_fence", "scheduler_gated", "scheduler_gate",
				"named_locks_fenced", "named_locks_fence"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := db.make(t)
			lead(t, p.store)
			for _, statement := range []string{
				`UPDATE scheduler_lock SET created_at = OLD, heartbeat_at = LATER`,
				`INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
					VALUES ('late', 'every 1m0s offset 0s', OLD, OLD),
					('odd', 'every 1m0s offset 0s', ODD, OLD)`,
				`INSERT INTO scheduler_runs
					(job, scheduled_at, started_at, status, term, pid, hostname, attempt)
					VALUES ('late', OLD, OLD, 'in_progress', 1, 1, 'x', 1)`,
				`INSERT INTO scheduler_requests VALUES ('odd', OLD, 'ada', '')`,
				`INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason)
					VALUES ('other', OLD, 'bob', 'why not')`,
			} {
				p.run(db.at.Replace(statement))
			}
			r := examined(p.dsn)
			finding(t, r, "clock", Warning, "in the future", "NTP")
			finding(t, r, "runs", Warning, `"late" of term 1, started 2020-01-01T00:00:00.000000Z`)
			finding(t, r, "requests", Warning, "by ada since 2020-01-01T00:00:00Z")
			finding(t, r, "pause", Note, "bob since 2020-01-01T00:00:00Z: why not")
			if db.odd != "" {
				finding(t, r, "cursor", Error, `"`+db.odd+`"`)
			}
			p.run(`DELETE FROM scheduler_runs`)
			p.run(db.at.Replace(`UPDATE scheduler_lock SET heartbeat_at = NOW`))
			finding(t, examined(p.dsn), "overdue", Warning, `"late"`)
			drop := append([]string{"named_locks", "named_locks_floor", "queue_tasks",
				"scheduler_audit", "scheduler_replicas", "scheduler_attempts"}, db.more...)
			for _, table := range drop {
				p.run(`DROP TABLE ` + table)
			}
			finding(t, examined(p.dsn), "tables", Error, append(drop, "restore a backup")...)
		})
	}
}

func TestSchemasOfAFile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		check      string
		level      Level
		says       string
		statements []string
	}{
		{"schema", Warning, "version 1", []string{
			`DELETE FROM scheduler_lock_schema WHERE version > 1`,
			`DROP TABLE scheduler_requests`, `DROP TABLE scheduler_pauses`}},
		{"schema", Error, "98", []string{`INSERT INTO scheduler_lock_schema VALUES (99, 98)`,
			`DROP TABLE scheduler_lock`}},
		{"tables", Error, "scheduler_terms", []string{`DROP TABLE scheduler_terms`}},
		{"tables", Error, "scheduler_lock_migrations", []string{
			`DROP TABLE scheduler_lock_migrations`}},
		{"tables", Error, "restore a backup", []string{`DROP TABLE scheduler_lock`}},
	} {
		path := closed(t)
		shell(t, path, tc.statements...)
		finding(t, examined(path), tc.check, tc.level, tc.says)
	}
}

// A migration that makes a table names it in unread, or readFacts reads it.
func TestNoTableIsUnknown(t *testing.T) {
	t.Parallel()
	known := []string{"scheduler_jobs", "scheduler_lock", "scheduler_lock_schema",
		"scheduler_pauses", "scheduler_requests", "scheduler_runs", "scheduler_terms"}
	for _, m := range slices.Concat(unread, unrepeatable) {
		known = append(known, m.table)
	}
	rows, err := connect(t, newDatabase(t).Path()).Query(`SELECT name FROM sqlite_schema
		WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'`)
	require.NoError(t, err)
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		tables = append(tables, name)
	}
	require.NoError(t, rows.Err())
	assert.ElementsMatch(t, known, tables)
}
