//go:build unix

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

func TestOnMariaDBALeaderHandsOver(t *testing.T) {
	t.Parallel()
	f := newFleetOn(t, mytest.Start(t).Database(t), "TICK=200ms")
	leader, term := f.startLeader()
	leader.awaitBans()
	leader.awaitStatus("done", term)
	standby := f.start()
	leader.stop()
	next := standby.awaitLeading()
	require.Greater(t, next, term)
	terms := standby.terms()
	require.Equal(t, "released", terms[1].EndReason)
	t.Logf("from the release to the next acquisition: %v",
		terms[0].AcquiredAt.Sub(terms[1].EndedAt))
	standby.awaitStatus("done", next)
	requireNoTickTwice(t, standby)
	standby.stop()
	require.Empty(t, append(leader.errorLines(), standby.errorLines()...))
}
