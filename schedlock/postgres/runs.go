package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// sqlOddCursor is a cursor that only a hand can have written: an infinite one,
// or one of a year that text has no four digits for. It is told apart by its
// seconds since 1970, because they do not depend on a session's settings.
const (
	sqlOddCursor = `j.cursor_at <= '0001-01-01T00:00:00Z' OR j.cursor_at >= '10000-01-01T00:00:00Z'`
	sqlRawCursor = `extract(epoch FROM j.cursor_at)::text`
)

const sqlJobs = `
SELECT ` + columns.JobColumns + `,
       CASE WHEN ` + sqlOddCursor + ` THEN NULL ELSE j.cursor_at END,
       CASE WHEN ` + sqlOddCursor + ` THEN ` + sqlRawCursor + ` END
FROM scheduler_jobs j ORDER BY j.job`

// Jobs implements ledger.Store.
func (s *Store) Jobs(ctx context.Context) ([]ledger.Job, error) {
	var (
		j      columns.Job
		cursor columns.Time
		raw    pgtype.Text
	)
	return all(ctx, s.runs, append(j.Dest(), &cursor, &raw), func() ledger.Job {
		job := j.Value()
		job.Cursor, job.RawCursor = cursor.Time, raw.String
		return job
	}, sqlJobs, s.mode())
}

// A write that needs the lock is one statement, and the lock row guards it: it
// holds on to the row until it has committed, or does nothing. It waits for
// others a second at most: a take-over would have to wait for it.
const sqlGuard = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('lock_timeout', '1s', true), ` + sqlDurable + `
), held AS MATERIALIZED (
    SELECT s.now FROM settings s CROSS JOIN scheduler_lock l
    WHERE l.id = 1 AND l.token = $1::text AND l.term = $2::bigint
    FOR KEY SHARE OF l
), `

// In a decision the cursor moves by compare and swap, and what it passes is
// written, or nothing is.
const (
	sqlPausedTick = `
paused AS MATERIALIZED (
    SELECT ` + columns.PauseColumns + ` FROM held CROSS JOIN scheduler_pauses p
    WHERE p.resumed_at IS NULL AND p.job IN ('', $3::text) AND $9::timestamptz IS NOT NULL
    FOR KEY SHARE OF p
), `

	sqlNewJob = `
moved AS (
    INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
    SELECT $3, $4::text, $5::timestamptz, h.now FROM held h
    WHERE $6::timestamptz IS NULL AND $14::text = '' AND $15::boolean IS NOT NULL
      AND NOT EXISTS (SELECT FROM paused)
    ON CONFLICT (job) DO NOTHING
    RETURNING updated_at AS now
), `

	sqlMoveCursor = `
moved AS (
    UPDATE scheduler_jobs j SET spec = $4::text, cursor_at = $5::timestamptz, updated_at = h.now
    FROM held h
    WHERE j.job = $3 AND ($15::boolean OR $6::timestamptz IS NULL OR $6 <= $5)
      AND NOT EXISTS (SELECT FROM paused)
      AND CASE $14::text WHEN '' THEN j.cursor_at = $6 ELSE ` + sqlRawCursor + ` = $14 END
    RETURNING h.now
), `

	// The lateral part is the first of Skip.Places that is free.
	sqlPassed = `
skipped AS (
    INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error,
                                until, count)
    SELECT $3, p.at, 'skipped', $2, $7::bigint, $8::text, 0, k.reason,
           CASE WHEN p.count > 1 THEN k.last END, CASE WHEN p.count > 1 THEN p.count END
    FROM moved
    CROSS JOIN unnest($10::timestamptz[], $11::timestamptz[], $12::bigint[], $13::text[])
        AS k (first, last, count, reason)
    CROSS JOIN LATERAL (
        SELECT (SELECT true FROM scheduler_runs x
                WHERE x.job = $3 AND x.scheduled_at = k.first) AS first
    ) AS taken
    CROSS JOIN LATERAL (
        SELECT a.at, a.count
        FROM generate_series(coalesce(taken.first, false)::int,
                             CASE WHEN taken.first IS NULL OR k.count = 1 THEN 0
                                  WHEN k.count = 2 THEN 1 ELSE 99 END) AS n
        CROSS JOIN LATERAL (
            SELECT CASE WHEN n = 1 AND k.count = 2 THEN k.last
                        ELSE k.first + n * interval '1 microsecond' END AS at,
                   k.count - least(n, 1) AS count
        ) AS a
        WHERE n = 0 OR (SELECT true FROM scheduler_runs x
                        WHERE x.job = $3 AND x.scheduled_at = a.at) IS NULL
        ORDER BY n LIMIT 1
    ) AS p
    ON CONFLICT (job, scheduled_at) DO NOTHING
), started AS (
    INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
    SELECT $3, $9, m.now, 'in_progress', $2, $7, $8, 1
    FROM moved m WHERE $9 IS NOT NULL
    ON CONFLICT (job, scheduled_at) DO NOTHING
    RETURNING ` + columns.RunColumns + `
)
SELECT EXISTS (SELECT FROM moved), ` + sqlStarted
)

const sqlDecide = sqlGuard + sqlPausedTick + sqlMoveCursor + sqlPassed

// Decide implements ledger.Store.
func (s *Store) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (run ledger.Run, started bool, err error) {
	query := sqlDecide
	if d.From.IsZero() && d.RawFrom == "" {
		query = sqlGuard + sqlPausedTick + sqlNewJob + sqlPassed
	}
	n := len(d.Skipped)
	first, last, count, reason := make([]time.Time, n), make([]time.Time, n), make([]int64,
		n), make([]string, n)
	for i, k := range d.Skipped {
		first[i], last[i], count[i], reason[i] = k.First, k.Last, k.Count, text(k.Reason)
	}
	var moved bool
	run, err = s.start(ctx, query, []any{ref.Token.String(),
		ref.Term, d.Job, d.Spec, d.To, optional(d.From),
		int64(ref.PID), text(ref.Hostname), optional(d.Start), first, last, count, reason,
		d.RawFrom, d.Back}, &moved)
	if err == nil && !moved {
		err = driver.ErrConflict
	}
	return run, run.ID != 0, err
}

// sqlStarted ends each statement that starts an attempt.
const sqlStarted = `
       EXISTS (SELECT FROM held), p.*, s.*
FROM (SELECT) AS one
LEFT JOIN (SELECT * FROM paused ORDER BY job DESC LIMIT 1) AS p ON true
LEFT JOIN started s ON true`

// start returns the run that a statement has written, if any. The statement's
// first columns are for more.
func (s *Store) start(ctx context.Context, query string, args []any,
	more ...any) (ledger.Run, error) {
	var (
		held bool
		p    columns.Pause
		r    columns.Run
	)
	err := s.runs.QueryRow(ctx, query, append([]any{s.mode()},
		args...)...).Scan(native(slices.Concat(more, []any{&held}, p.Dest(), r.Dest()))...)
	switch {
	case err != nil:
		return ledger.Run{}, s.explain(err)
	case !held:
		return ledger.Run{}, errNotOurs
	case p.Since.Valid:
		return ledger.Run{}, &ledger.PausedError{Pause: p.Value()}
	}
	return r.Value(), nil
}

// optional is NULL for the zero time.
func optional(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

const (
	sqlRuns = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT $1::bigint`

	sqlRunsOfJob = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE job = $2::text
ORDER BY scheduled_at DESC LIMIT $1::bigint`
)

// Runs implements ledger.Store.
func (s *Store) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	query, args := sqlRuns, []any{int64(max(limit, 0))}
	if job != "" {
		query, args = sqlRunsOfJob, append(args, text(job))
	}
	var r columns.Run
	return all(ctx, s.pool, r.Dest(), r.Value, query, args...)
}

const sqlRun = `
SELECT ` + columns.RunColumns + `
FROM scheduler_runs WHERE job = $1::text AND scheduled_at = $2::timestamptz`

// Run implements ledger.Store.
func (s *Store) Run(ctx context.Context, job string,
	tick time.Time) (run ledger.Run, found bool, err error) {
	var r columns.Run
	err = s.pool.QueryRow(ctx, sqlRun, text(job), tick).Scan(r.Dest()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return run, false, nil
	}
	return r.Value(), err == nil, s.explain(err)
}

const sqlResetCursor = `
WITH ` + sqlNow + `, reset AS (
    UPDATE scheduler_jobs j SET cursor_at = s.now, updated_at = s.now
    FROM settings s WHERE j.job = $1::text
    RETURNING j.job, j.spec, j.cursor_at
), given AS (
    SELECT r.cursor_at AS at, 'reset-cursor' AS what, r.job, $2::text AS by, $3::text AS reason
    FROM reset r
)` + sqlNote + `
SELECT * FROM reset`

// ResetCursor implements ledger.Store.
func (s *Store) ResetCursor(ctx context.Context, o ledger.Action) (j ledger.Job, err error) {
	if err := o.Validate(); err != nil {
		return j, err
	}
	var at columns.Time
	err = s.pool.QueryRow(ctx, sqlResetCursor, s.mode(), o.Job, o.By, o.Reason).Scan(&j.Name,
		&j.Spec, &at)
	if errors.Is(err, pgx.ErrNoRows) {
		return ledger.Job{}, ledger.NoJob(o.Job)
	}
	if err != nil {
		return ledger.Job{}, s.explain(err)
	}
	j.Cursor = at.Time
	return j, nil
}

// sqlPrune reads the index from the newest tick to the first that may go, and
// then from the oldest on. What it deletes cannot start again: it is final.
const sqlPrune = `
DELETE FROM scheduler_runs WHERE id = ANY (ARRAY(
    SELECT r.id FROM scheduler_runs r
    WHERE r.job = $1::text AND r.status <> 'in_progress' AND r.retry_at IS NULL
      AND r.scheduled_at <= (SELECT k.scheduled_at FROM scheduler_runs k WHERE k.job = $1
                             ORDER BY k.scheduled_at DESC OFFSET $2::bigint LIMIT 1)
    ORDER BY r.scheduled_at LIMIT $3::bigint))`

// Prune implements ledger.Store.
func (s *Store) Prune(ctx context.Context, job string, keep, limit int) (deleted int64, err error) {
	tag, err := s.runs.Exec(ctx, sqlPrune, text(job), int64(max(keep, 0)), int64(max(limit, 0)))
	return tag.RowsAffected(), s.explain(err)
}
