package sqlite

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What only Linux tells.

// changedAt is when the state of a file was last changed (ctime): written to,
// renamed, or removed.
func changedAt(info fs.FileInfo) (time.Time, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(st.Ctim.Unix()), true
}

// A descriptor is one of a regular file that this process has open.
type descriptor struct {
	fd   int
	file fileID
}

// descriptors lists them. It opens none of the files.
func descriptors() ([]descriptor, error) {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var all []descriptor
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			all = append(all, descriptor{fd, fileID{dev: uint64(st.Dev), ino: st.Ino}})
		}
	}
	return all, nil
}

// path is where the file was opened, and moved to since.
func (d descriptor) path() string {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", d.fd))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(path, " (deleted)")
}

func (d descriptor) writable() bool {
	flags, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
}

// locked reports whether this process has a byte of the file locked. known is
// false if the system does not tell.
func (d descriptor) locked(at int64) (locked, known bool) {
	// One does not see this descriptor's own, the other the process's.
	for _, ask := range []int{unix.F_OFD_GETLK, unix.F_GETLK} {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
		if unix.FcntlFlock(uintptr(d.fd), ask, &lock) != nil {
			continue
		}
		known = true
		if lock.Type != unix.F_UNLCK && (lock.Pid == -1 || int(lock.Pid) == os.Getpid()) {
			return true, true
		}
	}
	return false, known
}

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
