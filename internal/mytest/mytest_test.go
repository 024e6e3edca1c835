package mytest_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

const (
	patience = time.Minute
	poll     = 100 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(mytest.Run(m)) }

func TestAServerKeepsItsDataWhenItIsKilled(t *testing.T) {
	server := mytest.Start(t)
	db := server.Open(t, server.Database(t))
	_, err := db.Exec("CREATE TABLE kept (id INTEGER)")
	require.NoError(t, err)
	_, err = db.Exec("INSERT INTO kept VALUES (1)")
	require.NoError(t, err)
	server.Kill(t)
	require.Error(t, db.Ping())
	server.StartAgain(t)
	var n int
	require.NoError(t, db.QueryRow("SELECT count(*) FROM kept").Scan(&n))
	require.Equal(t, 1, n)
}
