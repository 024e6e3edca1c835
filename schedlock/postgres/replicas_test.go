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

func TestPresenceNeedsTheRightsThatAreDocumented(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	s := opened(t, url)
	r := ledger.Replica{Instance: "a", PID: 1, Hostname: "h", State: "leading"}
	require.ErrorContains(t, s.Present(ctx, r, true), "permission denied")
	exec(t, admin, `GRANT INSERT, UPDATE, DELETE ON scheduler_replicas TO `+role)
	for range 2 {
		require.NoError(t, s.Present(ctx, r, true))
	}
	require.NoError(t, s.Absent(ctx, "a"))
	list, err := s.Replicas(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
}
