package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

// A terminal is a process that believes it runs on one.
type terminal struct {
	master *os.File
	cmd    *exec.Cmd
	read   chan struct{} // closed when all was read that it wrote
	shown  logtest.Log
}

func onTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		missing.Skip(t, "pseudo terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	w := &terminal{master: master, cmd: cmd, read: make(chan struct{})}
	go func() { // ends with the terminal
		defer close(w.read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = w.shown.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return w
}

func (w *terminal) text() string { return w.shown.String() }

func (w *terminal) wait() int {
	_ = w.cmd.Wait()
	<-w.read
	return w.cmd.ProcessState.ExitCode()
}

func TestReleaseAsksOnATerminal(t *testing.T) {
	t.Parallel()
	path := migrated(t, folder(t))
	_, lease := lead(t, path, 0)
	state := func() driver.State {
		var s statusJSON
		strict(t, call(t, "status", "--json", "--db", path).out, &s)
		return s.Lock.State
	}
	for _, tc := range []struct {
		answer string
		code   int
		state  driver.State
	}{
		{"\n", exitUnknown, driver.StateLeading},
		{"n\n", exitUnknown, driver.StateLeading},
		{"", exitUnknown, driver.StateLeading}, // Ctrl-C instead
		{"y\n", exitDone, driver.StateRevoked},
	} {
		w := onTerminal(t, process(t, "release", "--force",
			"--reason", "x", "--no-wait", "--timeout", callTimeout.String(), "--db", path))
		eventually(t, "it asks", func() bool {
			return strings.Contains(w.text(), fmt.Sprintf("Revoke term %d of pid %d on host ",
				lease.Term(), os.Getpid())) && strings.Contains(w.text(), "? [y/N] ")
		})
		require.Equal(t, driver.StateLeading, state(), "before the answer")
		if tc.answer == "" {
			require.NoError(t, w.cmd.Process.Signal(os.Interrupt))
		} else {
			_, err := w.master.WriteString(tc.answer)
			require.NoError(t, err)
		}
		assert.Equal(t, tc.code, w.wait(), w.text())
		assert.Equal(t, tc.state, state())
	}
}

func TestColoursOnATerminalOnly(t *testing.T) {
	t.Parallel()
	path := migrated(t, folder(t))
	for _, tc := range []struct {
		args, env []string
		coloured  bool
	}{
		{nil, nil, true},
		{[]string{"--no-color"}, nil, false},
		{nil, []string{"NO_COLOR=1"}, false},
		{nil, []string{"TERM=dumb"}, false},
		{[]string{"--json"}, nil, false},
	} {
		args := append([]string{"status", "--timeout", callTimeout.String(), "--db", path},
			tc.args...)
		cmd := process(t, args...)
		cmd.Env = append(cmd.Env, tc.env...)
		w := onTerminal(t, cmd)
		assert.Equal(t, exitNothing, w.wait())
		assert.Contains(t, w.text(), "app.db")
		assert.Equal(t, tc.coloured, strings.Contains(w.text(), "\x1b["), "%v %q", tc, w.text())
	}
}
