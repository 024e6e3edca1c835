//go:build linux

package guard

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// This process was stopped after it had taken the lock: what ends the lock may not have run yet.
func TestNoCommandIsStartedUnderALockThatIsOver(t *testing.T) {
	lost := make(chan struct{})
	close(lost)
	here, far, err := newPair()
	require.NoError(t, err)
	defer far.Close()
	defer here.socket.Close()
	killAt, page, err := newDeadline()
	require.NoError(t, err)
	page.Close()
	inner := &Inner{conn: here, killAt: killAt, reaper: startReaper(), gone: make(chan struct{})}
	for name, h := range map[string]Hold{
		"lost": {Done: lost, Confirmed: func() time.Duration { return 0 }},
		"old":  {Done: make(chan struct{}), Confirmed: func() time.Duration { return time.Minute }},
	} {
		ran := filepath.Join(t.TempDir(), "ran")
		h.Trusted, h.TTL = time.Minute, 2*time.Minute
		end, err := inner.Run(t.Context(), h, Command{Args: []string{"touch", ran}})
		require.NoError(t, err)
		require.Equal(t, End{Code: ExitSignal(unix.SIGTERM)}, end, name)
		require.NoFileExists(t, ran, name)
	}
}

// The other process is stopped: nobody reads. What it is told last may be lost, but nobody waits.
func TestAMessageDoesNotWaitForAProcessThatIsStopped(t *testing.T) {
	here, far, err := newPair()
	require.NoError(t, err)
	defer far.Close()
	defer here.socket.Close()
	defer time.AfterFunc(time.Minute/2, func() { here.socket.Close() }).Stop() // it would hang
	for range 100_000 {
		if err = here.send(message{Resume: true}, nil); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestTheDeadlineIsLookedAtAlsoWhileNothingIsKnownOfIt(t *testing.T) {
	require.Equal(t, time.Second, nextLook(0, time.Hour))
	require.Equal(t, time.Second, nextLook(time.Hour+time.Minute, time.Hour))
	require.Equal(t, time.Millisecond, nextLook(time.Hour+time.Millisecond, time.Hour))
	require.Zero(t, nextLook(time.Hour, time.Hour+time.Minute))
}
