//go:build linux

package guard

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A reaper waits for all children of this process, those that it has adopted
// included. Nothing else in the process may wait for a child.
type reaper struct {
	mu      sync.Mutex
	watched map[int]func(unix.WaitStatus) // by pid
	none    bool                          // there was no child when it last looked
	changed chan struct{}                 // closed and replaced when a child has ended
}

func startReaper() *reaper {
	r := &reaper{watched: map[int]func(unix.WaitStatus){}, none: true,
		changed: make(chan struct{})}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	go func() {
		for range died {
			r.reap()
		}
	}()
	return r
}

// start starts a child and calls tell with each change of its state, its end last.
func (r *reaper) start(do func() (pid int, err error), tell func(unix.WaitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := do()
	if err == nil {
		r.watched[pid], r.none = tell, false
	}
	return pid, err
}

// reap notes who has ended or was stopped.
func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ECHILD
			r.none = true
		case pid > 0:
			r.none = false
			if tell := r.watched[pid]; tell != nil {
				if !status.Stopped() {
					delete(r.watched, pid)
				}
				tell(status)
			}
			continue
		}
		close(r.changed)
		r.changed = make(chan struct{})
		return
	}
}

// empty reports whether there is no child, and returns what is closed at the next
// change.
func (r *reaper) empty() (bool, <-chan struct{}) {
	r.reap()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.none, r.changed
}

// signal sends a signal to a group, and to all children that are not in had, which
// notes them. Those that are stopped go on, to receive it.
func (r *reaper) signal(group int, sig unix.Signal, had map[int]bool) {
	r.mu.Lock() // so that no pid is reaped, and used again, before it gets the signal
	defer r.mu.Unlock()
	if sig == unix.SIGKILL && namespaced() {
		_ = unix.Kill(-1, sig) // all but this process
		return
	}
	targets := children()
	if group > 0 {
		targets = append(targets, -group)
	}
	for _, pid := range targets {
		if had[pid] {
			continue
		}
		had[pid] = true
		_ = unix.Kill(pid, sig)
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// await waits until there is no child and no member of the group, or until the
// time of until.
func (r *reaper) await(group int, until time.Duration) bool {
	for {
		none, changed := r.empty()
		if none && !exists(group) {
			return true
		}
		left := until - bootTime()
		if left <= 0 {
			return false
		}
		timer := time.NewTimer(min(left, 50*time.Millisecond))
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// kill kills all children, and those that become children by that, until there
// is none.
func (r *reaper) kill(group int) {
	for pause := time.Duration(0); !r.await(group, bootTime()+pause); {
		r.signal(group, unix.SIGKILL, map[int]bool{})
		pause = min(max(2*pause, time.Millisecond), 50*time.Millisecond)
	}
}

// exists reports whether a process group has members.
func exists(group int) bool { return group > 0 && unix.Kill(-group, 0) == nil }
