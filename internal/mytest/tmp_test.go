package mytest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
)

// A server that starts deletes what it finds of others in its folder for temporary tables,
// and a server whose tables are gone crashes.
func TestAServerThatStartsLeavesTheTablesOfOthers(t *testing.T) {
	missing.OnlyFull(t, "starts a server many times")
	server, other := mytest.Start(t), mytest.Start(t)
	db := server.Open(t, server.Database(t))
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				_, _ = db.ExecContext(ctx, `SELECT count(*) FROM information_schema.columns`)
			}
		})
	}
	for range 20 {
		other.Kill(t)
		other.StartAgain(t)
	}
	cancel()
	readers.Wait()
	require.Empty(t, server.Crash())
}
