package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func TestTheLeaderForgetsReplicasThatAreSilent(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, admin := open(t, url), session(t, url)
	present := func(instance string, forget bool) []ledger.Replica {
		t.Helper()
		require.NoError(t, s.Present(ctx, ledger.Replica{Instance: instance, PID: 1, Hostname: "h",
			State: "standby"}, forget))
		list, err := s.Replicas(ctx)
		require.NoError(t, err)
		return list
	}
	silent := func(by string) {
		exec(t, admin, `UPDATE scheduler_replicas SET seen_at = now() - $1::text::interval
			WHERE instance = 'a'`, by)
	}
	present("a", false)
	silent("9 minutes")
	list := present("b", true)
	require.Len(t, list, 2)
	require.Equal(t, 1, ledger.Ready(list))
	silent("10 minutes")
	require.Len(t, present("b", false), 2, "a standby deletes nothing")
	list = present("b", true)
	require.Len(t, list, 1)
	require.Equal(t, "b", list[0].Instance)
	present("a", false)
	silent("1 hour")
	require.Len(t, present("a", true), 2, "it comes back itself")
}
