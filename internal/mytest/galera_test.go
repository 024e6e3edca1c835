package mytest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
)

func TestANodeThatWasKilledJoinsAgain(t *testing.T) {
	missing.OnlyFull(t, "takes half a minute")
	nodes := mytest.Galera(t, 3, mytest.Quick...)
	nodes[0].Exec(t, "CREATE DATABASE app")
	nodes[0].Exec(t, "CREATE TABLE app.kept (id INTEGER PRIMARY KEY)")
	nodes[0].Exec(t, "INSERT INTO app.kept VALUES (1)")
	for n, node := range nodes { // the one that began the cluster, too
		node.Kill(t)
		others := append(append([]*mytest.Server{}, nodes[:n]...), nodes[n+1:]...)
		require.Eventually(t, func() bool {
			db := others[0].Open(t, others[0].URL("app"))
			_, err := db.Exec("INSERT INTO app.kept VALUES (?)", n+2)
			return err == nil
		}, patience, poll)
		node.Rejoin(t, others...)
		var rows int
		db := node.Open(t, node.URL("app"), "wsrep_sync_wait=7")
		require.NoError(t, db.QueryRow("SELECT count(*) FROM kept").Scan(&rows))
		require.Equal(t, n+2, rows)
	}
}
