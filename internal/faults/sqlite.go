//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
	"golang.org/x/sys/unix"
)

// sqliteFile is a SQLite database under test.
type sqliteFile struct {
	path    string // leads through a link to …
	dir     string // … its folder
	appPool bool
	mounted bool // its folder is a small tmpfs, made by us

	gate sync.RWMutex // held for writing while the harness must not open it
	forgotten
}

var _ Database = (*sqliteFile)(nil)

// smallDisk is the size of the tmpfs of a database on a small disk.
const smallDisk = 8 << 20

// newSQLite makes the folder of a database file. With small the folder is a
// file system of its own, small enough to be filled; errCannotInject if this
// process may not mount one.
func newSQLite(dir string, appPool, small bool) (*sqliteFile, error) {
	dir = filepath.Join(dir, "db")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	link := filepath.Join(filepath.Dir(dir), "current")
	f := &sqliteFile{path: filepath.Join(link, "app.db"), dir: dir, appPool: appPool,
		mounted: small}
	if err := f.lead(dir); err != nil {
		return nil, err
	}
	if small {
		if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d",
			smallDisk)); err != nil {
			return nil, fmt.Errorf("%w: mount a tmpfs: %w", errCannotInject, err)
		}
	}
	return f, nil
}

// Settings implements Database.
func (f *sqliteFile) Settings(s *Settings) {
	s.Kind, s.DSN, s.AppPool = kindSQLite, "file:"+f.path, f.appPool
}

// Close implements Database.
func (f *sqliteFile) Close() error {
	if f.mounted {
		return unix.Unmount(f.dir, unix.MNT_DETACH)
	}
	return nil
}

// use opens the file for one task. It never makes it: a file that was deleted
// must stay so.
func (f *sqliteFile) use(ctx context.Context, do func(context.Context, *sql.Conn) error) error {
	f.gate.RLock()
	defer f.gate.RUnlock()
	db, err := driver.Open("file:" + f.path + "?mode=rw&_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(ctx, conn)
}

const sqlRow = `
SELECT term, file_id IS NOT NULL FROM scheduler_lock`

// Row implements Database.
func (f *sqliteFile) Row(ctx context.Context) (row Row, ok bool, err error) {
	err = f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		err := conn.QueryRowContext(ctx, sqlRow).Scan(&row.Term, &row.Proof)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		ok = err == nil
		return err
	})
	return row, ok, err
}

// Proves implements Database.
func (f *sqliteFile) Proves(row Row) bool { return row.Proof }

var sqlEdits = map[Edit]string{
	editDelete: `DELETE FROM scheduler_lock`,
	editToken:  `UPDATE scheduler_lock SET token = lower(hex(randomblob(16)))`,
	editTerm:   `UPDATE scheduler_lock SET term = term + 7`,
	editPID:    `UPDATE scheduler_lock SET pid = pid + 7`,
	editPast: `UPDATE scheduler_lock
		SET heartbeat_at = '2001-01-01T00:00:00.000000Z', created_at = heartbeat_at`,
	editFuture: `UPDATE scheduler_lock
		SET heartbeat_at = '2101-01-01T00:00:00.000000Z', created_at = heartbeat_at`,
	editTTL:    `UPDATE scheduler_lock SET ttl_ms = 1`,
	editRevoke: `UPDATE scheduler_lock SET state = 'revoked'`,
}

// Edit implements Database.
func (f *sqliteFile) Edit(ctx context.Context, e Edit) error {
	return f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		if e != editJobs {
			_, err := conn.ExecContext(ctx, sqlEdits[e])
			return err
		}
		return f.forgetJobs(ctx, conn, `BEGIN IMMEDIATE`, `COMMIT`)
	})
}

// Paused implements Database.
func (f *sqliteFile) Paused(ctx context.Context) (paused bool, err error) {
	err = f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, sqlPaused).Scan(&paused)
	})
	return paused, err
}

// Block implements Database: a foreign process (the harness) has the write
// lock.
func (f *sqliteFile) Block(ctx context.Context) (unblock func(), err error) {
	locked, end, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		err := f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
			if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
				return err
			}
			locked <- nil
			<-end
			_, err := conn.ExecContext(ctx, `ROLLBACK`)
			return err
		})
		if err != nil {
			locked <- err
		}
	}()
	if err := <-locked; err != nil {
		return nil, err
	}
	return func() { close(end); <-ended }, nil
}

// Blocked implements Database.
func (f *sqliteFile) Blocked(ctx context.Context) bool {
	err := f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, `PRAGMA busy_timeout = 20; BEGIN IMMEDIATE; ROLLBACK`)
		return err
	})
	return errors.Is(err, sqlite3.BUSY) || errors.Is(err, sqlite3.PROTOCOL)
}

// Read implements Database.
func (f *sqliteFile) Read(ctx context.Context, h *History) error {
	h.Anew = f.list()
	return f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return readHistory(ctx, conn, h)
	})
}

// ReadLocks implements Database.
func (f *sqliteFile) ReadLocks(ctx context.Context, h *History) error {
	return f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return readLocks(ctx, conn, h)
	})
}

// copyTo makes a consistent copy, as a backup does.
func (f *sqliteFile) copyTo(ctx context.Context, path string) error {
	return f.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, `VACUUM INTO '`+strings.ReplaceAll(path, "'", "''")+`'`)
		return err
	})
}

// remove deletes the database with what SQLite keeps beside it, as an operator
// does. The lease file stays.
func (f *sqliteFile) remove() error {
	var errs []error
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(f.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
