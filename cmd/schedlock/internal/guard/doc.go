// Package guard keeps a command inside a lease: the command and all that it
// starts are gone before another machine may run the same.
//
// # Three processes
//
//	outer → inner → command
//
// Outer is what the shell sees. It starts this program again as inner, which
// holds the lock and starts the command in a process group of its own. Any of the
// three may be killed or stopped at any time:
//
//   - The command ends: inner ends what the command has left behind.
//   - The lease ends: inner sends SIGTERM to the group, waits for the grace, and
//     kills what is left, before the TTL has passed.
//   - Inner dies: the kernel kills the command (PR_SET_PDEATHSIG), and outer kills
//     what is left.
//   - Inner is stopped, or hangs: until when its lease is trusted stands in memory
//     that both map. If that moment passes, outer kills inner and the rest.
//   - Outer is stopped: nothing waits for it, and it reads that moment when it goes on.
//   - Outer dies: inner finds its connection closed, kills the rest, and gives the
//     lock back.
//
// On Linux both are subreapers (PR_SET_CHILD_SUBREAPER): a process whose parent
// dies becomes a child of inner, or of outer if inner is dead, also one that has
// left the group (setsid). So both can find them all: who kills its children
// again and again until it has none has killed the tree. Elsewhere only the
// process group is known.
//
// # What this does not protect from
//
// If outer and inner are both killed, or both stopped past the TTL, nobody is left
// to act: the kernel still kills the command itself when inner is killed, but not
// what it has started, unless they are in a PID namespace. On SQLite the tree then
// holds on to the lease file, so that nobody takes the holder for dead before its
// TTL has passed. A process of another user, such as one that sudo has started,
// cannot be killed by us. For all of these there is the fence: see schedlock fence.
package guard

import (
	"strings"
	"time"
)

// Slack is what is needed of the time between the end of trust in the lock and its
// TTL, to kill a tree, and for outer to notice that inner does not.
const Slack = 250 * time.Millisecond

// innerName, the pid of outer and the numbers of two descriptors are os.Args[0] of the inner
// process.
const innerName = "schedlock: inner of "

// IsInner reports whether a process with these arguments was started by Outer.
func IsInner(args []string) bool { return len(args) > 0 && strings.HasPrefix(args[0], innerName) }
