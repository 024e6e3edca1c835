//go:build unix

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

// Two replicas on MariaDB: the leader is killed, and the next one is told to stop.
func TestOnMariaDBALeaderIsReplacedWithinItsTTLAndHandsOver(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	const ttl = 4 * time.Second
	f := newFleetOn(t, server.Database(t), "LOCK_TTL=4s", "LOCK_HEARTBEAT=500ms", "TICK=200ms")
	replicas := []*replica{f.start(), f.start()}
	leader, before := awaitOneLeader(t, replicas, 0)
	standby := replicas[0]
	if standby == leader {
		standby = replicas[1]
	}
	killed := time.Now()
	leader.kill()
	_, term := awaitOneLeader(t, []*replica{standby}, before)
	terms := standby.terms()
	require.Equal(t, before, terms[1].Term)
	require.Equal(t, "expired", terms[1].EndReason)
	took := terms[0].AcquiredAt.Sub(killed)
	t.Logf("from SIGKILL to the next acquisition: %v", took)
	assert.Less(t, took, ttl+soon(2*time.Second))

	next := f.start()
	standby.stop()
	require.Empty(t, standby.errorLines())
	_, last := awaitOneLeader(t, []*replica{next}, term)
	terms = next.terms()
	require.Equal(t, last, terms[0].Term)
	require.Equal(t, term, terms[1].Term)
	require.Equal(t, "released", terms[1].EndReason)
	t.Logf("from the release to the next acquisition: %v",
		terms[0].AcquiredAt.Sub(terms[1].EndedAt))
	requireNoTickTwice(t, next)
	next.stop()
	require.Empty(t, next.errorLines())
}
