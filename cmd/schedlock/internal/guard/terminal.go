//go:build linux

package guard

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A terminal is that of standard input. The shell gives it to one process group of
// the session at a time: that is in the foreground, the others are not.
type terminal struct {
	fd    int
	group int // ours
	// Standard output is a pipe: a pager at its end reads from the terminal, too. A
	// command gets the terminal if it asks for it, not before.
	piped bool
}

// ownTerminal returns nil unless standard input is the terminal of this session.
// A process whose group has no number in its PID namespace leaves it to outer.
func ownTerminal() *terminal {
	fd, group := int(os.Stdin.Fd()), unix.Getpgrp()
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || group == 0 {
		return nil
	}
	var out unix.Stat_t
	err := unix.Fstat(int(os.Stdout.Fd()), &out)
	return &terminal{fd: fd, group: group,
		piped: err == nil && out.Mode&unix.S_IFMT == unix.S_IFIFO}
}

// ours reports whether the command gets the terminal now.
func (t *terminal) ours() bool {
	return t != nil && !t.piped && t.foreground() == t.group
}

// takeBack takes the terminal from a command that has ended, or from what it has
// given it to. It does not take it from the shell.
func (t *terminal) takeBack(group int) {
	if t == nil {
		return
	}
	if front := t.foreground(); front != t.group && (front == group || !exists(front)) {
		t.give(t.group)
	}
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
