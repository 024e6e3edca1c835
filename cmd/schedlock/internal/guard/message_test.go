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
