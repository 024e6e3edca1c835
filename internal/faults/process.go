//go:build linux

package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
)

// A process is one run of the test program.
type process struct {
	name    string
	slot    int
	dir     string
	cmd     *exec.Cmd
	exited  chan struct{}
	code    int           // read after exited; -1: killed by a signal
	endedAt time.Duration // likewise
	unread  *os.File      // the end of stderr that nobody reads; nil: it is a file
	stdin   io.Writer

	mu       sync.Mutex
	expected bool // somebody wants it to end
	stops    []Span
}

// startProcess starts the test program: this very binary.
func startProcess(dir string, s Settings) (*process, error) {
	p := &process{name: s.Name, slot: s.Slot, dir: dir, exited: make(chan struct{})}
	s.Files = p.file("")
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	stderr, err := p.openStderr(s.Load)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	p.cmd = exec.Command(exe, "-test.run=^$")
	environ := os.Environ()
	if s.Frugal {
		environ = child.Environ()
	}
	p.cmd.Env = append(environ, programEnv+"="+string(text))
	p.cmd.Stderr, p.cmd.Stdout = stderr, stderr
	// Of its own: should the harness die, the kernel resumes what is stopped.
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if s.Tunnel != "" {
		ownNetwork(p.cmd.SysProcAttr)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil { // it ends with the pipe, see ServeProgram
		return nil, err
	}
	start := p.cmd.Start
	if s.Frugal {
		start = func() error { return lazily(p.cmd.Start) }
	}
	if err := start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // the code says it all
		p.endedAt, p.code = bootTime(), p.cmd.ProcessState.ExitCode()
		if p.unread != nil {
			p.unread.Close()
		}
		close(p.exited)
	}()
	return p, nil
}

// lazily starts a process whose timers may be late by a millisecond. The monitor thread of Go's
// runtime wakes with each look of such a process, and sleeps for 20 µs at a time: without that it
// takes a tenth of what all processes need. The new process has what its parent's thread has.
func lazily(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Millisecond), 0, 0, 0); err != nil {
		return err
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // the default again
	return start()
}

// openStderr opens a file; or a pipe that is full already, which nobody reads.
func (p *process) openStderr(full bool) (*os.File, error) {
	if !full {
		return os.OpenFile(p.file("stderr"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.unread = r
	for text := bytes.Repeat([]byte{'\n'}, 1<<12); len(text) > 0; {
		_ = w.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := w.Write(text); err != nil {
			text = text[:len(text)/2]
		}
	}
	return w, nil
}

func (p *process) file(ext string) string { return filepath.Join(p.dir, p.name+"."+ext) }

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// expect says that the process may end now.
func (p *process) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
}

func (p *process) isExpected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expected
}

// kill ends it with SIGKILL and waits until it is gone.
func (p *process) kill() {
	p.expect()
	_ = p.cmd.Process.Kill()
	<-p.exited
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.stops); n > 0 && p.stops[n-1].To == 0 {
		p.stops[n-1].To = p.endedAt
	}
}

func (p *process) terminate() {
	p.expect()
	_ = p.cmd.Process.Signal(unix.SIGTERM)
}

// stop stops it with SIGSTOP and waits until all its threads stand.
func (p *process) stop() error {
	before := bootTime()
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	p.mu.Lock()
	p.stops = append(p.stops, Span{From: before})
	p.mu.Unlock()
	deadline := time.Now().Add(5 * time.Second)
	for time.Now().Before(deadline) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, &info, unix.WSTOPPED|unix.WNOHANG, nil)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for %s to stop: %w", p.name, err)
		}
		if info.Signo == int32(unix.SIGCHLD) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%s did not stop", p.name)
}

// resume ends the stop; it may be called again.
func (p *process) resume() {
	_ = p.cmd.Process.Signal(unix.SIGCONT)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.stops); n > 0 && p.stops[n-1].To == 0 {
		p.stops[n-1].To = bootTime()
	}
}

// leads returns the process's belief if it is fresh: it leads now.
func (p *process) leads() (b Belief, ok bool) {
	b, ok = lastBelief(p.file("beliefs"), p.name)
	return b, ok && p.alive() && bootTime()-b.Last.Before < freshBelief
}

// last returns the last record of the process's log that is wanted.
func (p *process) last(wanted func(Record) bool) (r Record, found bool) {
	records, _ := readRecords(p.file("log"))
	for _, r := range slices.Backward(records) {
		if wanted(r) {
			return r, true
		}
	}
	return r, false
}

// up is when it had opened the database, 0 if it has not yet.
func (p *process) up() time.Duration {
	if records, _ := readRecords(p.file("log")); len(records) > 0 {
		return records[0].At
	}
	return 0
}

// freshBelief is how old a leader's last check may be on a busy machine.
const freshBelief = 50 * time.Millisecond
