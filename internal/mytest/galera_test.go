package mytest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
)

func TestARestartedNodeHasWhatItHasMissed(t *testing.T) {
	missing.OnlyFull(t, "restarts nodes; by default no test does")
	nodes := mytest.Galera(t, 3)
	nodes[0].Exec(t, `CREATE DATABASE app`)
	nodes[0].Exec(t, `CREATE TABLE app.seen (n integer PRIMARY KEY) ENGINE = InnoDB`)
	for i, node := range nodes {
		beside := nodes[(i+1)%3]
		node.Restart(t, []*mytest.Server{beside, nodes[(i+2)%3]}, func() {
			db := beside.Open(t, beside.URL("app"))
			for n := range 100 {
				_, err := db.Exec(`INSERT INTO seen VALUES (?)`, 100*i+n)
				require.NoError(t, err)
			}
		})
	}
	for _, node := range nodes {
		var n int
		db := node.Open(t, node.URL("app"), "wsrep_sync_wait=7")
		require.NoError(t, db.QueryRow(`SELECT count(*) FROM seen`).Scan(&n))
		require.Equal(t, 300, n)
	}
}
