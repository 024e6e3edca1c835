package sqlite

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// SQLite locks these bytes of a database file: from the one of PENDING on, and
// while a connection in WAL mode is open, those of SHARED ("File Locking And
// Concurrency In SQLite Version 3").
const (
	lockFirst = 0x40000000
	lockSize  = 2 + 510
)

// lockedElsewhere reports whether somebody else has a lock of SQLite's on the file.
// It takes none: of many that ask at once none finds another. ok is false if the
// file does not tell.
func lockedElsewhere(file io.ReaderAt) (locked, ok bool) {
	conn, isFile := unwrap(file).(syscall.Conn)
	if !isFile {
		return false, false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, false
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: lockFirst, Len: lockSize}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.FcntlFlock(fd, unix.F_OFD_GETLK, &lock)
	}); err != nil || failed != nil {
		return false, false
	}
	return lock.Type != unix.F_UNLCK, true
}
