//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3/driver"

	"example.com/schedlock/schedlock/sqlite"
)

const (
	kindSQLite = "sqlite"
	appPool    = 3 // connections of the app's own pool
)

// If the table is there this only reads, so a process can start while nobody can write.
const sqlMakeWrites = `
CREATE TABLE IF NOT EXISTS faults_writes (
    id   INTEGER PRIMARY KEY AUTOINCREMENT, -- grows in the order of the commits
    name TEXT    NOT NULL,                  -- of a named lock; '': of a run
    term INTEGER NOT NULL,
    job  TEXT    NOT NULL,
    tick INTEGER NOT NULL
) STRICT`

const sqlWrite = `
INSERT INTO faults_writes (name, term, job, tick) VALUES (?, ?, ?, ?)`

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
		b.exhaust = exhauster(db)
	} else if store, err = sqlite.Open(ctx, s.DSN, sqlite.WithClock(now)); err != nil {
		return b, err
	}
	if err = store.Migrate(ctx); err != nil {
		return b, err
	}
	if _, err = store.DB().ExecContext(ctx, sqlMakeWrites); err != nil {
		return b, err
	}
	b.store, b.locks, b.queue = store, store.Named(), store.Queue()
	b.write = fencedWrite(store.DB(), func(ctx context.Context, tx *sql.Tx, w written) error {
		_, err := tx.ExecContext(ctx, sqlWrite, w.name, w.term, w.job, w.tick)
		return err
	})
	return b, nil
}

// makeFile makes the file if it does not exist. As sqlite.Open it makes none
// beside a -wal file with something in it, which a new database would delete: the
// old one may be moved away, and back.
func makeFile(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err // or nil
	}
	if wal, err := os.Stat(path + "-wal"); err == nil && wal.Size() > 0 {
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
