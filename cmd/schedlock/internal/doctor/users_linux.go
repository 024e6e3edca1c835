package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// users names the processes that have the database open, as far as this user
// may see.
func users(path string) string {
	db, err := os.Stat(path)
	if err != nil {
		return ""
	}
	var found []string
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		fds, _ := os.ReadDir(proc + "/fd")
		for _, fd := range fds {
			// Not by name: a process in a container knows it by another.
			if info, err := os.Stat(proc + "/fd/" + fd.Name()); err == nil &&
				os.SameFile(info, db) {
				comm, _ := os.ReadFile(proc + "/comm")
				found = append(found, fmt.Sprintf("pid %s (%s)",
					filepath.Base(proc), strings.TrimSpace(string(comm))))
				break
			}
		}
	}
	if len(found) == 0 {
		return "; no process that this user may see has it open"
	}
	return "; opened by " + list(found)
}

// The byte of the -shm file that SQLite's writer locks (walformat.html, 2.3.1).
const writeLockByte = 120

// checkWriter reports a write lock that is not given back. It asks, and takes
// none. The -shm file is opened beside SQLite here, which does no harm: this
// program's own SQLite has no POSIX locks on it.
func checkWriter(ctx context.Context, f *findings, path string, limits bounds) {
	file, err := os.Open(path + "-shm")
	if err != nil {
		return
	}
	defer file.Close()
	for end := time.Now().Add(limits.longWrite); ; time.Sleep(20 * time.Millisecond) {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: writeLockByte, Len: 1}
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil ||
			ctx.Err() != nil {
			return
		}
		if lock.Type == unix.F_UNLCK {
			f.ok("writers", "no writer holds the database for long")
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	f.warn("writers", fmt.Sprintf("somebody has written, or held a write transaction open, "+
		"for more than %s%s", limits.longWrite, users(path)),
		"heartbeats wait for it, and the leader steps down if it lasts: look for a long "+
			"transaction or import, or a process that was stopped inside one; end it if need be")
}
