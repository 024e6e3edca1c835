//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Inner is the process that holds the lock and starts the command.
type Inner struct {
	conn     *conn
	killAt   deadline
	outer    int // its pid
	reaper   *reaper
	terminal *terminal
	gone     chan struct{} // closed when outer has died
	told     chan unix.Signal

	mu    sync.Mutex
	group int // of the command that runs
}

// NewInner is called by the process that Outer has started.
func NewInner() (*Inner, error) {
	var outer, socket, memory int
	if _, err := fmt.Sscanf(os.Args[0], innerName+"%d %d %d", &outer, &socket, &memory); err != nil {
		return nil, fmt.Errorf("what the outer process says in %q: %w", os.Args[0], err)
	}
	if err := settle(); err != nil {
		return nil, err
	}
	page := os.NewFile(uintptr(memory), "deadline")
	killAt, err := openDeadline(page)
	page.Close()
	if err != nil {
		return nil, err
	}
	c, err := newConn(os.NewFile(uintptr(socket), "outer"))
	if err != nil {
		return nil, err
	}
	if err := adopt(); err != nil {
		return nil, fmt.Errorf("become the parent of orphans: %w", err)
	}
	i := &Inner{conn: c, killAt: killAt, outer: outer, reaper: startReaper(),
		terminal: ownTerminal(), gone: make(chan struct{}), told: make(chan unix.Signal, 16)}
	// Those of the terminal go to outer too, which passes them on. Caught, not
	// ignored: what is ignored stays so in the command.
	own := make(chan os.Signal, 1)
	for _, s := range append(passed, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU) {
		if !signal.Ignored(s) {
			signal.Notify(own, s)
		}
	}
	go i.listen()
	return i, nil
}

func (i *Inner) listen() {
	for {
		m, _, err := i.conn.receive()
		if err != nil {
			close(i.gone)
			return
		}
		switch {
		case m.Resume:
			i.pass(unix.SIGCONT)
		case m.Signal == unix.SIGUSR1 || m.Signal == unix.SIGUSR2 || m.Signal == unix.SIGWINCH:
			i.pass(m.Signal)
		case m.Signal != 0:
			select {
			case i.told <- m.Signal:
			default: // it was told often enough; the end of outer must be noticed
			}
		}
	}
}

// pass sends a signal to the group of the command, if one runs.
func (i *Inner) pass(sig unix.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.group > 0 {
		_ = unix.Kill(-i.group, sig)
	}
}

// Outer is the pid of the process that the user has started.
func (i *Inner) Outer() int { return i.outer }

// Told are the signals by which outer was told to end.
func (i *Inner) Told() <-chan unix.Signal { return i.told }

// Gone is closed when outer has died. All that runs must end then.
func (i *Inner) Gone() <-chan struct{} { return i.gone }

// Exit tells outer the exit code, and returns it.
func (i *Inner) Exit(code int) int {
	_ = i.conn.send(message{Code: &code}, nil)
	return code
}

// A Hold is the lock under which a command runs.
type Hold struct {
	Done      <-chan struct{}      // closed when it is lost
	Confirmed func() time.Duration // since the last proof that it is held was asked for
	Trusted   time.Duration        // how long that counts: the renew deadline
	TTL       time.Duration        // after which another may have it
	Lease     *os.File             // keeps the holder from being taken for dead; nil: nothing does
}

// over reports whether the lock was lost, or may not be trusted any more.
func (h Hold) over() bool {
	select {
	case <-h.Done:
		return true
	default:
		return h.Confirmed() >= h.Trusted
	}
}

// A Command is what runs under a lock.
type Command struct {
	Args  []string
	Env   []string
	Grace time.Duration // from SIGTERM to SIGKILL
}

// An End is how a command has ended.
type End struct {
	Code int
	Own  bool // it ended by itself: nobody told it to
}

// Run runs a command, and returns when its whole tree has ended: because the
// command has ended, because ctx has, or because the lock was lost. The cause of
// ctx may be a [Signal], which the command gets then instead of SIGTERM. An error
// means that it could not be started. If the lock is over before that, as when this process
// was stopped in between, nothing is.
func (i *Inner) Run(ctx context.Context, h Hold, c Command) (End, error) {
	latest, stop := i.watch(h)
	defer stop()
	if h.over() { // from here on outer sees to it
		return End{Code: ExitSignal(unix.SIGTERM)}, nil
	}
	ended := make(chan unix.WaitStatus, 1)
	group, err := i.start(h, c, ended)
	if err != nil {
		return End{}, err
	}
	defer i.leave()
	end := End{Own: true}
	var status unix.WaitStatus
	var exited bool
	sig := unix.SIGTERM
	select {
	case status = <-ended:
		exited = true
	case <-ctx.Done():
		end.Own = false
		var s Signal
		if errors.As(context.Cause(ctx), &s) {
			sig = unix.Signal(s)
		}
	case <-h.Done:
		end.Own = false
	case <-i.gone:
		end.Own = false
		i.reaper.kill(group)
	}
	i.end(h, group, sig, c.Grace, latest)
	if !exited {
		status = <-ended
	}
	end.Code = status.ExitStatus()
	if status.Signaled() {
		end.Code = ExitSignal(status.Signal())
	}
	return end, nil
}

// A Signal is the cause of a context that a signal has ended.
type Signal unix.Signal

func (s Signal) Error() string { return "told to end by " + unix.SignalName(unix.Signal(s)) }

// end ends the tree: a signal first, unless it is empty, then SIGKILL: after the
// grace, or when the TTL is near.
func (i *Inner) end(h Hold, group int, sig unix.Signal, grace time.Duration,
	latest func() time.Duration) {
	until, had := bootTime()+grace, map[int]bool{}
	for {
		last := until
		select {
		case <-h.Done:
			last = min(until, latest())
		case <-i.gone:
			last = 0
		default:
		}
		if none, _ := i.reaper.empty(); !none || exists(group) {
			i.reaper.signal(group, sig, had) // also what was left to us meanwhile
		}
		step := min(last, bootTime()+50*time.Millisecond)
		if i.reaper.await(group, step) {
			return
		}
		if bootTime() >= last {
			i.reaper.kill(group)
			return
		}
		select {
		case sig = <-i.told: // who is told twice passes it on twice
			clear(had)
		default:
		}
	}
}

// watch tells outer until when the lock is trusted, until stop is called. Latest is
// the latest moment at which the tree may exist, which stands still once the lock is
// lost.
func (i *Inner) watch(h Hold) (latest func() time.Duration, stop func()) {
	var mu sync.Mutex
	var confirmed time.Duration
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-h.Done:
			// It has until the TTL is near; who leaves it longer to outer is stopped.
			i.killAt.set(confirmed + h.TTL - Slack/2)
			return
		default:
		}
		now := bootTime() - h.Confirmed()
		if now-confirmed < 10*time.Millisecond {
			return
		}
		confirmed = now
		i.killAt.set(now + h.Trusted + Slack/2)
	}
	look()
	if h.Lease != nil {
		_ = i.conn.send(message{Held: true}, h.Lease)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(max(min(h.TTL/20, time.Second), 10*time.Millisecond))
		defer tick.Stop()
		lost := h.Done
		for {
			select {
			case <-done:
				i.killAt.set(0)
				return
			case <-lost:
				lost = nil
			case <-tick.C:
			}
			look()
		}
	}()
	latest = func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return confirmed + h.TTL - Slack
	}
	return latest, func() {
		close(done)
		<-ended
	}
}

// Find returns the path of a command. The error is a [StartError].
func Find(command string) (string, error) {
	path, err := exec.LookPath(command)
	if err != nil {
		return "", &StartError{Command: command, Err: err}
	}
	return path, nil
}

// start starts the command, in a process group of its own, which gets the
// terminal if it is ours to give.
func (i *Inner) start(h Hold, c Command, ended chan<- unix.WaitStatus) (group int, err error) {
	path, err := Find(c.Args[0])
	if err != nil {
		return 0, err
	}
	attr := &os.ProcAttr{Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &unix.SysProcAttr{Setpgid: true}}
	if h.Lease != nil {
		_, taken, err := handDown(h.Lease)
		if err != nil {
			return 0, err
		}
		defer taken()
	}
	dieWithParent(attr.Sys)
	if i.terminal.ours() {
		attr.Sys.Foreground, attr.Sys.Ctty = true, i.terminal.fd
	}
	over := make(chan struct{})
	i.mu.Lock() // a signal that comes meanwhile waits for the command
	defer i.mu.Unlock()
	pid, err := onOwnThread(func() (int, error) {
		dropRights()
		return i.reaper.start(func() (int, error) {
			return startProcess(path, c.Args, attr)
		}, func(s unix.WaitStatus) {
			switch {
			case s.Stopped():
				if sig := s.StopSignal(); sig != unix.SIGSTOP {
					_ = i.conn.send(message{Paused: sig}, nil)
				}
			default:
				ended <- s
				close(over)
			}
		})
	}, over)
	if err != nil {
		return 0, &StartError{Command: c.Args[0], Err: err}
	}
	i.group = pid
	_ = i.conn.send(message{Group: &pid}, nil)
	return pid, nil
}

// leave notes that no command runs.
func (i *Inner) leave() {
	i.mu.Lock()
	group := i.group
	i.group = 0
	i.mu.Unlock()
	i.terminal.takeBack(group)
	none := 0
	_ = i.conn.send(message{Group: &none}, nil)
}

// A StartError is a command that could not be started.
type StartError struct {
	Command string
	Err     error
}

func (e *StartError) Error() string {
	err := e.Err
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Sprintf("%q: no such command in PATH", e.Command)
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return fmt.Sprintf("%q cannot be started: %v", e.Command, err)
}

func (e *StartError) Unwrap() error { return e.Err }

// Code is the exit code that env(1) gives.
func (e *StartError) Code() int {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return ExitNotFound
	}
	return ExitNotStarted
}
