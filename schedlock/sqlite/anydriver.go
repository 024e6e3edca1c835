package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// A driver other than github.com/ncruces/go-sqlite3 does not tell which files a
// connection has open. What follows finds it out from the descriptors of the
// process, on Linux. Elsewhere the files that lie at the paths are taken for
// those that are open.

// lookForOpen finds the files that the connection has open; the turn is held.
// They are those that lie at the paths, unless the process has not opened these,
// or still has others open that lay there before: then it works on files that
// nobody else will find.
func (s *Store) lookForOpen(ctx context.Context, conn *sql.Conn) error {
	var mode string
	if err := conn.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return err
	}
	suffixes := []string{""}
	if mode == "wal" {
		suffixes = []string{"", "-wal", "-shm"}
	}
	for tries := 0; ; tries++ {
		found, err := s.lookAtPaths(suffixes)
		if err == nil {
			if mode == "wal" {
				s.files.sets.Load().beside.Store(&besideFiles{wal: found[1], shm: found[2]})
			}
			return nil
		}
		if tries == 10 { // another connection of the app may just be closing
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *Store) lookAtPaths(suffixes []string) ([]fileID, error) {
	all, unknown := descriptors()
	var found []fileID
	for _, suffix := range suffixes {
		path := s.files.path + suffix
		id, err := identify(path)
		if err != nil && !isGone(err) {
			return nil, fmt.Errorf("database %s: %w", s.files.path, err)
		}
		opened := unknown != nil || slices.ContainsFunc(all, func(d descriptor) bool {
			return d.file == id
		})
		other := slices.ContainsFunc(all, func(d descriptor) bool {
			return d.file != id && d.path() == path
		})
		switch {
		case err == nil && opened && !other:
			found = append(found, id)
		case suffix == "":
			return nil, &FileChangedError{Path: path, Err: err}
		default:
			return nil, s.files.besideChanged(suffix, err)
		}
	}
	return found, nil
}

// The bytes that SQLite locks while it writes: RESERVED_BYTE of the database
// file, WAL_WRITE_LOCK of the -shm file (sqlite.org/fileformat2.html,
// sqlite.org/walformat.html).
const (
	reservedByte = 0x40000001
	walWriteByte = 120
)

// checkLocking makes sure that the driver's locks are those of the operating
// system: with nolock=1, another VFS, or a database that is no file, two replicas
// would write at once. Of ncruces' driver checkConnection knows it.
func (s *Store) checkLocking(ctx context.Context, conn *sql.Conn) error {
	if known, err := s.askOpen(conn); known || err != nil {
		return err
	}
	defer s.rollBack(ctx, conn)
	if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return err
	}
	file, at := s.files.file, int64(reservedByte)
	if beside := s.files.sets.Load().beside.Load(); beside != nil {
		file, at = beside.shm, walWriteByte
	}
	all, err := descriptors()
	if err != nil {
		return nil // see docs/drivers.md
	}
	asked := false
	for _, d := range all {
		if d.file != file {
			continue
		}
		locked, known := d.locked(at)
		if locked {
			return nil
		}
		asked = asked || known
	}
	if !asked {
		return nil
	}
	return fmt.Errorf("database %s: its driver begins a transaction without a lock on the file "+
		"that other processes could see: "+
		"remove nolock, vfs and other parameters that change how it locks", s.files.path)
}
