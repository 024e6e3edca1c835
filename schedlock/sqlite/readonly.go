package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.com/schedlock/internal/leasefile"
)

// Read hands do a store on the database file that dsn names, for looking only:
// Look, Terms, Jobs, Run, Runs and Pending answer, what would write fails. It is
// for tools that look at a database which others use, or nobody: it makes no
// file and no folder, neither the database nor what SQLite puts beside it, and
// changes no byte of them, except the locks in the shared memory (-shm) of a
// database that is in use. Of dsn's parameters those that set pragmas or the
// mode are left out. The schema may be of any version: see migrations.Version.
//
// A file that nobody is writing to is read without any lock. If somebody has
// begun to meanwhile, do is called again: it must keep nothing of an earlier
// call. The store is closed when do returns. The error is that of do, or names
// the file and what is wrong with it.
//
// One gap is left: if the last process that has the database open closes it in
// the instant between the look around and the opening, SQLite leaves an empty
// -wal and a -shm file of this user.
//
// SQLite can read a -wal file only with the -shm file beside it, and only if
// this user may write both, so otherwise Read returns an error that says what
// to do.
func Read(ctx context.Context, dsn string, do func(context.Context, *Store) error) error {
	src, err := findSource(dsn)
	if err != nil {
		return err
	}
	var (
		last  surroundings
		since time.Time // when they were seen first
	)
	for {
		before, err := lookAround(src.path)
		if err != nil {
			return err
		}
		if before != last || since.IsZero() {
			last, since = before, time.Now()
		}
		switch unreadable := before.checkWAL(src.path); {
		case before.quiet():
			err := readOnce(ctx, src, "mode=ro&immutable=1", do)
			if after, lookErr := lookAround(src.path); lookErr == nil && after == before {
				return err
			}
		case unreadable == nil:
			return readOnce(ctx, src, "mode=ro", do)
		case time.Since(since) > settle:
			return unreadable
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("database %s is opened and closed by others all the time: %w",
				src.path, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// settle is for how long one -wal file without a -shm file may be one that is just
// being made, or removed.
const settle = time.Second

func readOnce(ctx context.Context, src dataSource, mode string,
	do func(context.Context, *Store) error) (err error) {
	store, err := openExisting(ctx, src, mode+"&_pragma=query_only(1)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return do(ctx, store)
}

// OpenExisting is Open for a tool that writes to a database which others own:
// the file must exist, its journal mode stays what it is, and no lease file is
// made unless a lock is acquired.
func OpenExisting(ctx context.Context, dsn string, opts ...Option) (*Store, error) {
	src, err := findSource(dsn)
	if err != nil {
		return nil, err
	}
	return openExisting(ctx, src, "mode=rw&_txlock=immediate&_pragma=synchronous(full)", opts...)
}

// findSource is parseDSN for a file that must be there; its path has no
// symbolic links, so that what lies beside it is found.
func findSource(dsn string) (src dataSource, err error) {
	if src, err = parseDSN(dsn); err != nil {
		return src, err
	}
	err = checkFile(src.path)
	if errors.Is(err, fs.ErrNotExist) {
		return src, fmt.Errorf("database %s: %w: "+
			"correct the path (the app makes the file when it starts)", src.path, fs.ErrNotExist)
	}
	if err == nil {
		src.path, err = filepath.EvalSymlinks(src.path)
	}
	return src, err
}

func openExisting(ctx context.Context, src dataSource, params string,
	opts ...Option) (*Store, error) {
	readOnly := strings.HasPrefix(params, "mode=ro")
	files, err := findFiles(src.path)
	if err != nil && !(readOnly && errors.As(err, new(*LinksError))) {
		return nil, err
	}
	query := params + "&_pragma=busy_timeout(" + busyTimeoutMillis + ")"
	files.readOnly = readOnly
	db, err := openPool(files, fileURI(files.path)+"?"+query)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(openConns)
	opts = append(opts[:len(opts):len(opts)], func(s *Store) error {
		s.findLease, s.brief = leasefile.Find, true
		return nil
	})
	return open(ctx, db, files, opts)
}

// surroundings are a database file and what lies beside it, as far as it tells
// whether somebody has written, or may be writing.
type surroundings struct {
	fileStat
	wal     int64 // size of the -wal file; -1: there is none
	journal bool  // there is a rollback journal
}

func lookAround(path string) (s surroundings, err error) {
	if s.fileStat, err = examineFile(path); err != nil {
		return s, fmt.Errorf("database %s: %w", path, err)
	}
	s.wal = -1
	if wal, err := examineFile(path + "-wal"); err == nil {
		s.wal = wal.size
	}
	s.journal = exists(path + "-journal")
	return s, nil
}

// quiet reports whether the file alone is the whole database, and nobody was
// seen changing it.
func (s surroundings) quiet() bool { return s.wal <= 0 && !s.journal }

// checkWAL says in plain words what SQLite reports as "unable to open database
// file", and keeps it from making the -shm file.
func (s surroundings) checkWAL(path string) error {
	if s.wal <= 0 {
		return nil
	}
	if _, err := os.Stat(path + "-shm"); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("database %s has a -wal file beside it but no -shm file: "+
			"no process uses it (or the file was removed under one), "+
			"and SQLite cannot read it without making that file: "+
			"start the app, or run schedlock migrate, as the user who owns it", path)
	}
	for _, beside := range []string{"-wal", "-shm"} {
		if err := changeable(path + beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("database %s is in use, or was not closed, "+
				"and SQLite reads it only if it may write the %s file: "+
				"run this as the user of the app: %w", path, beside, err)
		}
	}
	return nil
}
