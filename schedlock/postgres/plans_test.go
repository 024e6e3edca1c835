package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

// A ledger of some months: nothing may read all of it.
const (
	sqlManyJobs = `
INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
SELECT 'job ' || n, 's', $1::timestamptz, $1 FROM generate_series(1, 10) AS n`

	sqlManyRuns = `
INSERT INTO scheduler_runs
    (job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt)
SELECT 'job ' || CASE WHEN n % 3 = 0 THEN n / 3 % 10 + 1 ELSE 1 END,
    $1::timestamptz - n * interval '1 minute', $1, $1, 'done', 1, 1, 'host', 1
FROM generate_series(1, 10000) AS n`
)

func TestNothingReadsTheWholeLedger(t *testing.T) {
	missing.Costly(t, "fills tables")
	t.Parallel()
	url := migrated(t)
	writer := session(t, url)
	exec(t, writer, sqlManyJobs, tick)
	exec(t, writer, sqlManyRuns, tick)
	exec(t, writer,
		`UPDATE scheduler_runs SET status = 'in_progress', finished_at = NULL WHERE id % 2000 = 1`)
	exec(t, writer,
		`UPDATE scheduler_runs SET status = 'failed', retry_at = started_at WHERE id % 2000 = 2`)
	exec(t, writer, `ANALYZE`)
	ref := acquire(t, open(t, url), time.Minute)
	conn := session(t, url)
	// A session's last statistics are flushed at its end.
	const sqlOthers = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND backend_type = 'client backend' AND pid <> pg_backend_pid()`
	alone := func() {
		eventually(t, "the end of the sessions", func() bool {
			return value[int](t, conn, sqlOthers) == 1
		}) // that of the lock
	}
	require.NoError(t, writer.Close(ctx))
	alone()
	var (
		owed    []ledger.Run
		run     ledger.Run
		request ledger.Request
	)
	for _, step := range []struct {
		name string
		do   func(s *postgres.Store) error
	}{
		{"Abandon", func(s *postgres.Store) error {
			runs, err := s.Abandon(ctx, ref, func(ledger.Run) time.Time { return tick })
			require.Len(t, runs, 5)
			return err
		}},
		{"Retries", func(s *postgres.Store) (err error) {
			owed, err = s.Retries(ctx)
			require.Len(t, owed, 10)
			return err
		}},
		{"Retry", func(s *postgres.Store) (err error) {
			run, _, err = s.Retry(ctx, ref, owed[0])
			return err
		}},
		{"Finish", func(s *postgres.Store) error {
			written, err := s.Finish(ctx, run, ledger.End{Status: ledger.Done})
			require.True(t, written)
			return err
		}},
		{"GiveUp", func(s *postgres.Store) error {
			changed, err := s.GiveUp(ctx, ref, owed[1])
			require.True(t, changed)
			return err
		}},
		{"Decide", func(s *postgres.Store) error {
			next := tick.Add(time.Hour)
			_, started, err := s.Decide(ctx, ref, ledger.Decision{Job: "job 1",
				Spec: "s", From: tick, To: next, Start: next,
				Skipped: []ledger.Skip{{First: tick.Add(time.Minute),
					Last: tick.Add(59 * time.Minute), Count: 59, Reason: ledger.Missed}}})
			require.True(t, started)
			return err
		}},
		{"Trigger", func(s *postgres.Store) (err error) {
			request, err = s.Trigger(ctx, ledger.Action{Job: "job 1", By: "me"})
			return err
		}},
		{"Inbox", func(s *postgres.Store) error { _, err := s.Pending(ctx); return err }},
		{"Answer", func(s *postgres.Store) error {
			_, started, err := s.Answer(ctx, ref, request, "")
			require.True(t, started)
			return err
		}},
		{"Run", func(s *postgres.Store) error {
			_, found, err := s.Run(ctx, "job 1", request.At)
			require.True(t, found)
			return err
		}},
		{"Runs", func(s *postgres.Store) error { _, err := s.Runs(ctx, "", 50); return err }},
		{"Runs of a job", func(s *postgres.Store) error {
			_, err := s.Runs(ctx, "job 2", 50)
			return err
		}},
		{"Prune", func(s *postgres.Store) error {
			deleted, err := s.Prune(ctx, "job 1", 1000, 5000)
			require.EqualValues(t, 5000, deleted)
			return err
		}},
	} {
		const sqlScans = `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'scheduler_runs'`
		before := value[int](t, conn, sqlScans)
		s, err := postgres.Open(ctx, url, silent)
		require.NoError(t, err)
		require.NoError(t, step.do(s), step.name)
		require.NoError(t, s.Close())
		alone()
		require.Equal(t, before, value[int](t, conn, sqlScans), "%s reads the whole table",
			step.name)
	}
}

// By its own estimates the server would plan the start of a run anew each time.
func TestTheServerPlansTheStartOfARunOnce(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(migrated(t))
	require.NoError(t, err)
	var last *pgx.Conn
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		last = conn
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	defer pool.Close()
	store, err := postgres.Use(pool, silent).Open(ctx)
	require.NoError(t, err)
	defer store.Close()
	ref := acquire(t, store, time.Minute)
	for i := range 10 {
		at := tick.Add(time.Duration(i) * time.Minute)
		d := ledger.Decision{Job: "j", Spec: "s", From: at.Add(-time.Minute), To: at, Start: at}
		if i == 0 {
			d.From = time.Time{}
		}
		_, started, err := store.Decide(ctx, ref, d)
		require.NoError(t, err)
		require.True(t, started)
	}
	require.Zero(t, value[int](t, last, `SELECT sum(custom_plans) FROM pg_prepared_statements`))
	require.EqualValues(t, 10, value[int](t, last,
		`SELECT sum(generic_plans) FROM pg_prepared_statements WHERE statement ~ 'skipped'`))
}

// Not in parallel: a session that is being opened, to any database, keeps dead rows.
func TestTheEndsOfRunsAreHotUpdatesOfTheirJobs(t *testing.T) {
	url := migrated(t)
	store, conn := open(t, url), session(t, url)
	ref := acquire(t, store, time.Minute)
	for i := range 50 {
		next := tick.Add(time.Duration(i) * time.Minute)
		d := ledger.Decision{Job: "j", Spec: "s", From: next.Add(-time.Minute), To: next,
			Start: next}
		if i == 0 {
			d.From = time.Time{}
		}
		run, started, err := store.Decide(ctx, ref, d)
		require.NoError(t, err)
		require.True(t, started)
		_, err = store.Finish(ctx, run,
			ledger.End{Status: []ledger.Status{ledger.Done, ledger.Failed}[i%2], Error: "why"})
		require.NoError(t, err)
	}
	require.NoError(t, store.Close())
	hot(t, conn, "scheduler_jobs", 99)
}
