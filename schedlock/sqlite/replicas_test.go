package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func TestTheLeaderForgetsReplicasThatAreSilent(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	present := func(instance string, forget bool) []ledger.Replica {
		t.Helper()
		require.NoError(t, s.Present(bg, ledger.Replica{Instance: instance, PID: 1, Hostname: "h",
			State: "standby"}, forget))
		list, err := s.Replicas(bg)
		require.NoError(t, err)
		return list
	}
	present("a", false)
	clock.add(ledger.ReplicaGone)
	list := present("b", true)
	require.Len(t, list, 2, "not longer than that")
	assert.Equal(t, ledger.ReplicaGone, list[0].Silent)
	assert.False(t, list[0].Ready())
	assert.True(t, list[1].Ready())
	assert.Equal(t, 1, ledger.Ready(list))
	clock.add(time.Second)
	require.Len(t, present("b", false), 2, "a standby deletes nothing")
	list = present("b", true)
	require.Len(t, list, 1)
	assert.Equal(t, "b", list[0].Instance)
}
