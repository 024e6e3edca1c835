//go:build !linux

package sqlite

import (
	"errors"
	"io"
	"io/fs"
	"time"
)

// What only Linux tells, or lets us do.

// bootNow is the clock by which holds are judged: the wall clock here, since
// the system has none that all processes share, that counts suspend, and that
// nobody can set. A clock that is set forward ends holds early.
func bootNow() (ms int64, bootID string) { return wallNow() }

func changedAt(fs.FileInfo) (t time.Time, ok bool) { return t, false }

// A descriptor is one of a regular file that this process has open.
type descriptor struct {
	fd   int
	file fileID
}

// descriptors cannot tell here.
func descriptors() ([]descriptor, error) { return nil, errors.ErrUnsupported }

func (descriptor) path() string { return "" }

func (descriptor) writable() bool { return false }

func (descriptor) locked(int64) (locked, known bool) { return false, false }

// followSides leaves the -wal and -shm files as the driver makes them.
func (s *Store) followSides() {}

func lockedElsewhere(io.ReaderAt) (locked, ok bool) { return false, false }
