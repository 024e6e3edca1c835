//go:build unix

package sqlite

import (
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func readable(path string) error { return access(path, unix.R_OK) }

func writable(path string) error { return access(path, unix.W_OK|unix.X_OK) }

func changeable(path string) error { return access(path, unix.W_OK) }

// access asks with the effective ids, without opening the file.
func access(path string, mode uint32) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

func examineFile(path string) (fileStat, error) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		if err == nil {
			return fileStat{
				fileID:   fileID{dev: uint64(st.Dev), ino: st.Ino},
				links:    uint64(st.Nlink), // its width differs by system
				size:     st.Size,
				modified: time.Unix(st.Mtim.Unix()),
			}, nil
		}
		if err != unix.EINTR {
			return fileStat{}, &os.PathError{Op: "stat", Path: path, Err: err}
		}
	}
}

// idOf is identify for a file that is open.
func idOf(info fs.FileInfo) fileID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}
	}
	return fileID{dev: uint64(st.Dev), ino: st.Ino}
}

// likeDatabase gives a file the mode and the owner of the database file, as
// SQLite does with those that it makes beside it.
func likeDatabase(file *os.File, db fs.FileInfo) error {
	if st, ok := db.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		_ = file.Chown(int(st.Uid), int(st.Gid))
	}
	return file.Chmod(db.Mode().Perm())
}
