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

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

const sqlTablesIn = `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r'`

func openedIn(t testing.TB, url, schema string) *postgres.Store {
	t.Helper()
	return opened(t, url, postgres.WithSchema(schema))
}

// Two apps in one database: each has all its tables, and nothing of the other's.
func TestWithSchemaEachAppHasTablesOfItsOwn(t *testing.T) {
	t.Parallel()
	eachWay(t, pgtest.Shared(t).Database, func(t *testing.T, direct, url string) {
		admin := session(t, direct)
		errs := make(chan error)
		for range 8 { // replicas make one schema at once
			go func() {
				store, err := postgres.Opener(url, silent, postgres.WithSchema("billing")).Open(ctx)
				if err == nil {
					err = store.Close()
				}
				errs <- err
			}()
		}
		for range 8 {
			require.NoError(t, <-errs)
		}
		billing, shop := openedIn(t, url, "billing"), openedIn(t, url, "user") // a word of SQL
		require.NoError(t, billing.Migrate(ctx), "again")
		for _, schema := range []string{"billing", "user"} {
			require.Equal(t, 14, value[int](t, admin, sqlTablesIn, schema))
		}
		require.Zero(t, value[int](t, admin, sqlTablesIn, "public"))

		for _, s := range []*postgres.Store{billing, shop} { // the first one, too: see sqlTakeFirst
			ref := acquire(t, s, time.Minute)
			heartbeat(t, s, ref)

			n := s.Named()
			locked := takeNamed(t, n, namedClaim(lockA, time.Minute))
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
	eachWay(t, pgtest.Shared(t).Database, func(t *testing.T, direct, url string) {
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
