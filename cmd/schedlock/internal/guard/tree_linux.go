package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/clock"
)

// adopt makes this process the parent of all that its descendants leave behind
// (prctl(2), PR_SET_CHILD_SUBREAPER).
func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// ownProc returns an error unless /proc has the numbers of this PID namespace. With those of
// another, children would be none of ours, and what left the group of the command would stay.
func ownProc() error {
	self, err := os.Readlink("/proc/self")
	if err == nil && self == strconv.Itoa(os.Getpid()) {
		return nil
	}
	return errors.New("/proc does not show this PID namespace, so the processes that a command " +
		"starts can't be found: mount it, such as by unshare --mount-proc")
}

// children are the processes whose parent is this one, dead ones that were not
// reaped included.
func children() []int { return childrenOf(os.Getpid()) }

func childrenOf(process int) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent(pid) == process {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parent reads the fourth field of /proc/PID/stat; the second one may have blanks
// and brackets. 0: there is no such process.
func parent(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(string(fields[1]))
	return ppid
}

// onOwnThread starts a child on a thread that lives until over is closed; nil: as long as
// this process. The kernel takes the end of that thread for that of the child's parent.
func onOwnThread(start func() (int, error), over <-chan struct{}) (pid int, err error) {
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		pid, err = start()
		failed := err != nil
		close(started)
		if !failed {
			<-over
		}
	}()
	<-started
	return pid, err
}

func startProcess(path string, args []string, attr *os.ProcAttr) (int, error) {
	p, err := os.StartProcess(path, args, attr)
	if err != nil {
		return 0, err
	}
	return p.Pid, nil
}

// handDown gives each process that is started before taken is called a copy of the descriptor, at
// the number fd. It is a high one: the low ones, which shells open by number, are the caller's.
func handDown(file *os.File) (fd int, taken func(), err error) {
	for _, lowest := range []int{200, 3} { // the system may allow fewer than 200
		if fd, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD, lowest); err == nil {
			return fd, func() { _ = unix.Close(fd) }, nil
		}
	}
	return 0, nil, fmt.Errorf("copy the descriptor of %s: %w", file.Name(), err)
}

// dieWithParent is the part of SysProcAttr by which a child dies with us.
func dieWithParent(attr *unix.SysProcAttr) { attr.Pdeathsig = unix.SIGKILL }

// bootTime goes on while the machine is suspended, and is the same in all processes.
var bootTime = clock.System.Boot
