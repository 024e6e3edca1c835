package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/postgres"
)

// primer is in a statement that is prepared, and in none of the first acquisition ever.
const primer = "AND NOT EXISTS (SELECT FROM scheduler_lock)\n    FOR UPDATE OF t"

// A standby prepares its statements while it waits. If the server falls silent
// just then, the next look must still come to its turn.
func TestASilentServerDoesNotKeepALookFromItsTurn(t *testing.T) {
	t.Parallel()
	databaseURL := migrated(t)
	acquire(t, open(t, databaseURL), time.Hour)
	line, through := newWire(t, databaseURL)
	standby := open(t, through)
	standby.PrimeFor(postgres.PrimeFor)
	view := look(t, standby)
	line.CutAt(primer)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	awaiting(ctx, standby, view)
	ends(t, line.Silent)
	_, err := standby.Look(ctx)
	require.NoError(t, err)
}

// A leader prepares nothing: if the server was slow, that would end the session by which
// others judge.
func TestALeaderPreparesNothing(t *testing.T) {
	t.Parallel()
	line, through := newWire(t, migrated(t))
	leader := open(t, through, postgres.WithDirectConnection())
	line.CutAt(primer)
	ref, s := acquireWatched(t, leader, time.Minute)
	require.NotNil(t, s)
	stays(t, line.Silent)
	require.False(t, servertest.HasEnded(s))
	release(t, leader, ref)
}
