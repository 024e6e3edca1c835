//go:build linux

package guard

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// InnerName is os.Args[0] of the inner process.
const InnerName = "schedlock: inner"

// passed are the signals that outer passes on, unless whoever has started it
// wants them ignored, as nohup does with SIGHUP.
var passed = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1,
	unix.SIGUSR2, unix.SIGWINCH}

// Outer starts this program again with the same arguments, as inner, and watches
// it. It returns the exit code. errOut is told what went wrong.
func Outer(args []string, errOut io.Writer) int {
	o := &outer{errOut: errOut, reaper: startReaper(), terminal: ownTerminal()}
	signals := make(chan os.Signal, 16)
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	if err := o.start(args); err != nil {
		fmt.Fprintln(errOut, "schedlock: exec:", err)
		return ExitFailed
	}
	return o.watch(signals)
}

// Exit codes as those of env(1) and timeout(1).
const (
	ExitFailed     = 125 // exec itself has failed
	ExitNotStarted = 126 // the command cannot be started
	ExitNotFound   = 127 // there is no such command
)

// ExitSignal is the exit code of a command that a signal has ended.
func ExitSignal(s unix.Signal) int { return 128 + int(s) }

type outer struct {
	errOut   io.Writer
	reaper   *reaper
	terminal *terminal // nil: there is none to give away
	conn     *conn
	inner    int
	ended    chan unix.WaitStatus
	messages chan message

	killAt time.Duration // 0: nothing is to be killed
	group  int           // of the command
	code   *int          // that inner has said
	lease  *os.File      // keeps the holder from being taken for dead
}

func (o *outer) start(args []string) error {
	if err := adopt(); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	near, far, err := newPair()
	if err != nil {
		return err
	}
	defer far.Close()
	o.conn, o.ended, o.messages = near, make(chan unix.WaitStatus, 1), make(chan message)
	o.inner, err = o.reaper.start(func() (int, error) {
		p, err := os.StartProcess(exe, append([]string{InnerName}, args...), &os.ProcAttr{
			Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, far}})
		if err != nil {
			return 0, err
		}
		return p.Pid, nil
	}, func(s unix.WaitStatus) {
		if !s.Stopped() {
			o.ended <- s
		}
	})
	if err != nil {
		return err
	}
	go o.listen()
	return nil
}

// listen passes on what inner says, until it has ended.
func (o *outer) listen() {
	defer close(o.messages)
	for {
		m, file, err := o.conn.receive()
		if err != nil {
			return
		}
		if file != nil {
			if o.lease != nil {
				o.lease.Close()
			}
			o.lease = file
		}
		o.messages <- m
	}
}

// watch does what has to be done until the tree has ended, and returns the exit
// code. Timers do not count the time for which the machine was suspended, so it
// looks often.
func (o *outer) watch(signals <-chan os.Signal) int {
	messages := o.messages
	for {
		var late <-chan time.Time
		if o.killAt > 0 {
			late = time.After(min(max(o.killAt-bootTime(), 0), time.Second))
		}
		select {
		case s := <-signals:
			_ = o.conn.send(message{Signal: s.(unix.Signal)}, nil)
		case m, ok := <-messages:
			if !ok {
				messages = nil
				continue
			}
			o.take(m)
		case <-late:
			if bootTime() >= o.killAt {
				fmt.Fprintln(o.errOut, "schedlock: exec: the process that holds the lock has not "+
					"renewed it in time: it and the command are killed")
				o.reaper.kill(o.group)
				return o.finish(ExitSignal(unix.SIGKILL))
			}
		case status := <-o.ended:
			o.reaper.kill(o.group)
			if messages != nil {
				for m := range messages { // what it said last
					o.take(m)
				}
			}
			switch {
			case o.code != nil:
				return o.finish(*o.code)
			case status.Signaled():
				fmt.Fprintf(o.errOut, "schedlock: exec: the process that held the lock was ended "+
					"by signal %d: the command is killed\n", status.Signal())
				return o.finish(ExitSignal(status.Signal()))
			}
			return o.finish(status.ExitStatus())
		}
	}
}

func (o *outer) take(m message) {
	if m.KillAt != nil {
		o.killAt = *m.KillAt
	}
	if m.Group != nil {
		o.group = *m.Group
	}
	if m.Code != nil {
		o.code = m.Code
	}
	if m.Paused {
		o.pause()
	}
}

// pause stops this process, as the terminal has stopped the command, until the
// shell lets it go on. Inner goes on: the lock stays held.
func (o *outer) pause() {
	if o.terminal == nil {
		return
	}
	o.terminal.give(o.terminal.group)
	_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	if o.terminal.foreground() == o.terminal.group { // fg, not bg
		o.terminal.give(o.group)
	}
	_ = o.conn.send(message{Resume: true}, nil)
}

// finish gives the terminal back.
func (o *outer) finish(code int) int {
	if t := o.terminal; t != nil && t.foreground() != t.group {
		t.give(t.group)
	}
	return code
}
