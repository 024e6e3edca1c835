package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// A holder prepares its statements while its connection is idle. If the server
// falls silent just then, heartbeats must still come to their turn.
func TestASilentServerDoesNotKeepTheHeartbeatsFromTheirTurn(t *testing.T) {
	t.Parallel()
	databaseURL := migrated(t)
	line, through := newWire(t, databaseURL)
	holder := open(t, through, postgres.WithDirectConnection())
	// not of the first acquisition ever
	line.CutAt("AND NOT EXISTS (SELECT FROM scheduler_lock)\n    FOR UPDATE OF t")
	ref, s := acquireWatched(t, holder, time.Minute)
	require.NotNil(t, s)
	ends(t, line.Silent)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
}
