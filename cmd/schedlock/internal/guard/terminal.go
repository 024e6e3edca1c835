//go:build linux

package guard

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A terminal is that of standard input, if this process group has it.
type terminal struct {
	fd    int
	group int // ours
}

// ownTerminal returns nil unless standard input is a terminal that is ours to
// give away.
func ownTerminal() *terminal {
	fd := int(os.Stdin.Fd())
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return nil
	}
	return &terminal{fd: fd, group: group}
}

// foreground is the process group that reads from the terminal now.
func (t *terminal) foreground() int {
	group, _ := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return group
}

// give makes a group the one that reads from the terminal. In the background that
// stops who asks for it, unless SIGTTOU is blocked. It is blocked, not ignored:
// what is ignored stays so in programs that are started.
func (t *terminal) give(group int) {
	if group <= 0 {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	blocked := set(unix.SIGTTOU)
	var before unix.Sigset_t
	if unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before) != nil {
		return
	}
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
}

func set(sig unix.Signal) (s unix.Sigset_t) {
	n := uint(sig) - 1
	s.Val[n/64] |= 1 << (n % 64)
	return s
}
