package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// In a PID namespace inner is process 1, and the kernel kills all others in it when
// that ends. So a tree has no survivors, whoever is killed.
//
// Inner dies with outer then (PR_SET_PDEATHSIG), though it could give the lock back
// if it lived on. But it may be stopped, and the tree with it would outlive the
// TTL. The price: if only outer is killed, the lock on PostgreSQL waits for its TTL.
// On SQLite the lease file proves the death at once.

// startInNamespace starts inner in namespaces of its own: as root in those for
// PIDs and mounts, otherwise in one for users besides, where it may mount /proc.
func startInNamespace(exe string, args []string, attr *os.ProcAttr) (int, error) {
	return onOwnThread(func() (int, error) {
		attr.Sys = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
		dieWithParent(attr.Sys)
		pid, err := startProcess(exe, args, attr)
		if errors.Is(err, unix.EPERM) {
			uid, gid := os.Geteuid(), os.Getegid()
			attr.Sys.Cloneflags |= unix.CLONE_NEWUSER
			attr.Sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
			attr.Sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
			attr.Sys.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN} // for settle
			pid, err = startProcess(exe, args, attr)
		}
		if err != nil {
			err = fmt.Errorf("--pid-namespace is not permitted here, it needs root "+
				"or unprivileged user namespaces: %w", err)
		}
		return pid, err
	}, nil)
}

// namespaced reports whether this process is inner in a namespace of its own.
func namespaced() bool { return os.Getpid() == 1 && IsInner(os.Args) }

// settle gives a new PID namespace a /proc of its own. Only the mount of /proc
// becomes private: what else the command mounts is seen outside as ever.
func settle() error {
	if !namespaced() {
		return nil
	}
	err := unix.Mount("", "/proc", "", unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err != nil {
		return fmt.Errorf("--pid-namespace is not permitted here, /proc cannot be mounted: %w", err)
	}
	return nil
}

// dropRights takes from what this thread starts what settle needed.
func dropRights() {
	if namespaced() {
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	}
}

// translated is the pid here of a child of inner that has another in the namespace
// of inner. 0: it has ended.
func translated(inner, pid int) int {
	last := []byte(strconv.Itoa(pid))
	for _, child := range childrenOf(inner) {
		status, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/status")
		_, line, _ := bytes.Cut(status, []byte("\nNSpid:"))
		line, _, _ = bytes.Cut(line, []byte("\n"))
		if pids := bytes.Fields(line); len(pids) > 0 && bytes.Equal(pids[len(pids)-1], last) {
			return child
		}
	}
	return 0
}
