package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

const sqlJobs = `
SELECT job, spec, cursor_at FROM scheduler_jobs ORDER BY job`

// Jobs implements ledger.Store.
func (s *Store) Jobs(ctx context.Context) ([]ledger.Job, error) {
	rows, err := s.pool.Query(ctx, sqlJobs)
	if err != nil {
		return nil, s.explain(err)
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.Job, error) {
		var (
			j      ledger.Job
			cursor pgtype.Timestamptz
		)
		err := row.Scan(&j.Name, &j.Spec, &cursor)
		j.Cursor = stamp(cursor)
		return j, err
	})
	return jobs, s.explain(err)
}

// A decision is one statement: the lock row guards it, the cursor moves by
// compare and swap, and what it passes is written, or nothing is.
const (
	sqlGuard = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
), held AS MATERIALIZED (
    SELECT s.now FROM settings s CROSS JOIN scheduler_lock l
    WHERE l.id = 1 AND l.token = $1::text AND l.term = $2::bigint
    FOR KEY SHARE OF l
), `

	sqlNewJob = `
moved AS (
    INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
    SELECT $3::text, $4::text, $5::timestamptz, h.now FROM held h WHERE $6::timestamptz IS NULL
    ON CONFLICT (job) DO NOTHING
    RETURNING updated_at AS now
), `

	sqlMoveCursor = `
moved AS (
    UPDATE scheduler_jobs j SET spec = $4::text, cursor_at = $5::timestamptz, updated_at = h.now
    FROM held h
    WHERE j.job = $3::text AND j.cursor_at = $6::timestamptz AND j.cursor_at <= $5
    RETURNING h.now
), `

	sqlPassed = `
skipped AS (
    INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error, until, count)
    SELECT $3, k.first, 'skipped', $2, $7::bigint, $8::text, 0, k.reason,
           CASE WHEN k.count > 1 THEN k.last END, CASE WHEN k.count > 1 THEN k.count END
    FROM moved CROSS JOIN unnest($10::timestamptz[], $11::timestamptz[], $12::bigint[], $13::text[]) AS k (first, last, count, reason)
    ON CONFLICT (job, scheduled_at) DO NOTHING
), started AS (
    INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
    SELECT $3, $9::timestamptz, m.now, 'in_progress', $2, $7, $8, 1
    FROM moved m WHERE $9 IS NOT NULL
    ON CONFLICT (job, scheduled_at) DO NOTHING
    RETURNING id, started_at
)
SELECT EXISTS (SELECT FROM held), EXISTS (SELECT FROM moved), (SELECT id FROM started), (SELECT started_at FROM started)`
)

// Decide implements ledger.Store.
func (s *Store) Decide(ctx context.Context, ref schedlock.Ref, d ledger.Decision) (run ledger.Run, started bool, err error) {
	query := sqlGuard + sqlMoveCursor + sqlPassed
	if d.From.IsZero() {
		query = sqlGuard + sqlNewJob + sqlPassed
	}
	n := len(d.Skipped)
	first, last, count, reason := make([]time.Time, n), make([]time.Time, n), make([]int64, n), make([]string, n)
	for i, k := range d.Skipped {
		first[i], last[i], count[i], reason[i] = k.First, k.Last, k.Count, text(k.Reason)
	}
	var (
		held, moved bool
		id          pgtype.Int8
		startedAt   pgtype.Timestamptz
	)
	err = s.pool.QueryRow(ctx, query, ref.Token.String(), ref.Term, d.Job, d.Spec, d.To, optional(d.From),
		int64(ref.PID), text(ref.Hostname), optional(d.Start), first, last, count, reason).Scan(&held, &moved, &id, &startedAt)
	switch {
	case err != nil:
		return run, false, s.explain(err)
	case !held:
		return run, false, errNotOurs
	case !moved:
		return run, false, schedlock.ErrMoved
	case d.Start.IsZero():
		return run, false, nil
	}
	return ledger.Run{ID: id.Int64, Job: d.Job, ScheduledAt: d.Start, StartedAt: stamp(startedAt), Status: ledger.InProgress,
		Term: ref.Term, PID: ref.PID, Hostname: ref.Hostname, Attempt: 1}, id.Valid, nil
}

// optional is NULL for the zero time.
func optional(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }

const sqlFinish = `
UPDATE scheduler_runs SET status = $1::text, finished_at = clock_timestamp(), error = nullif($2::text, '')
WHERE id = $3::bigint AND term = $4::bigint AND attempt = $5::integer AND status = 'in_progress'`

// Finish implements ledger.Store.
func (s *Store) Finish(ctx context.Context, run ledger.Run, status ledger.Status, errText string) (written bool, err error) {
	tag, err := s.pool.Exec(ctx, sqlFinish, string(status), text(errText), run.ID, run.Term, int32(run.Attempt))
	return err == nil && tag.RowsAffected() > 0, s.explain(err)
}

const sqlAbandon = `
UPDATE scheduler_runs SET status = 'abandoned', finished_at = clock_timestamp()
WHERE status = 'in_progress' AND term <> $1::bigint
RETURNING ` + runColumns

// Abandon implements ledger.Store.
func (s *Store) Abandon(ctx context.Context, ref schedlock.Ref) (runs []ledger.Run, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := s.Fence(ctx, tx, ref); err != nil {
			return err
		}
		runs, err = collectRuns(tx.Query(ctx, sqlAbandon, ref.Term))
		return err
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return runs, nil
}

const (
	runColumns = `id, job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt, error, until, count`

	sqlRuns = `
SELECT ` + runColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT $1::bigint`

	sqlRunsOfJob = `
SELECT ` + runColumns + ` FROM scheduler_runs WHERE job = $2::text
ORDER BY scheduled_at DESC LIMIT $1::bigint`
)

// Runs implements ledger.Store.
func (s *Store) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	query, args := sqlRuns, []any{int64(max(limit, 0))}
	if job != "" {
		query, args = sqlRunsOfJob, append(args, job)
	}
	runs, err := collectRuns(s.pool.Query(ctx, query, args...))
	return runs, s.explain(err)
}

func collectRuns(rows pgx.Rows, err error) ([]ledger.Run, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.Run, error) {
		var (
			r                                   ledger.Run
			scheduled, started, finished, until pgtype.Timestamptz
			status                              string
			errText                             pgtype.Text
			count                               pgtype.Int8
		)
		err := row.Scan(&r.ID, &r.Job, &scheduled, &started, &finished, &status, &r.Term, &r.PID, &r.Hostname, &r.Attempt, &errText, &until, &count)
		r.ScheduledAt, r.StartedAt, r.FinishedAt, r.Until = stamp(scheduled), stamp(started), stamp(finished), stamp(until)
		r.Status, r.Error, r.Count = ledger.Status(status), errText.String, count.Int64
		return r, err
	})
}
