//go:build unix

package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pipe that is full, and that nobody reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	raw, err := w.SyscallConn()
	require.NoError(t, err)
	var full error
	for _, size := range []int{4096, 1} {
		require.NoError(t, raw.Write(func(fd uintptr) bool { // which does not block
			for full = nil; full == nil || errors.Is(full, syscall.EINTR); {
				_, full = syscall.Write(int(fd), bytes.Repeat([]byte{'\n'}, size))
			}
			return true
		}))
		require.ErrorIs(t, full, syscall.EAGAIN)
	}
	return w
}

func TestAPipeThatNobodyReadsKeepsNoProcessFromEnding(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  []string
		code int
	}{
		"bad configuration": {[]string{"LOCK_TTL=-1s"}, exitBadConfig},
		"a database that cannot be opened": {[]string{"DATABASE_URL=file:" +
			filepath.Join(os.DevNull, "bans.db")}, exitFailed},
		"the lock is held, in strict mode":    {[]string{"MODE=strict"}, exitHeld},
		"a leader that is told to stop":       {nil, 0},
		"a server that cannot be listened on": {[]string{"ADDR=192.0.2.1:80"}, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "LOCK_HEARTBEAT=300ms")
			if tc.code == exitHeld {
				f.startLeader()
			}
			f.stderr = fullPipe(t)
			r := f.launch(tc.env...)
			if tc.code == 0 {
				eventually(t, "it leads", func() error {
					held, err := f.trySQL(time.Second, `SELECT count(*) FROM scheduler_lock`)
					if err == nil && held != "1" {
						err = errors.New("no row")
					}
					return err
				})
				r.signal(syscall.SIGTERM)
			}
			assert.Equal(t, tc.code, r.wait())
		})
	}
}
