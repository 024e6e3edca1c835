package ledgersql

import (
	"context"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// SQLOwed finds the row of a run that is owed the attempt after the one given.
const SQLOwed = `
WHERE id = ? AND attempt = ? AND status IN ('failed', 'abandoned') AND retry_at IS NOT NULL`

const (
	// SQLKeepAttempt lacks what becomes of a row that is there. The error in the row of an
	// abandoned attempt is that of an attempt before.
	SQLKeepAttempt = `
INSERT INTO scheduler_attempts (run_id, attempt, started_at, finished_at, status, term, pid,
                                hostname, error)
SELECT id, attempt, started_at, finished_at, status, term, pid, hostname,
       CASE status WHEN 'failed' THEN error END
FROM scheduler_runs` + SQLOwed

	sqlTrimAttempts = `
DELETE FROM scheduler_attempts WHERE run_id = ? AND attempt < ?`
)

// Retry implements ledger.Store.
func (l Ledger[T]) Retry(ctx context.Context, ref driver.Ref,
	run ledger.Run) (next ledger.Run, started bool, err error) {
	next, err = within(ctx, l, l.d.Attempt, func(ctx context.Context,
		t T) (next ledger.Run, err error) {
		if err := l.d.Guard(ctx, t, ref); err != nil {
			return next, err
		}
		// One that is kept already was set back by hand.
		if _, _, err := l.insert(ctx, t, l.d.SQL.KeepAttempt, run.ID, run.Attempt); err != nil {
			return next, err
		}
		var r columns.Run
		found, err := l.change(ctx, t, r.Dest(), l.d.SQL.Retry, l.stamped(ref.Term, ref.PID,
			l.d.Text(ref.Hostname), run.ID, run.Attempt), l.d.SQL.Retried, run.ID)
		if err != nil || !found {
			return next, err
		}
		if next, err = r.Value(), r.Err(); err != nil {
			return next, err
		}
		if oldest := next.Attempt - ledger.KeepAttempts; oldest > 1 {
			if _, err := l.exec(ctx, t, sqlTrimAttempts, next.ID, oldest); err != nil {
				return next, err
			}
		}
		return next, l.mayStart(ctx, t, next.Job) // else it is rolled back
	})
	return next, next.ID != 0, err
}

const sqlAttempts = `
SELECT ` + columns.AttemptColumns + ` FROM scheduler_attempts WHERE run_id = ?
ORDER BY attempt DESC`

// Attempts implements ledger.Store.
func (l Ledger[T]) Attempts(ctx context.Context, runID int64) ([]ledger.Attempt, error) {
	var a columns.Attempt
	return all(ctx, l, l.d.Read, a.Dest(), a.Value, sqlAttempts, runID)
}

const sqlGiveUp = `
UPDATE scheduler_runs SET retry_at = NULL` + SQLOwed

// GiveUp implements ledger.Store.
func (l Ledger[T]) GiveUp(ctx context.Context, ref driver.Ref,
	run ledger.Run) (changed bool, err error) {
	return within(ctx, l, l.d.Leader, func(ctx context.Context, t T) (bool, error) {
		if err := l.d.Guard(ctx, t, ref); err != nil {
			return false, err
		}
		n, err := l.exec(ctx, t, sqlGiveUp, run.ID, run.Attempt)
		return n > 0, err
	})
}

// Finish implements ledger.Store. It locks the row of the run before that of its job, as Abandon
// does, so that the two never wait for each other.
func (l Ledger[T]) Finish(ctx context.Context, run ledger.Run,
	end ledger.End) (written bool, err error) {
	message := ledger.Cut(l.d.Text(ledger.Cut(end.Error)))
	return within(ctx, l, l.d.Attempt, func(ctx context.Context, t T) (bool, error) {
		n, err := l.exec(ctx, t, l.d.SQL.Finish, l.stamped(string(end.Status), message,
			optional(end.RetryAt), run.ID, run.Term, run.Attempt)...)
		if err != nil || n == 0 {
			return false, err
		}
		if end.Status == ledger.Done {
			took := max(end.Took, 0).Microseconds()
			_, err = l.exec(ctx, t, l.d.SQL.CountDone, took, took, run.ID)
		} else {
			_, err = l.exec(ctx, t, l.d.SQL.CountFailed, beginning(message), run.ID)
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

const sqlAbandon = `
UPDATE scheduler_runs SET status = 'abandoned', finished_at = ?, retry_at = ? WHERE id = ?`

// Abandon implements ledger.Store. It counts a failure without a text: the error in the row, if
// there is one, is that of the attempt before. A row that a hand has spoiled is abandoned too:
// else no leader could begin before it is mended.
func (l Ledger[T]) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	return within(ctx, l, l.d.Leader, func(ctx context.Context,
		t T) (runs []ledger.Run, err error) {
		if err := l.d.Guard(ctx, t, ref); err != nil {
			return nil, err
		}
		now, err := l.now(ctx, t)
		if err != nil {
			return nil, err
		}
		var r columns.Run
		rows, err := t.QueryContext(ctx, l.d.SQL.Left, ref.Term)
		if runs, err = columns.All(rows, err, r.Dest(), r.Value); err != nil {
			return nil, err
		}
		for i := range runs {
			r := &runs[i]
			r.Status, r.FinishedAt, r.RetryAt = ledger.Abandoned, now, time.Time{}
			if retryAt != nil {
				r.RetryAt = columns.Kept(retryAt(*r))
			}
			if _, err := l.exec(ctx, t, sqlAbandon, now, optional(r.RetryAt), r.ID); err != nil {
				return nil, err
			}
			if _, err := l.exec(ctx, t, l.d.SQL.CountFailed, "", r.ID); err != nil {
				return nil, err
			}
		}
		return runs, nil
	})
}

const sqlRetries = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE retry_at IS NOT NULL AND status IN ('failed', 'abandoned') ORDER BY retry_at, id`

// Retries implements ledger.Store. A row that a hand has spoiled is owed nothing until it is
// mended, so that it does not keep a leader from all others; Runs names it.
func (l Ledger[T]) Retries(ctx context.Context) ([]ledger.Run, error) {
	var list runList
	err := l.d.ReadForLeader(ctx, list.Dest(), list.add, sqlRetries)
	return list.runs, l.d.Explain(err)
}
