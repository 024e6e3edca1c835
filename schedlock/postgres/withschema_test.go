package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/postgres"
)

const sqlOurTables = `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname IN ('scheduler_lock', 'scheduler_terms',
    'scheduler_jobs', 'scheduler_runs', 'scheduler_requests', 'scheduler_pauses', 'scheduler_audit',
    'scheduler_replicas', 'scheduler_attempts',
    'scheduler_lock_schema', 'scheduler_lock_migrations',
    'named_locks', 'named_locks_floor', 'queue_tasks')`

// eachWay calls test with a database and how the replicas come to it.
func eachWay(t *testing.T, test func(t *testing.T, direct, url string)) {
	server := pgtest.Shared(t)
	t.Run("directly", func(t *testing.T) {
		url := server.Database(t)
		test(t, url, url)
	})
	t.Run("through a pooler in transaction mode", func(t *testing.T) {
		direct := server.Database(t)
		test(t, direct, pgtest.PgBouncer(t, server).URL(databaseName(t, direct)))
	})
}

// openedIn opens a store whose tables are in a schema.
func openedIn(t testing.TB, url, schema string, opts ...postgres.Option) *postgres.Store {
	t.Helper()
	store, err := postgres.Opener(url,
		append([]postgres.Option{silent, postgres.WithSchema(schema)}, opts...)...)(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.(*postgres.Store).Close()) })
	return store.(*postgres.Store)
}

// Two apps in one database: each has all its tables, and nothing of the other's.
func TestWithSchemaEachAppHasTablesOfItsOwn(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, direct, url string) {
		admin := session(t, direct)
		billing, shop := openedIn(t, url, "billing"), openedIn(t, url, "user") // a word of SQL
		require.NoError(t, billing.Migrate(ctx), "again")
		for _, schema := range []string{"billing", "user"} {
			require.Equal(t, 14, value[int](t, admin, sqlOurTables, schema))
		}
		require.Zero(t, value[int](t, admin, sqlOurTables, "public"))
		require.Zero(t, value[int](t, admin,
			`SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`))

		for _, s := range []*postgres.Store{billing, shop} { // the first one, too: see sqlTakeFirst
			ref := acquire(t, s, time.Minute)
			heartbeat(t, s, ref)
			_, err := s.Revoke(ctx, ref.Term, "ann", "")
			require.NoError(t, err)
			_, err = s.Pause(ctx, ledger.Action{By: "ann"})
			require.NoError(t, err)
			inbox, err := s.Pending(ctx)
			require.NoError(t, err)
			require.Len(t, inbox.Pauses, 1)
			terms, err := s.Terms(ctx, 10)
			require.NoError(t, err)
			require.Len(t, terms, 1)
			left, err := s.Abandon(ctx, ref, nil)
			require.NoError(t, err)
			require.Empty(t, left)

			n := s.Named()
			locked := takeNamed(t, n, namedClaim(namedlock.Key{Kind: namedlock.KindLock, Name: "a"},
				time.Minute))
			added, err := s.Queue().Add(ctx, "q", 0, []string{"t"})
			require.NoError(t, err)
			require.Equal(t, []string{"t"}, added)

			// The transactions are the app's, and so is their search_path.
			inApp(t, direct, func(tx any) {
				require.NoError(t, s.Fence(ctx, tx, ref))
				fenceNamed(t, n, tx, locked, true)
				added, err := s.Queue().AddTx(ctx, tx, "q", 0, []string{"t", "u"})
				require.NoError(t, err)
				require.Equal(t, []string{"u"}, added)
			})
			worker := driver.NewToken()
			captured, err := s.Queue().Capture(ctx, "q", worker, time.Minute, 1)
			require.NoError(t, err)
			require.Len(t, captured, 1, "of its own queue only")
			inApp(t, direct, func(tx any) {
				done, err := s.Queue().DoneTx(ctx, tx, "q", worker, time.Minute, []string{"t"})
				require.NoError(t, err)
				require.Equal(t, []string{"t"}, done)
			})
			other := ref
			other.Term++
			inApp(t, direct, func(tx any) {
				require.ErrorIs(t, s.Fence(ctx, tx, other), driver.ErrLost)
			})
		}
		require.Equal(t, int64(1), value[int64](t, admin,
			`SELECT beat FROM billing.scheduler_lock`))
		require.Equal(t, int64(1), value[int64](t, admin, `SELECT beat FROM "user".scheduler_lock`))
	})
}

// inApp calls do in a transaction of each kind, which is rolled back.
func inApp(t testing.TB, url string, do func(tx any)) {
	t.Helper()
	require.ErrorIs(t, pgx.BeginFunc(ctx, session(t, url), func(tx pgx.Tx) error {
		do(tx)
		return context.Canceled
	}), context.Canceled)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer tx.Rollback()
	do(tx)
}

func TestAReleaseInOneSchemaWakesNoStandbyOfAnother(t *testing.T) {
	t.Parallel()
	url := pgtest.Shared(t).Database(t)
	billing, shop, standby := openedIn(t, url, "billing"), openedIn(t, url, "shop"), openedIn(t,
		url, "shop")
	one, other := acquire(t, billing, time.Minute), acquire(t, shop, time.Minute)
	done := awaiting(ctx, standby, look(t, standby))
	stays(t, done)
	release(t, billing, one)
	stays(t, done)
	release(t, shop, other)
	ends(t, done)
}

func TestANameThatIsNoneOfASchemaIsRefused(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(ctx, "postgres://127.0.0.1:1/x", silent,
		postgres.WithSchema(`x"; DROP TABLE a`))
	require.EqualError(t, err,
		`option WithSchema: schema "x\"; DROP TABLE a": only a-z, 0-9 and _ are allowed`)
}

func TestARoleThatMayNotMakeASchemaIsToldWhatToDo(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, direct, url string) {
		admin, role := session(t, direct), newRole(t, direct, "")
		url = as(t, url, role)
		_, err := postgres.Opener(url, silent, postgres.WithSchema("billing"))(ctx)
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, fmt.Sprintf(`CREATE SCHEMA "billing" AUTHORIZATION %q`, role))

		exec(t, admin, `CREATE SCHEMA billing`)
		_, err = postgres.Opener(url, silent, postgres.WithSchema("billing"))(ctx)
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err,
			fmt.Sprintf(`GRANT USAGE, CREATE ON SCHEMA "billing" TO %q`, role))

		exec(t, admin, fmt.Sprintf(`ALTER SCHEMA billing OWNER TO %s`, role))
		acquire(t, openedIn(t, url, "billing"), time.Minute)
		require.Equal(t, 1, value[int](t, admin, `SELECT count(*) FROM billing.scheduler_lock`))
	})
}

func TestManyReplicasMakeOneSchemaAtOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, direct, url string) {
		errs := make(chan error)
		for range 8 {
			go func() {
				store, err := postgres.Opener(url, silent, postgres.WithSchema("billing"))(ctx)
				if err == nil {
					err = store.(*postgres.Store).Close()
				}
				errs <- err
			}()
		}
		for range 8 {
			require.NoError(t, <-errs)
		}
	})
}

// A pooler changes how statements are sent, a schema their text: one run is for both.
func TestConformanceInASchemaThroughAPooler(t *testing.T) {
	t.Parallel()
	missing.OnlyFull(t, "tries the rules once more")
	server := pgtest.Shared(t)
	direct := server.Database(t)
	url := pgtest.PgBouncer(t, server).URL(databaseName(t, direct)) +
		"&default_query_exec_mode=exec"
	openedIn(t, url, "billing")
	edited := as(t, direct, "postgres", "search_path", "billing")
	admin := session(t, edited)
	locktest.Run(t, func(t testing.TB) locktest.Database {
		d := conformance(t, admin, edited, url, locktest.Hints)
		d.Open = func(t testing.TB) driver.Store {
			return open(t, url, postgres.WithSchema("billing"))
		}
		return d
	})
}
