//go:build unix

package sqlite

import (
	"os"

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

func identify(path string) (fileID, error) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		if err == nil {
			return fileID{dev: uint64(st.Dev), ino: st.Ino}, nil
		}
		if err != unix.EINTR {
			return fileID{}, &os.PathError{Op: "stat", Path: path, Err: err}
		}
	}
}
