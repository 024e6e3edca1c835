//go:build linux

package guard

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
