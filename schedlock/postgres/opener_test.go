package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/startup"
)

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(ctx, url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Both are what startup.Config has under Open.
var (
	_ = startup.Config{Open: postgres.Opener("postgres://app@db/app")}
	_ = startup.Config{Open: postgres.Use(nil)}
)

func TestUseMakesTheTablesAndChecksTheRightsAsOpenerDoes(t *testing.T) {
	t.Parallel()
	url := pgtest.Shared(t).Database(t)
	pool := newPool(t, url)
	var open func(context.Context) (driver.Store, error) = postgres.Use(pool, silent)
	for range 2 { // an empty database, and one that has the tables
		store, err := open(ctx)
		require.NoError(t, err)
		s := store.(*postgres.Store)
		release(t, s, acquire(t, s, patience))
		require.NoError(t, s.Close())
	}
	require.NoError(t, pool.Ping(ctx), "the app's pool stays open")
}

func TestAStartWithTablesUpToDateNeedsOneConnection(t *testing.T) {
	t.Parallel()
	pool := newPool(t, migrated(t))
	config := pool.Config()
	var made atomic.Int32
	config.AfterConnect = func(context.Context, *pgx.Conn) error { made.Add(1); return nil }
	counting, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	defer counting.Close()
	store, err := postgres.Use(counting, silent).Open(ctx)
	require.NoError(t, err)
	defer store.Close()
	require.Equal(t, int32(1), made.Load())
}

func TestUseNamesTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	exec(t, admin, `REVOKE UPDATE ON scheduler_lock FROM `+role)
	store, err := postgres.Use(newPool(t, url), silent)(ctx)
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "GRANT UPDATE ON public.scheduler_lock TO "+role)
	require.True(t, store == nil, "not an interface with a nil pointer in it")
}

// An app without package startup has named locks and queues of the *Store.
func TestOpenOfAnOpenerGivesTheStoreItself(t *testing.T) {
	t.Parallel()
	url := pgtest.Shared(t).Database(t)
	for name, open := range map[string]postgres.OpenFunc{
		"Use":    postgres.Use(newPool(t, url), silent),
		"Opener": postgres.Opener(url, silent),
	} {
		t.Run(name, func(t *testing.T) {
			store, err := open.Open(ctx)
			require.NoError(t, err)
			defer store.Close()
			addTasks(t, store.Queue(), 0, name)
		})
	}
	store, err := postgres.Use(nil).Open(ctx)
	require.ErrorContains(t, err, "*pgxpool.Pool is nil")
	require.Nil(t, store)
}
