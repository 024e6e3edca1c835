package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
	_ "github.com/ncruces/go-sqlite3/vfs/memdb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/migrations"
)

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
	missing.Long(t, "takes seconds")
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
