// Package child runs other processes of a test binary: only what another process
// does shows what its death, its rights or its locks do.
package child

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Modes are what the test binary does instead of tests when [Start] runs it. A
// test file adds its own in an init function. The arguments are os.Args[1:], an
// os.Stdin at its end means that the parent is gone.
var Modes = map[string]func(){}

// Env is the variable of the environment that names the mode.
const Env = "SCHEDLOCK_TEST_CHILD"

// Main is what TestMain of a package with modes calls.
func Main(m *testing.M) {
	if mode, ok := os.LookupEnv(Env); ok {
		run := Modes[mode]
		if run == nil {
			fmt.Fprintf(os.Stderr, "no child mode %q\n", mode)
			os.Exit(2)
		}
		run()
		os.Exit(0)
	}
	SideBySide(16)
	leave := Seat()
	InMemory()
	code := m.Run()
	leave()
	os.Exit(code)
}

// Environ is the environment of a child of which many share the machine. It has
// one processor, unless GOMAXPROCS says another number: each of them would spend
// as much time on looking for work as on work.
func Environ() []string {
	env := os.Environ()
	if _, said := os.LookupEnv("GOMAXPROCS"); !said {
		env = append(env, "GOMAXPROCS=1")
	}
	return env
}

// Check ends the child with a line that says why, if there is an error.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// A Process is a child.
type Process struct {
	Cmd   *exec.Cmd
	Stdin io.WriteCloser

	t     testing.TB
	lines chan string
}

// Command is the test binary in a mode, not yet started.
func Command(t testing.TB, mode string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), Env+"="+mode)
	cmd.Stderr = os.Stderr
	return cmd
}

// Start runs the test binary in a mode, and kills it when the test ends.
func Start(t testing.TB, mode string, args ...string) *Process {
	t.Helper()
	c := &Process{t: t, Cmd: Command(t, mode, args...), lines: make(chan string)}
	var err error
	if c.Stdin, err = c.Cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := c.Cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(c.lines)
		for r := bufio.NewScanner(stdout); r.Scan(); {
			select {
			case c.lines <- r.Text():
			case <-gone:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(gone)
		c.Stdin.Close() // what the child itself has started ends with this
		_ = c.Cmd.Process.Kill()
		_ = c.Cmd.Wait()
	})
	return c
}

// Line waits for the next line that the child prints.
func (c *Process) Line() string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.t.Fatal("the child has ended")
		}
		return line
	case <-time.After(time.Minute):
		c.t.Fatal("the child says nothing")
	}
	return ""
}

// Say sends the child a line.
func (c *Process) Say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.Stdin, line); err != nil {
		c.t.Fatal(err)
	}
}
