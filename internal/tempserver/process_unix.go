//go:build unix

package tempserver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/schedlock/internal/child"
)

// watchdog reads a process id per line, 0 for none, until the test binary closes its end of the
// pipe or dies. Then it ends the last process, and deletes the directory.
const watchdog = `
pid=0
while read -r line; do pid=$line; done
if [ "$pid" != 0 ]; then
  kill -QUIT "$pid" 2>/dev/null
  i=0
  while [ $i -lt 50 ] && kill -0 "$pid" 2>/dev/null; do sleep 0.1; i=$((i+1)); done
  kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$1"
`

// A Process is a directory and the server process that works in it. It needs no goroutine, so that
// tests can look for leaked ones.
type Process struct {
	Dir        string
	Env        []string            // more of the environment of what it runs
	credential *syscall.Credential // nil: the user of the test
	pid        atomic.Int64        // 0: does not run
	watchdog   int
	pipe       *os.File
	removed    sync.Once
}

// A DiedError says that a server ended while it was to start.
type DiedError struct{ Name, Log string }

func (e *DiedError) Error() string { return fmt.Sprintf("%s did not start: %s", e.Name, e.Log) }

// New makes the directory, on a disk or in memory, and starts the watchdog. Root runs the server as
// the first of the users that there is.
func New(disk bool, users ...string) (*Process, error) {
	p := &Process{}
	base := os.TempDir()
	if disk {
		base = child.Disk
	}
	if os.Getuid() == 0 {
		var err error
		if p.credential, err = unprivileged(users); err != nil {
			return nil, err
		}
		if !open(base) {
			base = "/tmp"
		}
	}
	if len(base) > 60 { // the path of a Unix socket has room for 107 bytes
		base = "/tmp"
	}
	var err error
	if p.Dir, err = os.MkdirTemp(base, "tempserver"); err != nil {
		return nil, err
	}
	if p.credential != nil {
		if err := os.Chown(p.Dir, int(p.credential.Uid), int(p.credential.Gid)); err != nil {
			return nil, err
		}
	}
	read, write, err := os.Pipe() // close on exec
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", watchdog, "schedlock-watchdog", p.Dir)
	cmd.Stdin = read
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C at the terminal is not for it
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, err
	}
	p.pipe, p.watchdog = write, cmd.Process.Pid
	return p, cmd.Process.Release()
}

// unprivileged returns the user that root runs servers as.
func unprivileged(users []string) (*syscall.Credential, error) {
	for _, name := range users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, &MissingError{"a user " + strings.Join(users, " or ") +
		", as the server does not run as root"}
}

// open reports whether everybody may pass through all of path.
func open(path string) bool {
	for {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if path == filepath.Dir(path) {
			return true
		}
		path = filepath.Dir(path)
	}
}

// Command runs name in the directory, without the variables of the environment. A server that forks
// for each session resolves its symbols once, not in each of them.
func (p *Process) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = p.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.Dir, "LC_ALL=C", "TZ=UTC",
		"LD_BIND_NOW=1"}
	cmd.Env = append(cmd.Env, p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.credential}
	return cmd
}

// Run runs a program to its end.
func (p *Process) Run(name string, args ...string) error {
	_, err := p.Output(name, args...)
	return err
}

// Output runs a program to its end, and returns what it says.
func (p *Process) Output(name string, args ...string) (string, error) {
	out, err := p.Command(name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return string(out), err
}

// Start starts the server and waits until it is ready; it is a *DiedError if it ended before.
func (p *Process) Start(ready func() bool, name string, args ...string) error {
	path := filepath.Join(p.Dir, "log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		return err
	}
	cmd := p.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := p.set(cmd.Process.Pid); err != nil {
		return err
	}
	_ = cmd.Process.Release() // it is waited for by its id
	for deadline := time.Now().Add(Patience); !ready(); time.Sleep(5 * time.Millisecond) {
		switch {
		case p.Ended():
			content, _ := os.ReadFile(path)
			return &DiedError{name, string(content[min(before.Size(), int64(len(content))):])}
		case time.Now().After(deadline):
			_ = p.Stop(syscall.SIGQUIT)
			content, _ := os.ReadFile(path)
			return fmt.Errorf("%s is not ready after %v: %s", name, Patience,
				bytes.TrimSpace(content))
		}
	}
	return nil
}

// Stop signals the process and waits for its end. One that does not run is fine.
func (p *Process) Stop(signal syscall.Signal) error {
	if p.Ended() {
		return nil
	}
	pid := int(p.pid.Load())
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(Patience); !p.Ended(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return fmt.Errorf("process %d did not end within %v of signal %v", pid, Patience,
				signal)
		}
	}
	return nil
}

// Signal sends the process a signal.
func (p *Process) Signal(signal syscall.Signal) error { return syscall.Kill(p.PID(), signal) }

// Remove ends the process if it runs, and deletes the directory. It may be called again.
func (p *Process) Remove() {
	p.removed.Do(func() {
		_ = p.Stop(syscall.SIGQUIT)
		_ = p.pipe.Close()
		for !reap(p.watchdog) {
			time.Sleep(2 * time.Millisecond)
		}
	})
}

// Ended reports whether the process does not run, and forgets one that has ended.
func (p *Process) Ended() bool {
	pid := int(p.pid.Load())
	if pid == 0 {
		return true
	}
	if !reap(pid) {
		return false
	}
	_ = p.set(0)
	return true
}

// set tells the watchdog which process to end. Until it is reaped its id is not used again.
func (p *Process) set(pid int) error {
	p.pid.Store(int64(pid))
	_, err := fmt.Fprintln(p.pipe, pid)
	return err
}

// reap reports whether a child has ended, without waiting for it.
func reap(pid int) bool {
	reaped, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	return reaped == pid || err == syscall.ECHILD
}

// PID is the process id of the server, 0 if it does not run.
func (p *Process) PID() int { return int(p.pid.Load()) }
