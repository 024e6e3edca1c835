package postgres

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// sqlOwed finds the row of a run that is owed the attempt after $4.
const sqlOwed = `r.id = $3::bigint AND r.attempt = $4::integer
    AND r.status IN ('failed', 'abandoned') AND r.retry_at IS NOT NULL`

// sqlRetry keeps what the row says of the attempt before: kept sees it as it was when the
// statement began, and no other statement changes a row that is owed an attempt, but to end that.
// An attempt that is kept already was set back by hand. The error in the row of an abandoned one is
// that of an attempt before. 100 is ledger.KeepAttempts.
const sqlRetry = sqlGuard + `
paused AS MATERIALIZED (
    SELECT ` + columns.PauseColumns + `
    FROM held CROSS JOIN scheduler_runs r
    JOIN scheduler_pauses p ON p.job IN ('', r.job)
    WHERE p.resumed_at IS NULL AND ` + sqlOwed + `
    FOR KEY SHARE OF p
), started AS (
    UPDATE scheduler_runs r
    SET status = 'in_progress', started_at = h.now, finished_at = NULL,
        retry_at = NULL, attempt = r.attempt + 1,
        term = $2, pid = $5::bigint, hostname = $6::text
    FROM held h
    WHERE ` + sqlOwed + ` AND NOT EXISTS (SELECT FROM paused)
    RETURNING ` + columns.RunColumns + `
), kept AS (
    INSERT INTO scheduler_attempts (run_id, attempt, started_at, finished_at, status, term, pid,
                                    hostname, error)
    SELECT r.id, r.attempt, r.started_at, r.finished_at, r.status, r.term, r.pid, r.hostname,
           CASE r.status WHEN 'failed' THEN r.error END
    FROM started s JOIN scheduler_runs r ON r.id = s.id
    ON CONFLICT (run_id, attempt) DO NOTHING
), trimmed AS (
    DELETE FROM scheduler_attempts a USING started s
    WHERE a.run_id = s.id AND a.attempt < s.attempt - 100
)
SELECT ` + sqlStarted

// Retry implements ledger.Store.
func (s *Store) Retry(ctx context.Context, ref driver.Ref,
	run ledger.Run) (next ledger.Run, started bool, err error) {
	next, err = s.start(ctx, sqlRetry, []any{ref.Token.String(), ref.Term, run.ID,
		int32(run.Attempt), int64(ref.PID), text(ref.Hostname)})
	return next, next.ID != 0, err
}

const sqlAttempts = `
SELECT ` + columns.AttemptColumns + ` FROM scheduler_attempts WHERE run_id = $1::bigint
ORDER BY attempt DESC`

// Attempts implements ledger.Store.
func (s *Store) Attempts(ctx context.Context, runID int64) ([]ledger.Attempt, error) {
	var a columns.Attempt
	return all(ctx, s.pool, a.Dest(), a.Value, sqlAttempts, runID)
}

const sqlGiveUp = sqlGuard + `
changed AS (
    UPDATE scheduler_runs r SET retry_at = NULL FROM held WHERE ` + sqlOwed + `
    RETURNING r.id
)
SELECT EXISTS (SELECT FROM held), EXISTS (SELECT FROM changed)`

// GiveUp implements ledger.Store.
func (s *Store) GiveUp(ctx context.Context, ref driver.Ref,
	run ledger.Run) (changed bool, err error) {
	var held bool
	err = s.runs.QueryRow(ctx, sqlGiveUp, ref.Token.String(), ref.Term, run.ID,
		int32(run.Attempt)).Scan(&held, &changed)
	if err == nil && !held {
		err = errNotOurs
	}
	return changed, s.explain(err)
}

// sqlFinish locks the row of the run before that of its job, as sqlAbandon
// does, so that the two never wait for each other.
const sqlFinish = `
WITH ended AS (
    UPDATE scheduler_runs
    SET status = $1::text, finished_at = clock_timestamp(), error = nullif($2::text, ''),
        retry_at = CASE $1 WHEN 'failed' THEN $3::timestamptz END
    WHERE id = $4::bigint AND term = $5::bigint AND attempt = $6::integer AND status = 'in_progress'
    RETURNING job, finished_at
), done AS (
    UPDATE scheduler_jobs j
    SET done_count = j.done_count + 1, failure_streak = 0,
        last_done_at = e.finished_at, updated_at = e.finished_at,
        done_us = j.done_us + $7::bigint, longest_us = greatest(j.longest_us, $7)
    FROM ended e WHERE j.job = e.job AND $1 = 'done'
), failed AS (
    UPDATE scheduler_jobs j
    SET failed_count = j.failed_count + 1, failure_streak = j.failure_streak + 1,
        last_failed_at = e.finished_at, updated_at = e.finished_at,
        last_error = left(nullif($2, ''), 1000)
    FROM ended e WHERE j.job = e.job AND $1 <> 'done'
)
SELECT EXISTS (SELECT FROM ended)`

// Finish implements ledger.Store. Where the database, or its client, has another encoding than
// UTF8, an error may have letters that it lacks: without them the run ends all the same.
func (s *Store) Finish(ctx context.Context, run ledger.Run,
	end ledger.End) (written bool, err error) {
	finish := func(why string) error {
		return s.runs.QueryRow(ctx, sqlFinish, s.mode(), string(end.Status), why,
			optional(end.RetryAt), run.ID, run.Term, int32(run.Attempt),
			max(end.Took, 0).Microseconds()).Scan(&written)
	}
	why := ledger.Cut(text(ledger.Cut(end.Error)))
	err = finish(why)
	if c := code(err); c == codeNotInEncoding || c == codeUntranslatable {
		err = finish(strings.Map(func(r rune) rune {
			if r >= utf8.RuneSelf {
				return '?'
			}
			return r
		}, why))
	}
	return written, s.explain(err)
}

const (
	// sqlNothingLeft is the common case, in one round trip. What the leaders before have started
	// was committed before their row went, as sqlGuard held on to it.
	sqlNothingLeft = `
SELECT EXISTS (SELECT FROM scheduler_lock l
               WHERE l.id = 1 AND l.token = $1::text AND l.term = $2::bigint)
       AND NOT EXISTS (SELECT FROM scheduler_runs
                       WHERE status = 'in_progress' AND term <> $2)`

	// It holds on to the lock row, as sqlGuard does, so it must not wait for long. Its array has
	// a NULL for each run that is not tried again.
	sqlAbandonSettings = `
SELECT clock_timestamp(), set_config('lock_timeout', '1s', true),
       set_config('array_nulls', 'on', true), ` + sqlDurable

	sqlLeft = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE status = 'in_progress' AND term <> $1::bigint
ORDER BY id FOR NO KEY UPDATE`

	sqlAbandon = `
WITH ended AS (
    UPDATE scheduler_runs r
    SET status = 'abandoned', finished_at = $1::timestamptz, retry_at = k.retry_at
    FROM unnest($2::bigint[], $3::timestamptz[]) AS k (id, retry_at)
    WHERE r.id = k.id
    RETURNING r.job
)
UPDATE scheduler_jobs j
SET failed_count = j.failed_count + e.count, failure_streak = j.failure_streak + e.count,
    last_failed_at = $1, updated_at = $1, last_error = NULL
FROM (SELECT job, count(*) FROM ended GROUP BY job) AS e
WHERE j.job = e.job`
)

// Abandon implements ledger.Store. It counts a failure without a text: the
// error in the row, if there is one, is that of the attempt before.
func (s *Store) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) (runs []ledger.Run, err error) {
	var nothing bool
	err = s.runs.QueryRow(ctx, sqlNothingLeft, s.mode(), ref.Token.String(),
		ref.Term).Scan(&nothing)
	if err != nil {
		return nil, s.explain(err)
	}
	if nothing {
		return []ledger.Run{}, nil
	}
	err = s.runs.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var now time.Time
		if err := tx.QueryRow(ctx, sqlAbandonSettings).Scan(&now, nil, nil, nil); err != nil {
			return err
		}
		if err := s.Fence(ctx, tx, ref); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sqlLeft, ref.Term)
		if err != nil {
			return err
		}
		var r columns.Run
		runs = []ledger.Run{}
		if _, err = pgx.ForEachRow(rows, r.Dest(), func() error {
			runs = append(runs, r.Value())
			return nil
		}); err != nil || len(runs) == 0 {
			return err
		}
		ids, due := make([]int64, len(runs)), make([]pgtype.Timestamptz, len(runs))
		for i := range runs {
			r := &runs[i]
			r.Status, r.FinishedAt = ledger.Abandoned, now.UTC()
			if retryAt != nil {
				r.RetryAt = columns.Kept(retryAt(*r))
			}
			ids[i], due[i] = r.ID, optional(r.RetryAt)
		}
		_, err = tx.Exec(ctx, sqlAbandon, now, ids, due)
		return err
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return runs, nil
}

const sqlRetries = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE retry_at IS NOT NULL AND status IN ('failed', 'abandoned')
ORDER BY retry_at, id`

// Retries implements ledger.Store.
func (s *Store) Retries(ctx context.Context) ([]ledger.Run, error) {
	var r columns.Run
	return all(ctx, s.runs, r.Dest(), r.Value, sqlRetries, s.mode())
}
