package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/postgres"
)

func TestAPoolerIsRecognisedAndItsRestartHeals(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	direct := migrated(t)
	pooler := pgtest.PgBouncer(t, server)
	var log logtest.Log
	store := open(t, pooler.URL(databaseName(t, direct)),
		postgres.WithLogger(log.Logger()))
	require.True(t, store.Pooled())
	ref := acquire(t, store, time.Minute)

	waiting, cancel := context.WithCancel(ctx)
	done := awaiting(waiting, store, look(t, store))
	stays(t, done)
	// refused by a check; another one notifies
	_, err := open(t, direct).Release(ctx, ref, "no such end")
	require.Error(t, err)
	ref2 := ref
	ref2.Term++
	_, err = open(t, direct).Release(ctx, ref2, "released")
	require.NoError(t, err)
	stays(t, done) // LISTEN does not work there
	heartbeat(t, store, ref)
	cancel()
	ends(t, done)

	for range 2 {
		pooler.Restart(t)
		eventually(t, "a heartbeat", func() bool {
			_, err := store.Heartbeat(ctx, ref, "leading")
			return err == nil
		})
		require.True(t, store.Pooled())
	}
	require.Equal(t, 1, strings.Count(log.String(), "pooler"), log.String())
}
