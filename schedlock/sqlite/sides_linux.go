package sqlite

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// followSides gives the -wal and -shm files the owner and the mode of the
// database, as SQLite's own VFS does and the driver's does not: else a start by
// root locks the app's user out, and the -wal of a database that is nobody's
// business can be read by all.
func (s *Store) followSides() {
	var db unix.Stat_t
	if s.files.readOnly || unix.Stat(s.files.path, &db) != nil {
		return
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		followSide(s.files.path+suffix, &db)
	}
}

// followSide opens nothing: closing a descriptor of the file would drop the locks
// that another SQLite in this process has on it. Nor does it follow a link, or
// touch a file that has another name too: it may be anybody's.
func followSide(path string, db *unix.Stat_t) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	side, ok := onlyName(path, fd)
	if !ok || side.Uid == db.Uid && side.Gid == db.Gid && side.Mode&0o777 == db.Mode&0o666 {
		return
	}
	if uid := os.Geteuid(); uid != 0 && uid != int(side.Uid) {
		return
	}
	// A file of somebody else that was linked here, opened, and unlinked again has
	// one name too, its own, and for an instant it can still be found here. Linking
	// and unlinking change its ctime.
	time.Sleep(settleTime)
	if again, ok := onlyName(path, fd); !ok || again.Ctim != side.Ctim {
		return
	}
	if side.Uid != db.Uid || side.Gid != db.Gid {
		if unix.Fchownat(fd, "", int(db.Uid), int(db.Gid), unix.AT_EMPTY_PATH) != nil {
			_ = unix.Fchownat(fd, "", -1, int(db.Gid), unix.AT_EMPTY_PATH)
		}
		if unix.Fstat(fd, side) != nil {
			return
		}
	}
	mode := db.Mode & 0o666
	if side.Gid != db.Gid {
		mode &^= 0o070 // the rights of the database's group are not another's
	}
	if side.Mode&0o777 != mode {
		// fails if it is not ours
		_ = os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), os.FileMode(mode))
	}
}

// settleTime is longer than a tick of the clock that the kernel takes a file's
// times from (10 ms at most).
const settleTime = 20 * time.Millisecond

// onlyName returns the state of what fd has open, and whether it is a regular
// file that lies at path, and nowhere else.
func onlyName(path string, fd int) (*unix.Stat_t, bool) {
	var open, lies unix.Stat_t
	if unix.Fstat(fd, &open) != nil || unix.Lstat(path, &lies) != nil {
		return nil, false
	}
	return &open, open.Dev == lies.Dev && open.Ino == lies.Ino && open.Nlink == 1 &&
		open.Mode&unix.S_IFMT == unix.S_IFREG
}
