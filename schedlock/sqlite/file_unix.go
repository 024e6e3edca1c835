//go:build unix

package sqlite

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func readable(path string) error { return access(path, unix.R_OK) }

func writable(path string) error { return access(path, unix.W_OK|unix.X_OK) }

// access asks with the effective ids, without opening the file.
func access(path string, mode uint32) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

func identify(path string) (fileID, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileID{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, fmt.Errorf("%s: no inode number", path)
	}
	return fileID{dev: uint64(st.Dev), ino: uint64(st.Ino)}, nil
}
