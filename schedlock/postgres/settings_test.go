package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/startup"
)

// A role may have settings on which the text of values depends.
const sqlOddSettings = `
ALTER ROLE %[1]s SET DateStyle = 'German, DMY';
ALTER ROLE %[1]s SET IntervalStyle = 'sql_standard';
ALTER ROLE %[1]s SET TimeZone = 'Africa/Monrovia';
ALTER ROLE %[1]s SET bytea_output = 'escape';
ALTER ROLE %[1]s SET extra_float_digits = -15;
ALTER ROLE %[1]s SET array_nulls = off;
ALTER ROLE %[1]s SET idle_in_transaction_session_timeout = '90min'`

// An app may send its own statements in any of the driver's modes; it is the app
// whose transactions the fences and AddTx use.
func TestEverythingWorksWhateverTheSettingsOfTheRoleAndTheModeOfTheDriver(t *testing.T) {
	t.Parallel()
	pooler := pgtest.PgBouncer(t, pgtest.Shared(t))
	for _, mode := range missing.Some("cache_statement", "cache_describe", "describe_exec",
		"exec", "simple_protocol", "pooled") {
		t.Run(mode, func(t *testing.T) {
			direct := pgtest.Shared(t).Database(t)
			role := newRole(t, direct, "SUPERUSER")
			exec(t, session(t, direct), fmt.Sprintf(sqlOddSettings, role))
			url := as(t, direct, role, "default_query_exec_mode", mode)
			if mode == "pooled" {
				url = as(t, pooler.URL(databaseName(t, direct)), role, "default_query_exec_mode",
					"exec")
			}
			store := opened(t, url) // migrates
			before := value[time.Time](t, session(t, direct), `SELECT clock_timestamp()`)
			first := acquire(t, store, time.Minute)
			heartbeat(t, store, first)
			ref := acquire(t, store, time.Minute)
			heartbeat(t, store, ref)
			for _, view := range []driver.Snapshot{look(t, store), lookAtSession(t, store)} {
				require.Equal(t, ref.Token, view.Row.Token)
				for _, at := range []time.Time{view.Now, view.Row.CreatedAt, view.Row.HeartbeatAt,
					view.Newest.AcquiredAt} {
					require.WithinRange(t, at, before, before.Add(time.Hour))
				}
			}
			terms, err := store.Terms(ctx, 10)
			require.NoError(t, err)
			require.WithinRange(t, terms[1].EndedAt, before, before.Add(time.Hour))
			one := func(what string, f func() error) { require.NoError(t, f(), what) }
			oneRoundTripEach(t, store, ref, "j", one)
			_, err = store.Pause(ctx, ledger.Action{Job: "j", By: "me"})
			require.NoError(t, err)
			_, err = store.Abandon(ctx, acquire(t, store, time.Minute), nil)
			require.NoError(t, err)
			jobs, err := store.Jobs(ctx)
			require.NoError(t, err)
			require.Len(t, jobs, 1)
			_, err = store.ResetCursor(ctx, ledger.Action{Job: "j", By: "me"})
			require.NoError(t, err)
			ref = acquire(t, store, time.Minute)

			n, q := store.Named(), store.Queue()
			lock := takeNamed(t, n, namedClaim(lockA, time.Minute))
			row, err := n.Look(ctx, lockA)
			require.NoError(t, err)
			require.WithinRange(t, row.AcquiredAt, before, before.Add(time.Hour))
			for kind, start := range kinds {
				for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted,
					sql.LevelSerializable} {
					tx := start(t, url, level)
					require.NoError(t, store.Fence(ctx, tx.tx, ref), kind)
					fenceNamed(t, n, tx.tx, lock, true)
					unborn := lock
					unborn.Term = 0 // of any term
					fenceNamed(t, n, tx.tx, unborn, true)
					added, err := q.AddTx(ctx, tx.tx, "q", 1,
						[]string{kind + level.String(), `a "b", {c} \ 'd'`})
					require.NoError(t, err, kind)
					require.NotEmpty(t, added)
					require.NoError(t, tx.commit())
				}
			}
			_, err = n.Release(ctx, lock, false)
			require.NoError(t, err)
			everyNamedCall(t, n, one)
			everyCall(t, q, one)
			release(t, store, ref)
		})
	}
}

// Of the hooks of the app's pool those that make a connection are used, and no
// other.
func TestOnlyTheHooksThatMakeAConnectionAreUsed(t *testing.T) {
	t.Parallel()
	var before, after, notified atomic.Int32
	not := func(what string) { t.Errorf("%s was called", what) }
	store := configured(t, migrated(t), func(config *pgxpool.Config) {
		config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			before.Add(1)
			return nil
		}
		config.AfterConnect = func(context.Context, *pgx.Conn) error { after.Add(1); return nil }
		config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {
			notified.Add(1)
		}
		config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			not("PrepareConn")
			return false, errors.New("no tenant in the context")
		}
		config.AfterRelease = func(*pgx.Conn) bool { not("AfterRelease"); return false }
		config.BeforeClose = func(*pgx.Conn) { not("BeforeClose") }
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool {
			not("ShouldPing")
			return true
		}
		//lint:ignore SA1019 an app may have it still
		config.BeforeAcquire = func(context.Context, *pgx.Conn) bool {
			not("BeforeAcquire")
			return false
		}
	})
	ref := acquire(t, store, time.Minute)
	release(t, store, ref) // notifies
	for range 3 {
		_, err := store.Jobs(ctx)
		require.NoError(t, err)
		addTasks(t, store.Queue(), 0, fmt.Sprint(time.Now()))
	}
	require.NoError(t, store.Close())
	require.GreaterOrEqual(t, before.Load(), int32(3),
		"the lock's connection, and one of each pool")
	require.GreaterOrEqual(t, after.Load(), int32(3))
	require.Zero(t, notified.Load())
}

// The app may listen to something on each of its connections.
func TestANotificationOnAnotherChannelWakesNobody(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := configured(t, url, func(config *pgxpool.Config) {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `LISTEN events`)
			return err
		}
	})
	holder := open(t, url)
	ref := acquire(t, holder, time.Minute)
	conn := session(t, url)
	exec(t, conn, `NOTIFY events`)
	view := look(t, store) // has received it
	done := awaiting(ctx, store, view)
	for range 20 {
		exec(t, conn, `NOTIFY events`)
	}
	stays(t, done)
	look(t, store) // meanwhile others have their turn
	exec(t, conn, `NOTIFY events`)
	stays(t, done)
	release(t, holder, ref)
	ends(t, done)
}

// A server that rolls a statement back because of another would do it next time.
func TestAQueueTriesAgainWhatTheServerHasRolledBack(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	for _, code := range []string{"40001", "40P01"} {
		for what, f := range map[string]func(q taskqueue.Store, id string) error{
			"Add": func(q taskqueue.Store, id string) error {
				_, err := q.Add(ctx, "q", 1, []string{id, id + "2"})
				return err
			},
			"Capture": func(q taskqueue.Store, _ string) error {
				_, err := q.Capture(ctx, "q", driver.NewToken(), time.Minute, 1)
				return err
			},
		} {
			t.Run(what+" "+code, func(t *testing.T) {
				q := open(t, url).Queue()
				addTasks(t, q, 0, "before "+what+code)
				exec(t, conn, fmt.Sprintf(`
					CREATE SEQUENCE tries;
					CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
					BEGIN
						IF nextval('tries') <= 3 THEN
							RAISE EXCEPTION 'not now' USING ERRCODE = '%s';
						END IF;
						RETURN NEW;
					END $$;
					CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON queue_tasks
						FOR EACH ROW EXECUTE FUNCTION refuse()`, code))
				defer exec(t, conn,
					`DROP TRIGGER refuse ON queue_tasks; DROP FUNCTION refuse; DROP SEQUENCE tries`)
				require.NoError(t, f(q, what+code))

				// for good
				exec(t, conn, `ALTER SEQUENCE tries RESTART MINVALUE -1000000 START -1000000`)
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				_, err := q.Add(short, "q", 0, []string{"for good"})
				require.ErrorContains(t, err, "not now")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Less(t, value[int](t, conn, `SELECT 1000000 + nextval('tries')`), 100,
					"it pauses")
			})
		}
	}
}

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
