package migrations_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
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

func version(t *testing.T, db *sql.DB) int64 {
	t.Helper()
	return versionOf(t, db, migrations.SQLite)
}

func versionOf(t *testing.T, db *sql.DB, dialect migrations.Dialect) int64 {
	t.Helper()
	v, err := migrations.Version(t.Context(), db, dialect)
	require.NoError(t, err)
	return v
}

// twentyStart lets twenty pools migrate one database at once.
func twentyStart(t *testing.T, dialect migrations.Dialect, open func() *sql.DB) {
	t.Helper()
	start := make(chan struct{})
	var all sync.WaitGroup
	for range 20 {
		db := open()
		require.NoError(t, db.PingContext(t.Context()))
		all.Go(func() {
			<-start
			assert.NoError(t, migrations.Up(context.Background(), db, dialect))
		})
	}
	close(start)
	all.Wait()
}

// applied is what goose has noted of each version.
func applied() (versions []string) {
	for v := range migrations.Latest + 1 {
		versions = append(versions, fmt.Sprint(v))
	}
	return versions
}

// earlier are the versions below the latest.
func earlier() (versions []int64) {
	for v := int64(1); v < migrations.Latest; v++ {
		versions = append(versions, v)
	}
	return versions
}

// content reads files in another process: closing a descriptor of a database in this one could drop
// SQLite's locks.
func content(t *testing.T, paths ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cat", paths...).Output()
	require.NoError(t, err)
	return out
}

func TestUpCreatesTheTablesAndSaysSoOnce(t *testing.T) {
	path := newPath(t)
	db := open(t, ours(path))
	assert.Zero(t, version(t, db))
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	for range 2 {
		require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite,
			migrations.WithLogger(logger)))
	}
	assert.Equal(t, migrations.Latest, version(t, db))
	assertSchema(t, db)
	assert.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
	assert.Contains(t, out.String(), `msg="scheduler lock schema migrated" database=`+
		path+` from=0 to=13 took=`)
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
		assert.Equal(t, []string{"delete"}, lines(t, db, "PRAGMA journal_mode"),
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
		twentyStart(t, migrations.SQLite, func() *sql.DB { return open(t, dsn) })
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
	t.Run("goose's table dropped by hand", func(t *testing.T) {
		path := atVersion1(t)
		db := open(t, plain(path))
		exec1(t, db, `DROP TABLE scheduler_lock_migrations`)
		err := migrations.Up(t.Context(), db, migrations.SQLite)
		require.ErrorContains(t, err, "scheduler_lock_migrations")
		assert.ErrorContains(t, err, path)
		assert.ErrorContains(t, err, "was dropped: restore it from a backup")
		assertUnlocked(t, path)
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
	before := lines(t, db, history)
	require.Len(t, before, 3)

	goose.AddNamedMigrationContext("00043_app.go", func(context.Context, *sql.Tx) error {
		return errors.New("a migration of the app was run")
	}, nil)
	t.Cleanup(goose.ResetGlobalMigrations)

	require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
	assert.Equal(t, before, lines(t, db, history))
	assert.Equal(t, migrations.Latest, version(t, db))
}

func TestWhatUpAndVersionRefuse(t *testing.T) {
	db := open(t, ":memory:")
	const unknown = `migrations: dialect "oracle" is unknown: use "sqlite", "postgres" or "mysql"`
	require.EqualError(t, migrations.Up(t.Context(), db, "oracle"), unknown)
	_, err := migrations.Version(t.Context(), db, "oracle")
	require.EqualError(t, err, unknown)
	require.ErrorContains(t, migrations.Up(t.Context(),
		db, migrations.SQLite, migrations.WithLogger(nil)), "WithLogger")
	require.EqualError(t, migrations.Up(t.Context(), db, migrations.SQLite,
		migrations.WithSchema("billing")),
		`migrations: option WithSchema: schema "billing": sqlite has no schemas, use another file`)
	_, err = migrations.Version(t.Context(), nil, migrations.PostgreSQL,
		migrations.WithSchema("Billing"))
	require.EqualError(t, err,
		`migrations: option WithSchema: schema "Billing": only a-z, 0-9 and _ are allowed`)
}
