package mysql

import (
	"context"
	"database/sql"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// sqlOwed finds the row of a run that is owed the attempt after the one given.
const sqlOwed = `
WHERE id = ? AND attempt = ? AND status IN ('failed', 'abandoned') AND retry_at IS NOT NULL`

const (
	// The error in the row of an abandoned attempt is that of an attempt before.
	sqlKeepAttempt = `
INSERT INTO scheduler_attempts (run_id, attempt, started_at, finished_at, status, term, pid,
                                hostname, error)
SELECT id, attempt, started_at, finished_at, status, term, pid, hostname,
       CASE status WHEN 'failed' THEN error END
FROM scheduler_runs` + sqlOwed + `
FOR UPDATE`

	sqlRetry = `
UPDATE scheduler_runs
SET status = 'in_progress', started_at = UTC_TIMESTAMP(6), finished_at = NULL, retry_at = NULL,
    attempt = attempt + 1, term = ?, pid = ?, hostname = ?` + sqlOwed

	sqlRunByID = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE id = ?`

	sqlTrimAttempts = `
DELETE FROM scheduler_attempts WHERE run_id = ? AND attempt < ?`
)

// Retry implements ledger.Store.
func (s *Store) Retry(ctx context.Context, ref driver.Ref,
	run ledger.Run) (next ledger.Run, started bool, err error) {
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		next, started = ledger.Run{}, false
		if err := s.guard(ctx, tx, ref); err != nil {
			return err
		}
		// One that is kept already was set back by hand.
		if _, _, err := tx.insert(ctx, sqlKeepAttempt, run.ID, run.Attempt); err != nil {
			return err
		}
		n, err := tx.exec(ctx, sqlRetry, ref.Term, ref.PID, text(ref.Hostname), run.ID, run.Attempt)
		if err != nil || n == 0 {
			return err
		}
		var r columns.Run
		if err := tx.row(ctx, sqlRunByID, []any{run.ID}, r.Dest()...); err != nil {
			return err
		}
		next, started = r.Value(), true
		if oldest := next.Attempt - ledger.KeepAttempts; oldest > 1 {
			if _, err := tx.exec(ctx, sqlTrimAttempts, next.ID, oldest); err != nil {
				return err
			}
		}
		return s.mayStart(ctx, tx, next.Job) // else it is rolled back
	})
	if err != nil {
		return ledger.Run{}, false, s.explain(err)
	}
	return next, started, nil
}

const sqlAttempts = `
SELECT ` + columns.AttemptColumns + ` FROM scheduler_attempts WHERE run_id = ?
ORDER BY attempt DESC`

// Attempts implements ledger.Store.
func (s *Store) Attempts(ctx context.Context, runID int64) ([]ledger.Attempt, error) {
	var a columns.Attempt
	return all(ctx, s, s.shared, a.Dest(), a.Value, sqlAttempts, runID)
}

const sqlGiveUp = `
UPDATE scheduler_runs SET retry_at = NULL` + sqlOwed

// GiveUp implements ledger.Store.
func (s *Store) GiveUp(ctx context.Context, ref driver.Ref,
	run ledger.Run) (changed bool, err error) {
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		if err := s.guard(ctx, tx, ref); err != nil {
			return err
		}
		n, err := tx.exec(ctx, sqlGiveUp, run.ID, run.Attempt)
		changed = n > 0
		return err
	})
	return changed && err == nil, s.explain(err)
}

const (
	sqlFinish = `
UPDATE scheduler_runs
SET status = ?, finished_at = UTC_TIMESTAMP(6), error = nullif(?, ''), retry_at = ?
WHERE id = ? AND term = ? AND attempt = ? AND status = 'in_progress'`

	sqlCountDone = `
UPDATE scheduler_jobs j JOIN scheduler_runs r ON r.job = j.job
SET j.done_count = j.done_count + 1, j.failure_streak = 0, j.last_done_at = r.finished_at,
    j.updated_at = r.finished_at, j.done_us = j.done_us + ?,
    j.longest_us = greatest(j.longest_us, ?)
WHERE r.id = ?`

	sqlCountFailed = `
UPDATE scheduler_jobs j JOIN scheduler_runs r ON r.job = j.job
SET j.failed_count = j.failed_count + 1, j.failure_streak = j.failure_streak + 1,
    j.last_failed_at = r.finished_at, j.updated_at = r.finished_at,
    j.last_error = left(nullif(?, ''), 1000)
WHERE r.id = ?`
)

// Finish implements ledger.Store. It locks the row of the run before that of its job, as
// Abandon does, so that the two never wait for each other.
func (s *Store) Finish(ctx context.Context, run ledger.Run,
	end ledger.End) (written bool, err error) {
	message := ledger.Cut(text(ledger.Cut(end.Error)))
	var retry sql.NullString
	if end.Status == ledger.Failed {
		retry = optional(end.RetryAt)
	}
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		n, err := tx.exec(ctx, sqlFinish, string(end.Status), message, retry, run.ID, run.Term,
			run.Attempt)
		if written = n > 0; err != nil || !written {
			return err
		}
		if end.Status == ledger.Done {
			took := max(end.Took, 0).Microseconds()
			_, err = tx.exec(ctx, sqlCountDone, took, took, run.ID)
		} else {
			_, err = tx.exec(ctx, sqlCountFailed, message, run.ID)
		}
		return err
	})
	return written && err == nil, s.explain(err)
}

const (
	sqlLeft = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE status = 'in_progress' AND term <> ? ORDER BY id FOR UPDATE`

	sqlAbandon = `
UPDATE scheduler_runs SET status = 'abandoned', finished_at = ?, retry_at = ? WHERE id = ?`
)

// Abandon implements ledger.Store. It counts a failure without a text: the error in
// the row, if there is one, is that of the attempt before.
func (s *Store) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) (runs []ledger.Run, err error) {
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		if err := s.guard(ctx, tx, ref); err != nil {
			return err
		}
		now, err := tx.now(ctx)
		if err != nil {
			return err
		}
		var r columns.Run
		rows, err := tx.QueryContext(ctx, sqlLeft, ref.Term)
		if runs, err = columns.All(rows, err, r.Dest(), r.Value); err != nil {
			return err
		}
		for i := range runs {
			r := &runs[i]
			r.Status, r.FinishedAt, r.RetryAt = ledger.Abandoned, now, time.Time{}
			if retryAt != nil {
				if at := retryAt(*r); !at.IsZero() {
					r.RetryAt = columns.Kept(at)
				}
			}
			if _, err := tx.exec(ctx, sqlAbandon, formatTime(now), optional(r.RetryAt),
				r.ID); err != nil {
				return err
			}
			if _, err := tx.exec(ctx, sqlCountFailed, "", r.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return runs, nil
}

const sqlRetries = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE retry_at IS NOT NULL AND status IN ('failed', 'abandoned') ORDER BY retry_at, id`

// Retries implements ledger.Store.
func (s *Store) Retries(ctx context.Context) ([]ledger.Run, error) {
	var r columns.Run
	return all(ctx, s, s.runs, r.Dest(), r.Value, sqlRetries)
}
