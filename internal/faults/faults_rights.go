//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// stranger is a user who owns nothing here.
const stranger = 65534

// LockAsStranger: a user who may enter the folder, and write nothing in it, puts
// read locks on all of the lease file, if he may open it; then the leader is
// killed. Bound: that of KillLeader. Who is not root cannot become somebody else.
func LockAsStranger(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile, p *process,
	_ Belief) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: only root can become another user", errCannotInject)
	}
	fd, err := openAsStranger(f.path + "-lease")
	switch {
	case err == nil:
		defer unix.Close(fd)
		if err := readLock(fd, 0, 0); err != nil {
			return err
		}
	case !errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w", errCannotInject, err)
	}
	c.kill(ctx, in, p)
	_, _, err = c.other(ctx, p) // the locks stay until then
	return err
}

// openAsStranger opens a file for reading with the rights that a stranger in its
// folder has, wherever that lies.
func openAsStranger(path string) (int, error) {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	runtime.LockOSThread() // whose user it is; it ends with the goroutine if it cannot be set back
	old, err := unix.SetfsuidRetUid(stranger)
	if err != nil {
		return -1, err
	}
	fd, openErr := unix.Openat(dir, filepath.Base(path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if _, err := unix.SetfsuidRetUid(old); err != nil {
		return fd, err
	}
	runtime.UnlockOSThread()
	return fd, openErr
}

// readLock takes read locks from start to end, 0 for the end of everything, on
// all but what others have locked for writing.
func readLock(fd int, start, end int64) error {
	for {
		lock := unix.Flock_t{Type: unix.F_RDLCK, Start: start, Len: max(end-start, 0)}
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		lock.Type = unix.F_RDLCK
		if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock); err != nil {
			return err
		}
		if lock.Type == unix.F_UNLCK {
			continue // given back meanwhile
		}
		if lock.Start > start {
			if err := readLock(fd, start, lock.Start); err != nil {
				return err
			}
		}
		start = lock.Start + lock.Len
	}
}
