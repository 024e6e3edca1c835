//go:build unix

package e2e

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// signalTree signals a process, then its children.
func signalTree(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, sig))
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(f[0])
			require.NoError(t, err)
			_ = syscall.Kill(child, sig) // it may have ended
		}
	}
}

// decode reads JSON.
func decode(t *testing.T, body []byte, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(body, v), "%s", body)
}
