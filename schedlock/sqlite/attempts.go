package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// sqlOwed finds the row of a run ?1 that is owed the attempt after ?2.
const sqlOwed = `
WHERE id = ?1 AND attempt = ?2 AND status IN ('failed', 'abandoned') AND retry_at IS NOT NULL`

const (
	// An attempt that is kept already was set back by hand. The error in the row of an abandoned
	// one is that of an attempt before.
	sqlKeepAttempt = `
INSERT INTO scheduler_attempts (run_id, attempt, started_at, finished_at, status, term, pid,
                                hostname, error)
SELECT id, attempt, started_at, finished_at, status, term, pid, hostname,
       CASE status WHEN 'failed' THEN error END
FROM scheduler_runs` + sqlOwed + `
ON CONFLICT (run_id, attempt) DO NOTHING`

	sqlRetry = `
UPDATE scheduler_runs
SET status = 'in_progress', attempt = attempt + 1, started_at = ?3,
    finished_at = NULL, retry_at = NULL,
    term = ?4, pid = ?5, hostname = ?6` + sqlOwed + `
RETURNING ` + columns.RunColumns

	sqlTrimAttempts = `
DELETE FROM scheduler_attempts WHERE run_id = ?1 AND attempt < ?2`
)

// Retry implements ledger.Store.
func (s *Store) Retry(ctx context.Context, ref driver.Ref,
	run ledger.Run) (next ledger.Run, started bool, err error) {
	next, err = within(ctx, s.share, func(ctx context.Context, tx tx) (next ledger.Run, err error) {
		if err := guard(ctx, tx, ref); err != nil {
			return next, err
		}
		if _, err := tx.exec(ctx, sqlKeepAttempt, run.ID, run.Attempt); err != nil {
			return next, err
		}
		var r columns.Run
		err = s.each(ctx, sqlRetry, []any{run.ID, run.Attempt, formatTime(s.now()), ref.Term,
			ref.PID, ref.Hostname}, r.Dest(), func() error {
			next = r.Value()
			return r.Err()
		})
		if err != nil || next.ID == 0 {
			return next, err
		}
		if oldest := next.Attempt - ledger.KeepAttempts; oldest > 1 {
			if _, err := tx.exec(ctx, sqlTrimAttempts, next.ID, oldest); err != nil {
				return next, err
			}
		}
		return next, mayStart(ctx, tx, next.Job) // else it is rolled back
	})
	return next, next.ID != 0, err
}

const sqlAttempts = `
SELECT ` + columns.AttemptColumns + ` FROM scheduler_attempts WHERE run_id = ?1
ORDER BY attempt DESC`

// Attempts implements ledger.Store.
func (s *Store) Attempts(ctx context.Context, runID int64) ([]ledger.Attempt, error) {
	var a columns.Attempt
	rows, err := s.db.QueryContext(ctx, sqlAttempts, runID)
	list, err := columns.All(rows, err, a.Dest(), a.Value)
	return list, s.explain(err)
}

const sqlGiveUp = `
UPDATE scheduler_runs SET retry_at = NULL` + sqlOwed

// GiveUp implements ledger.Store.
func (s *Store) GiveUp(ctx context.Context, ref driver.Ref,
	run ledger.Run) (changed bool, err error) {
	return within(ctx, s.write, func(ctx context.Context, tx tx) (bool, error) {
		if err := guard(ctx, tx, ref); err != nil {
			return false, err
		}
		n, err := tx.exec(ctx, sqlGiveUp, run.ID, run.Attempt)
		return n > 0, err
	})
}

const (
	sqlFinish = `
UPDATE scheduler_runs SET status = ?1, finished_at = ?2, error = ?3, retry_at = ?4
WHERE id = ?5 AND term = ?6 AND attempt = ?7 AND status = 'in_progress'
RETURNING job`

	sqlCountDone = `
UPDATE scheduler_jobs
SET done_count = done_count + 1, failure_streak = 0, last_done_at = ?1, updated_at = ?1,
    done_us = done_us + ?2, longest_us = max(longest_us, ?2)
WHERE job = ?3`

	sqlCountFailed = `
UPDATE scheduler_jobs
SET failed_count = failed_count + 1, failure_streak = failure_streak + 1,
    last_failed_at = ?1, updated_at = ?1,
    last_error = ?2
WHERE job = ?3`
)

// Finish implements ledger.Store. Any text is recorded as it is, but cut: a TEXT
// column of SQLite also takes NUL, and what is not UTF-8.
func (s *Store) Finish(ctx context.Context, run ledger.Run,
	end ledger.End) (written bool, err error) {
	end.Error = ledger.Cut(end.Error)
	return within(ctx, s.share, func(ctx context.Context, tx tx) (bool, error) {
		var retry sql.NullString
		if end.Status == ledger.Failed {
			retry = formatOptional(end.RetryAt)
		}
		var (
			job string
			now = formatTime(s.now())
		)
		err := tx.row(ctx, sqlFinish, []any{string(end.Status),
			now, nullText(end.Error), retry, run.ID, run.Term, run.Attempt}, &job)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if end.Status == ledger.Done {
			_, err = tx.exec(ctx, sqlCountDone, now, max(end.Took, 0).Microseconds(), job)
		} else {
			_, err = tx.exec(ctx, sqlCountFailed, now, nullText(beginning(end.Error)), job)
		}
		return true, err
	})
}

// beginning is what the statistics keep of an error: 1,000 characters.
func beginning(text string) string {
	n := 0
	for i := range text {
		if n++; n > 1000 {
			return text[:i]
		}
	}
	return text
}

const (
	sqlLeft = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE status = 'in_progress' AND term <> ?1 ORDER BY term, id`

	sqlAbandon = `
UPDATE scheduler_runs SET status = 'abandoned', finished_at = ?1, retry_at = ?2 WHERE id = ?3`
)

// Abandon implements ledger.Store. It counts a failure without a text: the
// error in the row, if there is one, is that of the attempt before.
func (s *Store) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	return within(ctx, s.write, func(ctx context.Context, tx tx) (runs []ledger.Run, err error) {
		if err := guard(ctx, tx, ref); err != nil {
			return nil, err
		}
		var r columns.Run
		err = s.each(ctx, sqlLeft, []any{ref.Term}, r.Dest(), func() error {
			runs = append(runs, r.Value())
			return r.Err()
		})
		if err != nil {
			return nil, err
		}
		now := columns.Kept(s.now())
		for i := range runs {
			r := &runs[i]
			r.Status, r.FinishedAt, r.RetryAt = ledger.Abandoned, now, time.Time{}
			if retryAt != nil {
				r.RetryAt = columns.Kept(retryAt(*r))
			}
			if _, err := tx.exec(ctx, sqlAbandon, formatTime(now), formatOptional(r.RetryAt),
				r.ID); err != nil {
				return nil, err
			}
			if _, err := tx.exec(ctx, sqlCountFailed, formatTime(now), nil, r.Job); err != nil {
				return nil, err
			}
		}
		return runs, nil
	})
}

const sqlRetries = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE retry_at IS NOT NULL AND status IN ('failed', 'abandoned') ORDER BY retry_at, id`

// Retries implements ledger.Store. A row that a hand has spoiled is owed nothing
// until it is mended, so that it does not keep a leader from all others; Runs
// names it.
func (s *Store) Retries(ctx context.Context) ([]ledger.Run, error) {
	var list runList
	err := s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		return s.each(ctx, sqlRetries, nil, list.Dest(), list.add)
	})
	return list.runs, err
}
