package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
)

// A lameStderr is a stderr that is full, or has no reader any more, once lame was called.
type lameStderr struct {
	*os.File
	reader *os.File
}

func newLameStderr(t *testing.T) lameStderr {
	t.Helper()
	reader, stderr, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		reader.Close()
		stderr.Close()
	})
	return lameStderr{stderr, reader}
}

func (s lameStderr) lame(t *testing.T, full bool) {
	t.Helper()
	if full {
		room, err := unix.FcntlInt(s.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
		require.NoError(t, err)
		_, err = s.Write(make([]byte, room))
		require.NoError(t, err)
	} else {
		s.reader.Close()
	}
	s.Close()
}

// The command has the same stderr, and so may fill it, or outlive its reader.
func TestNothingOutlivesItsLeaseWhateverHappensToStderr(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	for _, full := range []bool{true, false} {
		t.Run(fmt.Sprintf("full=%v", full), func(t *testing.T) {
			t.Parallel()
			dsn := filepath.Join(folder(t), "app.db")
			stderr := newLameStderr(t)
			w := startExecTo(t, stderr.File, dsn, "--ttl", "3s", "sh", "-c",
				"setsid sleep 1000 & echo $!; exec sleep 1000")
			daemon, err := strconv.Atoi(w.line())
			require.NoError(t, err)
			t.Cleanup(func() { _ = unix.Kill(daemon, unix.SIGKILL) })
			stderr.lame(t, full)
			require.NoError(t, unix.Kill(w.inner(), unix.SIGSTOP))
			awaitEnd(t, []int{daemon})
			require.Equal(t, 128+9, w.wait())
		})
	}
}

// What exec has to say may find no room, or nobody: it waits for its lock again all the same.
func TestExecLeadsAgainWhateverHappensToStderr(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	for _, full := range []bool{true, false} {
		t.Run(fmt.Sprintf("full=%v", full), func(t *testing.T) {
			t.Parallel()
			dsn := filepath.Join(folder(t), "app.db")
			stderr := newLameStderr(t)
			w := startExecTo(t, stderr.File, dsn, "--name", "import", "--ttl", "5s", "sh", "-c",
				"echo $$; exec sleep 1000")
			first := w.line()
			stderr.lame(t, full)
			require.Zero(t, call(t, "locks", "--db", dsn, "release", "lock", "import", "--force",
				"--reason", "a test").code)
			require.NotEqual(t, first, w.line())
			require.NoError(t, unix.Kill(w.pid(), unix.SIGTERM))
			require.Equal(t, 128+15, w.wait())
		})
	}
}

// What lead says of the order would end it by SIGPIPE.
func TestLeadGoesOnWithoutAReaderOfItsStderr(t *testing.T) {
	t.Parallel()
	missing.Long(t, "starts processes")
	dsn := filepath.Join(folder(t), "app.db")
	b := startLead(t, dsn, "unix:"+filepath.Join(folder(t), "lead.sock"), "--ttl", "2s")
	eventually(t, "it leads", func() bool {
		return call(t, "status", "--db", dsn).code == exitDone
	})
	b.errOut.Close()
	require.Zero(t, call(t, "release", "--db", dsn, "--force", "--yes", "--reason", "a test").code)
	require.Equal(t, exitDone, b.told())
}
