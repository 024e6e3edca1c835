//go:build unix

package doctor

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const checksAccess = true

func mayRead(path string) error        { return access(path, unix.R_OK) }
func mayWrite(path string) error       { return access(path, unix.W_OK) }
func mayWriteFolder(path string) error { return access(path, unix.W_OK|unix.X_OK) }

// access asks with the effective ids, and opens nothing.
func access(path string, mode uint32) error {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS)
}

func root() bool { return os.Geteuid() == 0 }

func thisUser() string { return "user " + userName(os.Geteuid()) }

func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return fmt.Sprintf("%s (%s)", u.Username, id)
	}
	return id
}

// describe gives owner, group and mode.
func describe(info os.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Mode().String()
	}
	return fmt.Sprintf("owner %d, group %d, mode %v", st.Uid, st.Gid, info.Mode())
}

func owns(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

func sameOwner(a, b os.FileInfo) bool {
	x, ok1 := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	return !ok1 || !ok2 || x.Uid == y.Uid
}

func writableByAll(info os.FileInfo) bool { return info.Mode()&0o002 != 0 }

// links is how many names a file has.
func links(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) // its width differs by system
	}
	return 1
}
