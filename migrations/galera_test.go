//go:build unix

package migrations_test

import (
	"database/sql"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/migrations"
)

func init() { roles["mysql"] = replicaOfMySQL }

// replicaOfMySQL is replica on MariaDB, with the driver's own settings.
func replicaOfMySQL(dsn string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_ = mysql.SetLogger(&mysql.NopLogger{}) // what it would say comes as an error, too
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return migrateOnce(db, migrations.MySQL, time.Now())
}

// GET_LOCK, which lets one process migrate at a time, is known on its node only.
func TestTwentyProcessesStartAtOnceOnThreeNodes(t *testing.T) {
	missing.OnlyFull(t, "starts three nodes and twenty processes; by default it is one server")
	nodes := mytest.Galera(t, 3)
	slowest := time.Duration(0)
	for round := range 5 {
		name := fmt.Sprint("round_", round)
		nodes[0].Exec(t, "CREATE DATABASE "+name)
		var dsns []string
		for i := range 20 {
			dsns = append(dsns, nodes[i%len(nodes)].DSN(name))
		}
		slowest = max(slowest, startAll(t, "mysql", dsns, func() {}))
		fresh := fmt.Sprint("fresh_", round)
		nodes[0].Exec(t, "CREATE DATABASE "+fresh)
		want := nodes[0].Open(t, nodes[0].URL(fresh), "wsrep_sync_wait=7")
		require.NoError(t, upMySQL(t, want))
		for _, node := range nodes {
			db := node.Open(t, node.URL(name), "wsrep_sync_wait=7")
			require.Equal(t, schemaMySQL(t, want), schemaMySQL(t, db), "round %d", round)
			require.NoError(t, upMySQL(t, db))
		}
	}
	t.Logf("the slowest needed %v", slowest)
}
