package migrations_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/sqlite"
)

// applyVersion does what code of that version has done.
func applyVersion(t *testing.T, db *sql.DB, dialect migrations.Dialect, version int64) {
	t.Helper()
	provider, err := goose.NewProvider(
		map[migrations.Dialect]goose.Dialect{migrations.SQLite: goose.DialectSQLite3,
			migrations.PostgreSQL: goose.DialectPostgres,
			migrations.MySQL:      goose.DialectMySQL}[dialect],
		db, os.DirFS(string(dialect)),
		goose.WithTableName("scheduler_lock_migrations"), goose.WithDisableGlobalRegistry(true))
	require.NoError(t, err)
	_, err = provider.UpTo(t.Context(), version)
	require.NoError(t, err)
}

// atVersion1 returns the path of a file that code of version 1 has migrated.
func atVersion1(t *testing.T) string {
	t.Helper()
	return atVersion(t, 1)
}

func atVersion(t *testing.T, wanted int64) string {
	t.Helper()
	path := newPath(t)
	db, err := sql.Open("sqlite3", ours(path))
	require.NoError(t, err)
	applyVersion(t, db, migrations.SQLite, wanted)
	require.Equal(t, wanted, version(t, db))
	require.NoError(t, db.Close())
	return path
}

const t0, t1 = "2026-03-01T12:00:00.000001Z", "2026-03-01T13:00:00.000002Z"

// dataOfVersion1 is a leader, its history, and runs in each state.
var dataOfVersion1 = []string{
	`INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat,
	 state, ttl_ms, renew_deadline_ms, heartbeat_ms)
	 VALUES (1, 7, 'host', '` + t0 + `', '` + t1 + `', '0123456789abcdef0123456789abcdef', 42, 3,
	 'leading', 60000, 45000, 10000)`,
	`INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
	 next_term, ttl_ms) VALUES
	 (41, 'x', 6, 'host', '` + t0 + `', '` + t1 + `', 'released', 42, 60000),
	 (42, '0123456789abcdef0123456789abcdef', 7, 'host', '` + t1 + `', NULL, NULL, NULL, 60000)`,
	`INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at) VALUES
	 ('a', 'every 1h', '` + t0 + `', '` + t1 + `'),
	 ('b', 'every "1d" – ü', '` + t1 + `', '` + t1 + `')`,
	`INSERT INTO scheduler_runs (id, job, scheduled_at, started_at, finished_at, status, term, pid,
	 hostname, attempt, error, until, count) VALUES
	 (11, 'a', '2026-03-01T12:00:00.000000Z', '` + t0 + `', NULL,
	  'in_progress', 42, 7, 'host', 1, NULL, NULL, NULL),
	 (12, 'a', '2026-03-01T11:00:00.000000Z', '` + t0 + `', '` + t1 + `',
	  'done', 41, 6, 'host', 1, NULL, NULL, NULL),
	 (13, 'a', '2026-03-01T10:00:00.000000Z', '` + t0 + `', '` + t1 + `',
	  'failed', 41, 6, 'host', 1, 'no space', NULL, NULL),
	 (14, 'b', '2026-03-01T12:00:00.000000Z', '` + t0 + `', '` + t1 + `',
	  'abandoned', 41, 6, 'host', 1, NULL, NULL, NULL),
	 (15, 'b', '2026-03-01T09:00:00.000000Z', NULL, NULL,
	  'skipped', 41, 6, 'host', 0, 'missed', '2026-03-01T11:00:00.000000Z', 3)`,
}

// columnsOfVersion1 reads what it has written.
var columnsOfVersion1 = []string{
	`SELECT id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
		ttl_ms, renew_deadline_ms, heartbeat_ms FROM scheduler_lock`,
	`SELECT term, token, pid, hostname, acquired_at, ended_at, end_reason, next_term, ttl_ms
		FROM scheduler_terms ORDER BY term`,
	`SELECT job, spec, cursor_at, updated_at FROM scheduler_jobs ORDER BY job`,
	`SELECT id, job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt,
		error, until, count FROM scheduler_runs ORDER BY id`,
}

// lines are the rows of queries, one as a text each.
func lines(t *testing.T, db *sql.DB, queries ...string) (all []string) {
	t.Helper()
	for _, query := range queries {
		rows, err := db.QueryContext(t.Context(), query)
		require.NoError(t, err, query)
		columns, err := rows.Columns()
		require.NoError(t, err)
		for rows.Next() {
			values, dest := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				dest[i] = &values[i]
			}
			require.NoError(t, rows.Scan(dest...))
			for i, v := range values {
				if text, ok := v.([]byte); ok { // a driver's text
					values[i] = string(text)
				}
			}
			all = append(all, fmt.Sprint(values...))
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
	}
	return all
}

// assertUpgradeKeeps upgrades a database of version 1 that has rows, and lets code
// of version 1 go on with it.
func assertUpgradeKeeps(t *testing.T, db *sql.DB, dialect migrations.Dialect) {
	t.Helper()
	write := func() {
		t.Helper()
		for _, query := range dataOfVersion1 {
			if dialect == migrations.MySQL { // has times of another form
				query = strings.NewReplacer("Z'", "'", "T1", " 1", "T0", " 0").Replace(query)
			}
			exec1(t, db, query)
		}
	}
	write()
	before := lines(t, db, columnsOfVersion1...)
	require.Len(t, before, 10)
	require.NoError(t, migrations.Up(t.Context(), db, dialect))
	assert.Equal(t, before, lines(t, db, columnsOfVersion1...))
	for _, query := range []string{
		`SELECT count(*) FROM scheduler_runs
		 WHERE retry_at IS NULL AND requested_by IS NULL AND request_reason IS NULL`,
		`SELECT 3 + count(*) FROM scheduler_jobs
		 WHERE last_done_at IS NULL AND last_failed_at IS NULL AND last_error IS NULL
		 AND done_count + failed_count + failure_streak + done_us + longest_us = 0`,
	} {
		assert.Equal(t, []string{"5"}, lines(t, db, query), query)
	}

	for _, query := range columnsOfVersion1 {
		_, table, _ := strings.Cut(query, "FROM ")
		table, _, _ = strings.Cut(table, " ")
		exec1(t, db, `DELETE FROM `+table)
	}
	write()
	assert.Equal(t, before, lines(t, db, columnsOfVersion1...), "what code of version 1 writes now")
}

// assertGoesOn lets the leader of the upgraded database go on with this code: its
// heartbeat counts, its ledger is read, and its release is followed by a higher term.
func assertGoesOn(t *testing.T, open func(context.Context) (driver.Store, error)) {
	t.Helper()
	ctx := t.Context()
	store, err := open(ctx)
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.(io.Closer).Close()) }()
	seen, err := store.Look(ctx)
	require.NoError(t, err)
	require.NotNil(t, seen.Row)
	require.EqualValues(t, 42, seen.Row.Term)
	runs, err := store.(ledger.Store).Runs(ctx, "", 9)
	require.NoError(t, err)
	require.Len(t, runs, 5)
	ref := driver.Ref{Owner: seen.Row.Owner, Token: seen.Row.Token, Term: seen.Row.Term}
	renewed, err := store.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
	require.Equal(t, driver.StateLeading, renewed.State)
	deleted, err := store.Release(ctx, ref, driver.EndReleased)
	require.NoError(t, err)
	require.True(t, deleted)
	lock, err := schedlock.New(store, schedlock.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	lease, err := lock.Wait(ctx)
	require.NoError(t, err)
	require.Greater(t, lease.Term(), int64(42))
	require.NoError(t, lease.Release(ctx))
}

// Of each earlier version: an app may skip releases.
func TestAnUpgradeKeepsWhatAnEarlierVersionHasWritten(t *testing.T) {
	for _, from := range earlier() {
		t.Run(fmt.Sprint(from), func(t *testing.T) {
			if from > 1 {
				missing.Long(t, "tries each version")
			}
			path := atVersion(t, from)
			db := open(t, ours(path))
			assertUpgradeKeeps(t, db, migrations.SQLite)
			assertSchema(t, db)
			require.NoError(t, db.Close())
			assertGoesOn(t, sqlite.Opener("file:"+path))
		})
	}
}
