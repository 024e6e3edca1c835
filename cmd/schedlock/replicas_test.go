package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/sqlite"
)

func TestReplicasThatTellOfThemselvesAreListed(t *testing.T) {
	t.Parallel()
	path := migrated(t, folder(t))
	r := call(t, "replicas", "--db", path)
	assert.Equal(t, "no replica tells of itself (startup.Config.Presence)\n", r.out)

	store, err := sqlite.Open(bg, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	for _, replica := range []ledger.Replica{
		{Instance: "a", PID: 12, Hostname: "web-1", Version: "v1.2.3", State: "leading",
			Reason: "holds the lock"},
		{Instance: "b", PID: 7, Hostname: "web-2", State: "standby", Reason: "pid 12 leads"},
		{Instance: "c", PID: 8, Hostname: "web-2", State: "standby", Reason: "pid 12 leads"},
	} {
		require.NoError(t, store.Present(bg, replica, false))
	}
	edit(t, path, `UPDATE scheduler_replicas SET seen_at = '2026-01-01T00:00:00.000000Z'
		WHERE instance = 'c'`)
	var list []replicaJSON
	strict(t, call(t, "replicas", "--json", "--db", path).out, &list)
	require.Len(t, list, 3)
	for i, want := range []replicaJSON{
		{Instance: "a", PID: 12, Hostname: "web-1", Version: "v1.2.3", State: "leading",
			Reason: "holds the lock"},
		{Instance: "b", PID: 7, Hostname: "web-2", State: "standby", Reason: "pid 12 leads",
			Ready: true},
		{Instance: "c", PID: 8, Hostname: "web-2", State: "standby", Reason: "pid 12 leads"},
	} {
		want.SeenAt, want.SilentSeconds = list[i].SeenAt, list[i].SilentSeconds
		assert.Equal(t, want, list[i])
	}
	assert.Greater(t, list[2].SilentSeconds, 90.0)
	assert.Regexp(t, `(?m)^host +pid +version +state +silent for\nweb-1 +12 +v1.2.3 +leading .*\n`+
		`web-2 +7 +- +standby .*\nweb-2 +8 +- +standby .*\n$`,
		call(t, "replicas", "--db", path).out)
	assert.Contains(t, call(t, "replicas", "-o", "wide", "--db", path).out, "pid 12 leads")
}
