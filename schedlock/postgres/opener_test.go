package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/startup"
)

// configured is a store with the settings of an app's pool, which set has changed.
func configured(t testing.TB, url string, set func(*pgxpool.Config)) *postgres.Store {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	set(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := postgres.Use(pool, silent).Open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	store.PrimeFor(patience)
	return store
}

// Both are what startup.Config has under Open.
var (
	_ = startup.Config{Open: postgres.Opener("postgres://app@db/app")}
	_ = startup.Config{Open: postgres.Use(nil)}
)

func TestUseMakesTheTablesAndLeavesThePoolToTheApp(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(ctx, pgtest.Shared(t).Database(t))
	require.NoError(t, err)
	defer pool.Close()
	for _, task := range []string{"a", "b"} { // an empty database, and one that has the tables
		s, err := postgres.Use(pool, silent).Open(ctx)
		require.NoError(t, err)
		release(t, s, acquire(t, s, patience))
		addTasks(t, s.Queue(), 0, task)
		require.NoError(t, s.Close())
	}
	require.NoError(t, pool.Ping(ctx), "the app's pool stays open")
	_, err = postgres.Use(nil).Open(ctx)
	require.ErrorContains(t, err, "*pgxpool.Pool is nil")
}

func TestAStartWithTablesUpToDateNeedsOneConnection(t *testing.T) {
	t.Parallel()
	var made atomic.Int32
	configured(t, migrated(t), func(config *pgxpool.Config) {
		config.AfterConnect = func(context.Context, *pgx.Conn) error { made.Add(1); return nil }
	})
	require.Equal(t, int32(1), made.Load())
}
