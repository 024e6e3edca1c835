package host

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// A Child is another process that this program talks to, by lines.
type Child struct {
	cmd *exec.Cmd
	// In is its standard input. When that ends, because this program does, so should the child.
	In    io.WriteCloser
	Lines <-chan string // what it says; closed when it has ended
}

// StartChild starts a process. A ^C at the terminal is not for it, but for this program, which
// ends it then.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadString('\n') // of any length
			if err != nil {
				break
			}
			lines <- strings.TrimSpace(line)
		}
		_ = cmd.Wait() // however it ended
	}()
	return &Child{cmd, in, lines}, nil
}

// PID is the child's.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Signal sends a signal. A child that has ended gets none.
func (c *Child) Signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

// Join waits until the child has ended. Nobody reads its last lines.
func (c *Child) Join() {
	for range c.Lines { // until it has ended
	}
}
