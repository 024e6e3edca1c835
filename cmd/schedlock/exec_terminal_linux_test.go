package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
)

const prompt = "ready> "

// A shell is bash with job control, on a terminal of its own.
type shell struct {
	*terminal
	t    testing.TB
	read int // of what it has shown
}

func startShell(t *testing.T, flags ...string) *shell {
	t.Helper()
	path, err := exec.LookPath("bash")
	if err != nil {
		missing.Skip(t, "bash: %v", err)
	}
	cmd := exec.Command(path, append(flags, "--noprofile", "--norc", "-i")...)
	cmd.Env = []string{childEnv + "=tool", "PATH=" + os.Getenv("PATH"), "PS1=" + prompt,
		"GOMAXPROCS=2"}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	s := &shell{terminal: onTerminal(t, cmd), t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it has shown: %s", s.text())
		}
	})
	s.await(prompt)
	return s
}

// await waits until it shows a text, behind what was awaited before.
func (s *shell) await(text string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%q is shown", text), func() bool {
		shown := s.text()
		i := strings.Index(shown[s.read:], text)
		if i < 0 {
			return false
		}
		s.read += i + len(text)
		return true
	})
}

func (s *shell) enter(text string) {
	s.t.Helper()
	_, err := s.master.WriteString(text)
	require.NoError(s.t, err)
}

// A command that reads lines, and that asks for the terminal.
const reader = `trap 'echo ended by "INT"; exit 7' INT; echo u"p"; ` +
	`while read line; do echo "got <$line>"; done`

// inTerminals runs a test without and with a namespace.
func inTerminals(t *testing.T, test func(t *testing.T, s *shell, call string)) {
	t.Helper()
	t.Parallel()
	for name, flag := range map[string]string{"plain": "", "namespace": " --pid-namespace"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if flag != "" {
				namespaces(t)
			}
			s := startShell(t, "--noediting")
			script := filepath.Join(folder(t), "reader")
			require.NoError(t, os.WriteFile(script, []byte(reader), 0o644))
			test(t, s, fmt.Sprintf("%s exec --db %s%s -- sh %s", toolPath(t),
				filepath.Join(folder(t), "app.db"), flag, script))
		})
	}
}

// A command that was put into the background before it read, and one that runs on there.
func TestExecInTheBackgroundOfAShell(t *testing.T) {
	missing.Long(t, "starts processes")
	inTerminals(t, func(t *testing.T, s *shell, call string) {
		s.enter(call + " &\n")
		s.await("up")
		eventually(t, "it was stopped when it read", func() bool {
			s.enter("jobs\n")
			return strings.Contains(s.text()[s.read:], "Stopped")
		})
		s.enter("fg\n")
		s.enter("one\n")
		s.await("got <one>")
		s.enter("\x04") // the end of its input
		s.await(prompt)
		s.enter("echo code $?\n")
		s.await("code 0")
	})
}

// Whoever of a pipe reads from the terminal gets what is typed: the pager behind exec
// that opens it, and a command of exec that reads.
func TestExecBeforeAPipe(t *testing.T) {
	missing.Long(t, "starts processes")
	for _, tc := range []struct{ name, command, behind, started, reads, ends string }{
		{"the pager reads", ` -c 'echo up; exec sleep 1000'`,
			`sh -c 'read it; echo "page: $it"; read key </dev/tty; echo "key <$key>"'`,
			"page: up", "key <one>", "\x03"},
		{"the command reads", "", "cat", "up", "got <one>", "\x04"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inTerminals(t, func(t *testing.T, s *shell, call string) {
				if tc.command != "" { // instead of the script
					call = call[:strings.LastIndex(call, " ")] + tc.command
				}
				s.enter(call + " | " + tc.behind + "\n")
				s.await(tc.started)
				s.enter("one\n")
				s.await(tc.reads)
				s.enter(tc.ends)
				s.await(prompt)
			})
		})
	}
}

// The shell that has job control knows only the shell that has started exec.
func TestExecInAScriptUnderAShellWithJobControl(t *testing.T) {
	missing.Long(t, "starts processes")
	inTerminals(t, func(t *testing.T, s *shell, call string) {
		s.enter("sh -c '" + call + "; echo behind $?'\n")
		s.await("up")
		s.enter("first\n") // until it has read, it may be stopped for want of the terminal:
		s.await("got <first>")
		s.enter("\x1a") // then a SIGTSTP is dropped by the SIGCONT that follows
		s.await("Stopped")
		s.await(prompt)
		s.enter("fg\n")
		s.enter("one\n")
		s.await("got <one>")
		s.enter("\x04")
		s.await("behind 0")
		s.await(prompt)
	})
}

// Without a shell with job control, ^Z has no effect.
func TestExecOnATerminalWithoutAShell(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	process(t)
	cmd := execOf(t, filepath.Join(folder(t), "app.db"), "--", "sh", "-c", reader)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	s := &shell{terminal: onTerminal(t, cmd), t: t}
	s.await("up")
	s.enter("\x1a")
	s.enter("one\n")
	s.await("got <one>")
	s.enter("\x03")
	require.Equal(t, 7, s.wait())
}
