//go:build unix

package migrations_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/postgres"
)

// execMode lets pgx do without named prepared statements.
const execMode = "&default_query_exec_mode=exec"

func openPostgres(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func upPostgres(t *testing.T, db *sql.DB) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	return migrations.Up(ctx, db, migrations.PostgreSQL)
}

func versionPostgres(t *testing.T, db *sql.DB) int64 {
	t.Helper()
	return versionOf(t, db, migrations.PostgreSQL)
}

func databaseName(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// as returns the URL for another user.
func as(t *testing.T, databaseURL, user, password string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

const tablesIn = `SELECT tablename FROM pg_tables WHERE schemaname = '%s' ORDER BY 1`

func TestPostgresUpCreatesTheTablesAndSaysSoOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	url := s.Database(t)
	db := openPostgres(t, url)
	db.SetMaxOpenConns(1) // Up needs one at a time
	require.Zero(t, versionPostgres(t, db))
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	for range 2 {
		require.NoError(t, migrations.Up(t.Context(), db,
			migrations.PostgreSQL, migrations.WithLogger(logger)))
	}
	require.Equal(t, migrations.Latest, versionPostgres(t, db))
	require.Equal(t, ourTables, lines(t, db, fmt.Sprintf(tablesIn, "public")))
	// Code of version 1 starts on these tables.
	require.Equal(t, []string{"1"}, lines(t, db, `SELECT max(min_code) FROM scheduler_lock_schema`))
	require.Equal(t, []string{"{fillfactor=50}"}, lines(t,
		db, `SELECT reloptions FROM pg_class WHERE relname = 'scheduler_lock'`))
	require.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
	require.Contains(t, out.String(),
		fmt.Sprintf(`database="database \"%s\" on 127.0.0.1:%d, schema \"public\"" from=0 to=13`,
			databaseName(t, url), s.Port()))
}

func TestPostgresUpOnACurrentSchemaOnlyReads(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	url := s.Database(t)
	readOnly := openPostgres(t, url+"&default_transaction_read_only=on")
	err := upPostgres(t, readOnly)
	require.ErrorContains(t, err, "25006")
	require.ErrorContains(t, err, "connect to the primary; or default_transaction_read_only is on")
	require.ErrorContains(t, err, databaseName(t, url))

	require.NoError(t, upPostgres(t, openPostgres(t, url)))
	require.NoError(t, upPostgres(t, readOnly))
	require.Equal(t, migrations.Latest, versionPostgres(t, readOnly))
}

func TestPostgresTwentyStartAtOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	t.Run("directly", func(t *testing.T) {
		assertTwentyStart(t, s, func(url string) string { return url })
	})
	t.Run("through PgBouncer", func(t *testing.T) {
		bouncer := pgtest.PgBouncer(t, s, "default_pool_size=5")
		assertTwentyStart(t, s, func(url string) string {
			return bouncer.URL(databaseName(t, url)) + execMode
		})
	})
}

func assertTwentyStart(t *testing.T, s *pgtest.Server, start func(url string) string) {
	t.Helper()
	for round, from := range missing.Some(0, 0, 1, 1) {
		t.Run(fmt.Sprintf("from version %d, round %d", from, round), func(t *testing.T) {
			direct := s.Database(t)
			if from == 1 {
				applyVersion(t, openPostgres(t, direct), migrations.PostgreSQL, 1)
			}
			twentyStart(t, migrations.PostgreSQL, func() *sql.DB {
				return openPostgres(t, start(direct))
			})
			db := openPostgres(t, direct)
			require.Equal(t, ourTables, lines(t, db, fmt.Sprintf(tablesIn, "public")))
			require.Equal(t, applied(),
				lines(t, db, "SELECT version_id FROM scheduler_lock_migrations ORDER BY id"))
		})
	}
}

func TestPostgresAnUpgradeKeepsWhatAnEarlierVersionHasWritten(t *testing.T) {
	t.Parallel()
	for _, from := range missing.Some(earlier()...) {
		t.Run(fmt.Sprint(from), func(t *testing.T) {
			t.Parallel()
			url := pgtest.Shared(t).Database(t)
			db := openPostgres(t, url)
			applyVersion(t, db, migrations.PostgreSQL, from)
			require.Equal(t, from, versionPostgres(t, db))
			assertUpgradeKeeps(t, db, migrations.PostgreSQL)
			require.Equal(t, ourTables, lines(t, db, fmt.Sprintf(tablesIn, "public")))
			assertGoesOn(t, postgres.Opener(url))
		})
	}
}

// ALTER TABLE waits for every transaction that has read the table, and whoever
// comes later waits for it: without a limit one report that runs for minutes stops
// the scheduler for as long.
func TestPostgresAnUpgradeThatWaitsForAReaderLetsOthersRead(t *testing.T) {
	t.Parallel()
	db := openPostgres(t, pgtest.Shared(t).Database(t))
	applyVersion(t, db, migrations.PostgreSQL, 1)
	reader, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer reader.Rollback()
	_, err = reader.ExecContext(t.Context(), `SELECT count(*) FROM scheduler_runs`)
	require.NoError(t, err)

	err = inVain(t, db, migrations.PostgreSQL, 1500*time.Millisecond, func(err error) bool {
		return strings.Contains(err.Error(), "lock timeout")
	})
	require.ErrorContains(t, err, "lock timeout")

	done := make(chan error, 1)
	go func() { done <- migrations.Up(context.Background(), db, migrations.PostgreSQL) }()
	for range 3 {
		require.Eventually(t, func() bool {
			return lines(t, db,
				`SELECT count(*) FROM pg_locks
				WHERE NOT granted AND mode = 'AccessExclusiveLock' AND database =
				(SELECT oid FROM pg_database WHERE datname = current_database())`)[0] == "1"
		}, time.Minute, 5*time.Millisecond, "it waits")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := db.ExecContext(ctx, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
			VALUES ('a', 's', now(), now()) ON CONFLICT DO NOTHING`)
		require.NoError(t, err)
		_, err = db.ExecContext(ctx, `SELECT count(*) FROM scheduler_runs`)
		cancel()
		require.NoError(t, err)
	}
	require.NoError(t, reader.Rollback())
	require.NoError(t, <-done)
	require.Equal(t, migrations.Latest, versionPostgres(t, db))
}

func TestPostgresANewerSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	url := s.Database(t)
	db := openPostgres(t, url)
	require.NoError(t, upPostgres(t, db))
	exec1(t, db, `INSERT INTO scheduler_lock_schema VALUES (98, 1)`)
	require.NoError(t, upPostgres(t, db), "compatible")
	exec1(t, db, `INSERT INTO scheduler_lock_schema VALUES (99, 98)`)
	var tooNew *migrations.TooNewError
	require.ErrorAs(t, upPostgres(t, db), &tooNew)
	require.Equal(t, migrations.TooNewError{
		Database: fmt.Sprintf(`database "%s" on 127.0.0.1:%d, schema "public"`,
			databaseName(t, url), s.Port()),
		DatabaseVersion: 99, MinCode: 98, CodeVersion: migrations.Latest,
	}, *tooNew)
	require.EqualValues(t, 99, versionPostgres(t, db), "Version only tells")
}

func TestPostgresWithoutAPrivilegeTheErrorSaysWhatToGrant(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	url := s.Database(t)
	admin := openPostgres(t, url)
	exec1(t, admin, `CREATE ROLE app_without_create LOGIN PASSWORD 'geheim'`)
	t.Cleanup(func() {
		for _, query := range []string{`DROP OWNED BY app_without_create`,
			`DROP ROLE app_without_create`} {
			_, err := admin.ExecContext(context.Background(), query)
			assert.NoError(t, err)
		}
	})
	exec1(t, admin, `REVOKE CREATE ON SCHEMA public FROM public`)
	db := openPostgres(t, as(t, url, "app_without_create", "geheim"))
	err := upPostgres(t, db)
	require.ErrorContains(t, err, "42501")
	require.ErrorContains(t, err, `GRANT CREATE ON SCHEMA "public" TO "app_without_create"`)
	require.NotContains(t, err.Error(), "geheim")

	require.NoError(t, upPostgres(t, admin), "an administrator migrates")
	require.ErrorContains(t, upPostgres(t, db), "GRANT SELECT ON scheduler_lock_schema")
	exec1(t, admin, `GRANT SELECT ON scheduler_lock_schema TO app_without_create`)
	require.NoError(t, upPostgres(t, db))
}

func TestPostgresWhatTimeDoesNotCureIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	t.Run("no such database", func(t *testing.T) {
		err := upPostgres(t, openPostgres(t, s.URL("nowhere")))
		require.ErrorContains(t, err, "create the database")
		var server *pgconn.PgError
		require.ErrorAs(t, err, &server, "the driver's error is kept")
		require.Equal(t, "3D000", server.Code)
	})
	t.Run("no such role", func(t *testing.T) {
		err := upPostgres(t, openPostgres(t, as(t, s.URL("postgres"), "nobody_here", "geheim")))
		require.ErrorContains(t, err, "check the user")
		require.NotContains(t, err.Error(), "geheim")
	})
	t.Run("no schema of the search_path exists", func(t *testing.T) {
		err := upPostgres(t, openPostgres(t, s.Database(t)+"&search_path=nowhere"))
		require.ErrorContains(t, err, "no schema of the search_path exists")
	})
	t.Run("a pooler in statement mode", func(t *testing.T) {
		bouncer := pgtest.PgBouncer(t, s, "pool_mode=statement")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		db := openPostgres(t, bouncer.URL(databaseName(t, s.Database(t)))+execMode)
		err := migrations.Up(ctx, db, migrations.PostgreSQL)
		require.ErrorContains(t, err, "pool_mode = transaction")
		require.NoError(t, ctx.Err())
	})
	t.Run("a table of the same name", func(t *testing.T) {
		db := openPostgres(t, s.Database(t))
		exec1(t, db, `CREATE TABLE scheduler_runs (mine text)`)
		err := upPostgres(t, db)
		require.ErrorContains(t, err, "42P07")
		require.ErrorContains(t, err, "postgres/00001_scheduler_lock.sql")
		require.Zero(t, versionPostgres(t, db), "a migration is applied wholly or not at all")
		exec1(t, db, `DROP TABLE scheduler_runs`)
		require.NoError(t, upPostgres(t, db))
	})
	t.Run("edited by hand", func(t *testing.T) {
		db := openPostgres(t, s.Database(t))
		require.NoError(t, upPostgres(t, db))
		exec1(t, db, `DELETE FROM scheduler_lock_schema`)
		require.ErrorContains(t, upPostgres(t, db), "edited by hand")
	})
	t.Run("goose's table dropped by hand", func(t *testing.T) {
		db := openPostgres(t, s.Database(t))
		applyVersion(t, db, migrations.PostgreSQL, 1)
		exec1(t, db, `DROP TABLE scheduler_lock_migrations`)
		require.ErrorContains(t, upPostgres(t, db), "was dropped")
	})
}

func TestPostgresTheSearchPathChoosesTheSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	url := s.Database(t)
	admin := openPostgres(t, url)
	exec1(t, admin, `CREATE SCHEMA "Other one"`)
	db := openPostgres(t, url+"&search_path=%22Other%20one%22")
	for range 2 {
		require.NoError(t, upPostgres(t, db))
	}
	require.Equal(t, ourTables, lines(t, admin, fmt.Sprintf(tablesIn, "Other one")))
	require.Empty(t, lines(t, admin, fmt.Sprintf(tablesIn, "public")))
	require.Zero(t, versionPostgres(t, admin))
	require.NoError(t, upPostgres(t, admin), "each schema has tables of its own")

	exec1(t, admin, `CREATE SCHEMA before`)
	both := openPostgres(t, url+"&search_path=before,public")
	require.NoError(t, upPostgres(t, both), "current")
	exec1(t, admin, `DELETE FROM scheduler_lock_schema`)
	require.ErrorContains(t, upPostgres(t, both), `put "public" first`)
	require.Empty(t, lines(t, admin, fmt.Sprintf(tablesIn, "before")))
}

// A migrator that dies in the middle is a transaction that is never committed.
func TestPostgresAMigratorThatDiesInTheMiddleBlocksNobody(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := openPostgres(t, s.Database(t))
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	var pid int
	require.NoError(t, conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
	_, err = conn.ExecContext(t.Context(), `BEGIN`)
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), `CREATE TABLE scheduler_lock (half text)`)
	require.NoError(t, err)

	done := make(chan error, 1)
	go func() { done <- migrations.Up(context.Background(), db, migrations.PostgreSQL) }()
	other := openPostgres(t, s.URL("postgres"))
	require.Eventually(t, func() bool {
		return lines(t, other, fmt.Sprintf(
			`SELECT count(*) FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid))`,
			pid))[0] == "1"
	}, 30*time.Second, 10*time.Millisecond, "it waits")
	exec1(t, other, fmt.Sprintf(`SELECT pg_terminate_backend(%d)`, pid))
	require.NoError(t, <-done)
	require.Equal(t, migrations.Latest, versionPostgres(t,
		openPostgres(t, s.URL(currentDatabase(t, db)))))
}

func currentDatabase(t *testing.T, db *sql.DB) string {
	t.Helper()
	var name string
	// The first of its connections may be the one that was ended.
	require.Eventually(t, func() bool {
		return db.QueryRowContext(t.Context(), `SELECT current_database()`).Scan(&name) == nil
	}, 30*time.Second, 10*time.Millisecond)
	return name
}

func TestPostgresALostConnectionIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := openPostgres(t, s.Database(t))
	other := openPostgres(t, s.URL("postgres"))
	name := currentDatabase(t, db)
	// An open transaction makes Up wait in the middle, where its connection can be ended.
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), `CREATE TABLE scheduler_terms (half text)`)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- migrations.Up(context.Background(), db, migrations.PostgreSQL) }()
	const blocked = `FROM pg_stat_activity
		WHERE datname = '%s' AND cardinality(pg_blocking_pids(pid)) > 0`
	ended := map[string]bool{}
	// The first time Up has just created its version table, which alone is a reason to look again.
	require.Eventually(t, func() bool {
		for _, pid := range lines(t, other, fmt.Sprintf(`SELECT pid `+blocked, name)) {
			exec1(t, other, `SELECT pg_terminate_backend(`+pid+`)`)
			ended[pid] = true
		}
		return len(ended) >= 2
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, tx.Rollback())
	require.NoError(t, <-done)
	require.Equal(t, migrations.Latest, versionPostgres(t, db))
}

func TestPostgresUpWaitsForAServerThatIsDown(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	db := openPostgres(t, s.Database(t))
	s.Stop(t, "immediate")
	const refused = "failed to connect" // or on a busy machine not answered
	err := inVain(t, db, migrations.PostgreSQL, time.Second/2, func(err error) bool {
		return strings.Contains(err.Error(), refused)
	})
	require.ErrorContains(t, err, refused)

	done := make(chan error, 1)
	go func() { done <- migrations.Up(context.Background(), db, migrations.PostgreSQL) }()
	s.StartAgain(t)
	require.NoError(t, <-done)
	require.Equal(t, migrations.Latest, versionPostgres(t, db))
}

func TestPostgresAServerThatAnswersNoMoreIsWaitedForUntilTheDeadline(t *testing.T) {
	t.Parallel()
	url := pgtest.Shared(t).Database(t)
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	assertWaitsForNobody(t, migrations.PostgreSQL, func(network *deadNetwork) driver.Connector {
		config := config.Copy()
		config.DialFunc = network.dial
		return stdlib.GetConnector(*config)
	})
	require.NoError(t, migrations.Up(t.Context(), openPostgres(t, url), migrations.PostgreSQL))
}
