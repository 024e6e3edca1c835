package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/pressly/goose/v3"

	"example.com/schedlock/internal/filesystem"
)

const (
	// Needs no look at the content, so it answers for a file that is not a database too. Its first
	// row is that of main.
	sqliteDatabaseList = `PRAGMA database_list`

	sqliteTables = `
SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'scheduler_lock_schema'),
       EXISTS (SELECT 1 FROM sqlite_master
               WHERE type = 'table' AND name = 'scheduler_lock_migrations')`

	sqliteSchema = `
SELECT coalesce(max(version), 0), coalesce(max(min_code), 0)
FROM scheduler_lock_schema`
)

// lockPoll is how often a process that waits for the migration lock looks again. One that holds it
// needs a few milliseconds.
const lockPoll = 5 * time.Millisecond

var sqliteEngine = engine{
	folder: "sqlite", goose: goose.DialectSQLite3,
	noSchemas: "use another file",
	read:      readSQLite,
	alone:     aloneSQLite,
	transient: isBusy,
	shortest:  2 * time.Millisecond, longest: 100 * time.Millisecond,
}

// readSQLite reads what the database says about itself. A migration creates and fills
// scheduler_lock_schema in one transaction, so the order of the reads does not matter: the table is
// there with its row, or not at all.
func readSQLite(ctx context.Context, db *sql.DB, _ string) (state, error) {
	path, err := pathSQLite(ctx, db)
	if err != nil {
		return state{}, err
	}
	s := state{database: path}
	exists := false
	if err := db.QueryRowContext(ctx, sqliteTables).Scan(&exists, &s.hasVersionTable); err != nil {
		return state{}, fmt.Errorf("look for table scheduler_lock_schema in %s: %w", path, err)
	}
	if !exists {
		return s, nil
	}
	if err := db.QueryRowContext(ctx, sqliteSchema).Scan(&s.version, &s.minCode); err != nil {
		return state{}, fmt.Errorf("read table scheduler_lock_schema in %s: %w", path, err)
	}
	return s, nil
}

// inMemory is what errors call a database without a file.
const inMemory = "the in-memory database"

// pathSQLite asks the connection which file it has open. Symbolic links are resolved, so that all
// processes find the same path, whichever way they came.
func pathSQLite(ctx context.Context, db *sql.DB) (string, error) {
	var (
		seq  int
		name string
		file sql.NullString
	)
	if err := db.QueryRowContext(ctx, sqliteDatabaseList).Scan(&seq, &name, &file); err != nil {
		return "", fmt.Errorf("open the SQLite database: %w", err)
	}
	if file.String == "" {
		return inMemory, nil
	}
	path, err := filepath.EvalSymlinks(file.String)
	if errors.Is(err, os.ErrNotExist) {
		// A virtual file system such as memdb has names without files.
		return inMemory, nil
	}
	if err != nil {
		return "", fmt.Errorf("resolve the path of the SQLite database %s: %w", file.String, err)
	}
	return filepath.Abs(path)
}

// inMemoryLock stands in for the lock file of databases that have none.
var inMemoryLock = make(chan struct{}, 1)

// aloneSQLite calls do while it has the lock.
func aloneSQLite(ctx context.Context, db *sql.DB, s state, do func(*sql.DB) error) (err error) {
	unlock, err := lockSQLite(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return do(db)
}

// lockSQLite keeps every other caller of it away from the database, in this process and in others,
// until unlock is called or the process ends. It waits for its turn until ctx ends.
func lockSQLite(ctx context.Context, s state) (unlock func() error, err error) {
	path := s.database
	if path == inMemory {
		select {
		case inMemoryLock <- struct{}{}:
			return func() error { <-inMemoryLock; return nil }, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another migration of %s: %w", path, ctx.Err())
		}
	}
	lock := flock.New(lockPath(path), flock.SetFlag(os.O_RDONLY|filesystem.OpenFlags))
	for {
		if err := makeLockFile(path); err != nil {
			return nil, fmt.Errorf("lock file to migrate %s: %w", path, err)
		}
		_, err := lock.TryLockContext(ctx, lockPoll)
		switch {
		case err == nil:
			return lock.Unlock, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("wait for the process that migrates %s and holds %s: %w", path,
				lock.Path(), err)
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("lock %s to migrate %s: %w: "+
				"give it to the owner of the database, or remove it", lock.Path(), path, err)
		case !errors.Is(err, fs.ErrNotExist): // else it was removed while we waited
			return nil, fmt.Errorf("lock %s to migrate %s: %w", lock.Path(), path, err)
		}
	}
}

func lockPath(path string) string { return path + "-migrate.lock" }

// makeLockFile makes the lock file if there is none. Whatever else lies in its place is an error:
// without the lock two replicas would migrate at once.
func makeLockFile(path string) error {
	info, err := filesystem.CheckRegular(lockPath(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return filesystem.Make(lockPath(path), path, "")
	case err != nil:
		return err
	case info.Size() > 0:
		return fmt.Errorf("%s is not empty, so schedlock has not made it: remove it",
			lockPath(path))
	}
	return nil
}

// isBusy goes by SQLite's own texts (SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL),
// which every driver passes on: an app that uses PostgreSQL, or another SQLite
// driver, must not link one for our sake.
func isBusy(err error) bool {
	text := err.Error()
	for _, busy := range []string{
		"database is locked",
		"database table is locked",
		"database schema is locked",
		"locking protocol",
	} {
		if strings.Contains(text, busy) {
			return true
		}
	}
	return false
}
