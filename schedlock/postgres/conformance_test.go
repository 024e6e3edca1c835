package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/postgres"
)

func TestMain(m *testing.M) { os.Exit(pgtest.RunSeated(m)) }

var (
	ctx    = context.Background()
	silent = postgres.WithLogger(slog.New(slog.DiscardHandler))
)

// migrated is a new database that has its tables: a copy, which is faster than
// the migrations.
func migrated(t testing.TB) (url string) {
	t.Helper()
	return pgtest.Shared(t).Filled(t, func(url string) { migrate(t, url) })
}

func migrate(t testing.TB, url string) {
	store, err := postgres.Open(ctx, url, silent)
	require.NoError(t, err)
	require.NoError(t, store.Migrate(ctx))
	require.NoError(t, store.Close())
}

func open(t testing.TB, url string, opts ...postgres.Option) *postgres.Store {
	store, err := postgres.Open(ctx, url, append([]postgres.Option{silent}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	store.PrimeFor(patience) // a slow server ends no wait
	return store
}

// session is a session of the test's own.
func session(t testing.TB, url string) *pgx.Conn {
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(ctx) })
	return conn
}

func exec(t testing.TB, conn *pgx.Conn, query string, args ...any) {
	t.Helper()
	_, err := conn.Exec(ctx, query, args...)
	require.NoError(t, err)
}

// A suite is how the conformance suites come to a database.
type suite struct {
	admin *pgx.Conn // of a superuser, who edits the tables
	url   string    // of the app's transactions
	open  func(t testing.TB) *postgres.Store
}

// asApp are the suites as a role that has the documented rights.
func asApp(t testing.TB) suite {
	admin, role, url := granted(t, "databases.md", "locks.md")
	exec(t, admin, `GRANT INSERT, UPDATE, DELETE ON scheduler_replicas TO `+role) // for Presence
	return suite{admin, url, servertest.Reopened(t, func(t testing.TB) *postgres.Store {
		return open(t, url)
	})}
}

func (s suite) begin(t testing.TB) locktest.Tx {
	tx, err := session(t, s.url).Begin(ctx)
	require.NoError(t, err)
	return locktest.Tx{Tx: tx, Commit: func() error { return tx.Commit(ctx) },
		Rollback: func() error { return tx.Rollback(ctx) }}
}

// lock is the database that the suite of the lock asks for, empty.
func (s suite) lock(t testing.TB, without ...locktest.Feature) locktest.Database {
	admin := s.admin
	empty(t, admin)
	return locktest.Database{
		Open: func(t testing.TB) driver.Store { return s.open(t) },
		Fill: func(t testing.TB, f locktest.Fill) {
			exec(t, admin, sqlHistory, f.Terms)
			exec(t, admin, `INSERT INTO scheduler_requests (job, requested_at, requested_by, reason)
				SELECT $1, now() - n * interval '1 second', 'ann', 'why'
				FROM generate_series(1, $2) AS n`, f.RequestsOf, f.Requests)
			exec(t, admin, `INSERT INTO scheduler_audit (at, what, job, by, reason)
				SELECT now() - interval '1 hour', 'pause', '', 'ann', 'why'
				FROM generate_series(1, $1)`, f.Orders)
		},
		Edit: func(t testing.TB, e locktest.Edit) {
			if e.Silent != "" {
				exec(t, admin, `UPDATE scheduler_replicas SET seen_at = seen_at - $1::interval
					WHERE instance = $2`, e.For, e.Silent)
				return
			}
			if e.CursorOf != "" {
				text := "infinity"
				if !e.CursorAt.IsZero() {
					text = e.CursorAt.Format(time.RFC3339)
				}
				exec(t, admin,
					`UPDATE scheduler_jobs SET cursor_at = $1::text::timestamptz WHERE job = $2`,
					text, e.CursorOf)
				return
			}
			exec(t, admin, `UPDATE scheduler_lock
				SET token = coalesce(nullif($1::text, ''), token),
				term = coalesce(nullif($2::bigint, 0), term),
				beat = coalesce(nullif($3::bigint, 0), beat),
				state = coalesce(nullif($4::text, ''), state)`,
				e.Token, e.Term, e.Beat, string(e.State))
			if e.DeleteRow {
				exec(t, admin, `DELETE FROM scheduler_lock`)
			}
			if e.EmptyTerms {
				exec(t, admin, `DELETE FROM scheduler_terms`)
			}
		},
		Backup: func(t testing.TB) func() {
			conn := session(t, admin.Config().ConnString())
			tables := []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs",
				"scheduler_runs", "scheduler_attempts", "scheduler_requests", "scheduler_pauses",
				"scheduler_audit"}
			for _, table := range tables {
				exec(t, conn, fmt.Sprintf(`CREATE TEMPORARY TABLE backup_%[1]s AS TABLE %[1]s`,
					table))
			}
			return func() {
				tx, err := conn.Begin(ctx)
				require.NoError(t, err)
				defer tx.Rollback(ctx)
				for _, table := range tables {
					_, err := tx.Exec(ctx,
						fmt.Sprintf(`DELETE FROM %[1]s; INSERT INTO %[1]s TABLE backup_%[1]s`,
							table))
					require.NoError(t, err)
				}
				require.NoError(t, tx.Commit(ctx))
			}
		},
		Begin:               s.begin,
		HeartbeatsPassFence: true,
		Without:             without,
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s := asApp(t)
	locktest.Run(t, func(t testing.TB) locktest.Database { return s.lock(t) })
}

// A pooler changes how statements are sent, a schema their text: one run is for both.
func TestConformanceInASchemaThroughAPooler(t *testing.T) {
	t.Parallel()
	missing.OnlyFull(t, "tries the rules once more")
	server := pgtest.Shared(t)
	direct := server.Database(t)
	url := pgtest.PgBouncer(t, server).URL(databaseName(t, direct)) +
		"&default_query_exec_mode=exec"
	billing := postgres.WithSchema("billing")
	opened(t, url, billing)
	s := suite{session(t, as(t, direct, "postgres", "search_path", "billing")), url,
		func(t testing.TB) *postgres.Store { return open(t, url, billing) }}
	t.Run("lock", func(t *testing.T) {
		locktest.Run(t, func(t testing.TB) locktest.Database { return s.lock(t, locktest.Hints) })
	})
	t.Run("named locks", func(t *testing.T) { locktest.RunNamed(t, s.named) })
	t.Run("queues", func(t *testing.T) { locktest.RunQueue(t, s.queue) })
}

// empty makes the tables as good as new, which is faster than a new database.
func empty(t testing.TB, conn *pgx.Conn) {
	exec(t, conn, `DELETE FROM scheduler_lock; DELETE FROM scheduler_terms;
		DELETE FROM scheduler_jobs; DELETE FROM scheduler_runs;
		DELETE FROM scheduler_requests; DELETE FROM scheduler_pauses;
		DELETE FROM scheduler_audit; DELETE FROM scheduler_replicas`)
}

func databaseName(t testing.TB, url string) string {
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	return config.Database
}
