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

// passed are the signals that outer passes on, unless whoever has started it
// wants them ignored, as nohup does with SIGHUP.
var passed = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1,
	unix.SIGUSR2, unix.SIGWINCH}

// Outer starts this program again with these arguments and this environment, as
// inner, and watches it. It returns the exit code. errOut is told what went wrong.
// With namespace inner and the command get a PID namespace of their own.
func Outer(args, env []string, namespace bool, errOut io.Writer) int {
	o := &outer{errOut: errOut, namespace: namespace, reaper: startReaper(),
		terminal: ownTerminal(), continued: make(chan os.Signal, 1)}
	if o.terminal != nil {
		signal.Notify(o.continued, unix.SIGCONT)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // see say: stderr may be closed
	signals := make(chan os.Signal, 16)
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	if err := o.start(args, env); err != nil {
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
	errOut    io.Writer
	namespace bool
	reaper    *reaper
	terminal  *terminal      // nil: there is none
	continued chan os.Signal // SIGCONT, if there is a terminal
	conn      *conn
	inner     int
	ended     chan unix.WaitStatus
	messages  chan message

	killAt deadline
	group  int      // of the command
	code   *int     // that inner has said
	lease  *os.File // keeps the holder from being taken for dead
}

func (o *outer) start(args, env []string) error {
	if err := ownProc(); err != nil {
		return err
	}
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
	killAt, page, err := newDeadline()
	if err != nil {
		return err
	}
	defer page.Close()
	o.killAt = killAt
	o.conn, o.ended, o.messages = near, make(chan unix.WaitStatus, 1), make(chan message)
	socket, taken, err := handDown(far)
	if err != nil {
		return err
	}
	defer taken()
	memory, taken, err := handDown(page)
	if err != nil {
		return err
	}
	defer taken()
	args = append([]string{fmt.Sprintf("%s%d %d %d", innerName, os.Getpid(), socket, memory)},
		args...)
	attr := &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	o.inner, err = o.reaper.start(func() (int, error) {
		if o.namespace {
			return startInNamespace(exe, args, attr)
		}
		return startProcess(exe, args, attr)
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
		late := time.After(nextLook(o.killAt.get(), bootTime()))
		select {
		case s := <-signals:
			_ = o.conn.send(message{Signal: s.(unix.Signal)}, nil)
		case <-o.continued:
			o.resume()
		case m, ok := <-messages:
			if !ok {
				messages = nil
				continue
			}
			o.take(m)
		case <-late:
			// The clock first: what is read after it is at least as new.
			now := bootTime()
			if at := o.killAt.get(); at == 0 || now < at {
				continue
			}
			o.reaper.kill(o.group)
			o.say("the process that holds the lock has not renewed it in time: " +
				"it and the command are killed")
			return o.finish(ExitSignal(unix.SIGKILL))
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
				o.say(fmt.Sprintf("the process that held the lock was ended by signal %d: "+
					"the command is killed", status.Signal()))
				return o.finish(ExitSignal(status.Signal()))
			}
			return o.finish(status.ExitStatus())
		}
	}
}

// nextLook is how long to wait until the next look at the deadline, which is 0 while no command
// runs. Inner sets it without a word, and may be stopped before it sends one.
func nextLook(killAt, now time.Duration) time.Duration {
	if killAt == 0 {
		return time.Second
	}
	return min(max(killAt-now, 0), time.Second)
}

// say tells people something at the end. If they do not read it, it waits a second for them: the
// command has inherited the same stderr, and may have filled it, or outlived its reader.
func (o *outer) say(text string) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintln(o.errOut, "schedlock: exec: "+text)
	}()
	select {
	case <-said:
	case <-time.After(time.Second):
	}
}

func (o *outer) take(m message) {
	if m.Group != nil {
		o.begin(*m.Group)
	}
	if m.Code != nil {
		o.code = m.Code
	}
	if m.Paused != 0 {
		o.pause(m.Paused)
	}
}

// begin notes the group of the command that runs from now on, if any.
func (o *outer) begin(group int) {
	if group == 0 {
		o.terminal.takeBack(o.group)
	} else if o.namespace {
		group = translated(o.inner, group)
	}
	if o.group = group; o.terminal.ours() {
		o.terminal.give(group) // inner has, unless it is in a namespace
	}
}

// pause stops this process group, as the terminal has stopped the command by a
// signal, until the shell lets it go on. Inner goes on: the lock stays held.
func (o *outer) pause(sig unix.Signal) {
	t := o.terminal
	if t == nil {
		return
	}
	front := t.foreground()
	if sig != unix.SIGTSTP && (front == t.group || front == o.group) {
		// It only asks for what we have, or asked before it got it.
		t.piped = false
		o.resume()
		return
	}
	if front == o.group {
		t.give(t.group)
	}
	select {
	case <-o.continued: // an old one
	default:
	}
	// The whole group: the shell may know only its first process. Without a shell
	// with job control the kernel ignores these signals, and nothing has stopped.
	_ = unix.Kill(0, sig)
	select {
	case <-o.continued:
	case <-time.After(100 * time.Millisecond): // nothing stopped, or it was let go on
	}
	o.resume()
}

// resume lets the command go on, with the terminal if the shell has given it to us:
// after fg, not after bg.
func (o *outer) resume() {
	if o.terminal.ours() {
		o.terminal.give(o.group)
	}
	_ = o.conn.send(message{Resume: true}, nil)
}

// finish gives the terminal back.
func (o *outer) finish(code int) int {
	o.terminal.takeBack(o.group)
	return code
}
