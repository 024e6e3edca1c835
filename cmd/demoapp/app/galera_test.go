package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/mysql"
)

// Bans are fenced on each node of the cluster that has the lock, and on no other server.
func TestTheNodesOfAClusterAreOneDatabase(t *testing.T) {
	missing.OnlyFull(t, "starts nodes of Galera")
	nodes := mytest.Galera(t, 2)
	nodes[0].Exec(t, `CREATE DATABASE app`)
	nodes[0].Exec(t, `CREATE DATABASE other`)
	lock, err := mysql.Open(t.Context(), nodes[0].URL("app"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Close()) })
	holds := func(url string) bool {
		t.Helper()
		d, err := openMariaDB(t.Context(), url, time.Minute)
		require.NoError(t, err)
		defer d.close()
		same, err := d.holds(t.Context(), lock)
		require.NoError(t, err)
		return same
	}
	require.True(t, holds(nodes[0].URL("app")))
	require.True(t, holds(nodes[1].URL("app")))
	require.False(t, holds(nodes[1].URL("other")))

	alone := mytest.Start(t)
	alone.Exec(t, `CREATE DATABASE app`)
	require.False(t, holds(alone.URL("app")))
	lock, err = mysql.Open(t.Context(), alone.URL("app"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Close()) })
	require.True(t, holds(alone.URL("app")))
	require.False(t, holds(nodes[0].URL("app")))
}
