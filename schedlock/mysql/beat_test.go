package mysql_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

// A heartbeat is a prepared statement.
func TestAServerThatPreparesNoStatementTakesHeartbeats(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	s := open(t, server.Database(t))
	require.NoError(t, s.Migrate(ctx))
	server.Exec(t, "SET GLOBAL max_prepared_stmt_count = 0")
	ref := acquire(t, s)
	for beat := range 3 {
		heartbeat(t, s, ref)
		require.EqualValues(t, beat+1, look(t, s).Row.Beat)
	}
}

func TestAMigrationBetweenTwoHeartbeatsIsOfNoHarm(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	ref := acquire(t, s)
	heartbeat(t, s, ref)
	exec(t, byHand(t, url), `ALTER TABLE scheduler_lock ADD COLUMN later bigint AFTER id`)
	heartbeat(t, s, ref)
	require.EqualValues(t, 2, look(t, s).Row.Beat)
	exec(t, byHand(t, url), `ALTER TABLE scheduler_lock DROP COLUMN later`)
	heartbeat(t, s, ref)
}
