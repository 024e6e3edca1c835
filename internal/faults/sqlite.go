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
	tables
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
	f.dialect, f.task = sqliteDialect, f.use
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

func (f *sqliteFile) Settings(s *Settings) {
	s.Kind, s.DSN, s.AppPool = kindSQLite, "file:"+f.path, f.appPool
}

func (f *sqliteFile) Close() error {
	if f.mounted {
		return unix.Unmount(f.dir, unix.MNT_DETACH)
	}
	return nil
}

// open opens the file for the harness. It never makes it: a file that was deleted must stay so.
func (f *sqliteFile) open() (*sql.DB, error) {
	return driver.Open("file:" + f.path + "?mode=rw&_pragma=busy_timeout(5000)")
}

// use opens the file for one task.
func (f *sqliteFile) use(ctx context.Context, do func(context.Context, *sql.Conn) error) error {
	f.gate.RLock()
	defer f.gate.RUnlock()
	db, err := f.open()
	if err != nil {
		return err
	}
	defer db.Close()
	return withConn(ctx, db, do)
}

// Block implements Database: a foreign process (the harness) has the write
// lock.
func (f *sqliteFile) Block(ctx context.Context) (unblock func(), err error) {
	db, err := f.open()
	if err != nil {
		return nil, err
	}
	free, err := block(ctx, db, `BEGIN IMMEDIATE`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return func() { free(); db.Close() }, nil
}

func (f *sqliteFile) Blocked(ctx context.Context) bool {
	err := f.exec(ctx, `PRAGMA busy_timeout = 20; BEGIN IMMEDIATE; ROLLBACK`)
	return errors.Is(err, sqlite3.BUSY) || errors.Is(err, sqlite3.PROTOCOL)
}

// emptyWAL lets all pages be in the file itself.
func (f *sqliteFile) emptyWAL(ctx context.Context) {
	_ = f.exec(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
}

// copyTo makes a consistent copy, as a backup does.
func (f *sqliteFile) copyTo(ctx context.Context, path string) error {
	return f.exec(ctx, `VACUUM INTO '`+strings.ReplaceAll(path, "'", "''")+`'`)
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
