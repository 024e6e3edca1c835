//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3/driver"

	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/tasks"
)

const (
	kindSQLite = "sqlite"
	appPool    = 3 // connections of the app's own pool
)

const sqlMakeWrites = `
CREATE TABLE IF NOT EXISTS faults_writes (
    id   INTEGER PRIMARY KEY AUTOINCREMENT, -- grows in the order of the commits
    term INTEGER NOT NULL,
    job  TEXT NOT NULL,
    tick INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS faults_locks (
    id   INTEGER PRIMARY KEY AUTOINCREMENT, -- likewise
    name TEXT    NOT NULL,
    term INTEGER NOT NULL
) STRICT`

const sqlWrite = `
INSERT INTO faults_writes (term, job, tick) VALUES (?1, ?2, ?3)`

const sqlWriteLock = `
INSERT INTO faults_locks (name, term) VALUES (?1, ?2)`

// openSQLite opens the database file for the test program: on connections of
// the lock's own, or on the app's pool.
func openSQLite(ctx context.Context, s Settings, now func() time.Time) (b backend, err error) {
	// With mode=rw the app's writes make no new file if this one is deleted.
	if err = makeFile(strings.TrimPrefix(s.DSN, "file:")); err != nil {
		return b, err
	}
	s.DSN += "?mode=rw"
	var store *sqlite.Store
	if s.AppPool {
		var db *sql.DB
		if db, err = driver.Open(s.DSN +
			"&_txlock=immediate&_pragma=busy_timeout(500)&_pragma=journal_mode(wal)"); err != nil {
			return b, err
		}
		db.SetMaxOpenConns(appPool)
		opened, err := sqlite.Use(db, sqlite.WithClock(now)).Open(ctx)
		if err != nil {
			return b, err
		}
		store = opened
		b.exhaust = exhauster(func(ctx context.Context) (func(), error) {
			conn, err := db.Conn(ctx)
			if err != nil {
				return nil, err
			}
			return func() { conn.Close() }, nil
		})
	} else if store, err = sqlite.Open(ctx, s.DSN, sqlite.WithClock(now)); err != nil {
		return b, err
	}
	if err = store.Migrate(ctx); err != nil {
		return b, err
	}
	if err = makeWrites(ctx, store.DB()); err != nil {
		return b, err
	}
	b.store, b.locks, b.queue = store, store.Named(), store.Queue()
	insert := func(ctx context.Context, fence func(context.Context, any) error, query string,
		args ...any) error {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := fence(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
		return tx.Commit()
	}
	b.write = func(ctx context.Context, run tasks.Run, fence func(context.Context,
		any) error) error {
		return insert(ctx, fence, sqlWrite, run.Term, run.Job, run.ScheduledAt.UnixMicro())
	}
	b.writeLock = func(ctx context.Context, ref namedlock.Ref,
		fence func(context.Context, any) error) error {
		return insert(ctx, fence, sqlWriteLock, ref.Name, ref.Term)
	}
	return b, nil
}

// makeFile makes the file if it does not exist. As sqlite.Open it makes none
// beside a -wal file, which a new database would delete, with what it has of the
// old one: that may be moved away, and back.
func makeFile(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err // or nil
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		// Another process may have made both meanwhile, the database first.
		_, err = os.Stat(path)
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// makeWrites only reads if the table is there, so that a process can start
// while the database cannot be written.
func makeWrites(ctx context.Context, db *sql.DB) error {
	var n int
	err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master
		WHERE name IN ('faults_writes', 'faults_locks')`).Scan(&n)
	if err != nil || n == 2 {
		return err
	}
	_, err = db.ExecContext(ctx, sqlMakeWrites)
	return err
}

// exhauster takes every connection of the pool that it can get, and keeps
// them until it is told to stop. take takes one.
func exhauster(take func(context.Context) (release func(), err error)) func(on bool) {
	var (
		wg     sync.WaitGroup
		cancel context.CancelFunc
	)
	return func(on bool) {
		if cancel != nil {
			cancel()
			wg.Wait()
			cancel = nil
		}
		if !on {
			return
		}
		var ctx context.Context
		ctx, cancel = context.WithCancel(context.Background())
		for range 2 * appPool {
			wg.Go(func() {
				if release, err := take(ctx); err == nil {
					<-ctx.Done()
					release()
				}
			})
		}
	}
}
