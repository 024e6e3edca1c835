package sqlite

import (
	"context"
	"database/sql"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/internal/ledgersql"
	"example.com/schedlock/schedlock/driver"
)

// A runLedger has the steps of the run ledger: Jobs, Decide and so on.
type runLedger = ledgersql.Ledger[tx]

func (s *Store) newLedger() runLedger {
	return ledgersql.New(ledgersql.Dialect[tx]{
		Attempt: s.share, Leader: s.write, Order: s.write, Patient: s.write,
		// A leader needs it to start, so it does not depend on the pool.
		ReadForLeader: func(ctx context.Context, dest []any, row func() error, query string,
			args ...any) error {
			return s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
				return s.each(ctx, query, args, dest, row)
			})
		},
		Read: func(ctx context.Context, dest []any, row func() error, query string,
			args ...any) error {
			rows, err := s.db.QueryContext(ctx, query, args...)
			return columns.Each(rows, err, dest, row)
		},
		Guard:   guard,
		Explain: s.explain,
		// A TEXT column takes any text, also NUL and what is not UTF-8.
		Text:   func(text string) string { return text },
		Layout: columns.Layout, Clock: s.now, SQL: statements,
	})
}

// guard makes the transaction fail unless ref holds the lock.
func guard(ctx context.Context, tx tx, ref driver.Ref) error {
	if err := tx.s.checkTenure(ref.Token); err != nil {
		return err
	}
	return heldBy(tx.exec(ctx, sqlFence, ref.Token.String(), ref.Term))
}

var statements = ledgersql.Statements{
	InsertJob: `
INSERT INTO scheduler_jobs (updated_at, job, spec, cursor_at) VALUES (?, ?, ?, ?)
ON CONFLICT (job) DO NOTHING`,

	MoveCursor: `
UPDATE scheduler_jobs SET updated_at = ?, spec = ?, cursor_at = ?
WHERE job = ? AND cursor_at = ?`,

	InsertSkip: `
INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error,
                            until, count)
VALUES (?, ?, 'skipped', ?, ?, ?, 0, ?, ?, ?)
ON CONFLICT (job, scheduled_at) DO NOTHING`,

	InsertRun: `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
VALUES (?, ?, ?, 'in_progress', ?, ?, ?, 1)
ON CONFLICT (job, scheduled_at) DO NOTHING`,

	ResetCursor: `
UPDATE scheduler_jobs SET cursor_at = ?, updated_at = ? WHERE job = ? RETURNING spec`,

	KeepAttempt: ledgersql.SQLKeepAttempt + `
ON CONFLICT (run_id, attempt) DO NOTHING`,

	Retry: `
UPDATE scheduler_runs
SET status = 'in_progress', attempt = attempt + 1, started_at = ?,
    finished_at = NULL, retry_at = NULL, term = ?, pid = ?, hostname = ?` + ledgersql.SQLOwed + `
RETURNING ` + columns.RunColumns,

	Finish: `
UPDATE scheduler_runs
SET finished_at = ?, status = ?, error = nullif(?, ''), retry_at = ?
WHERE id = ? AND term = ? AND attempt = ? AND status = 'in_progress'`,

	CountDone: `
UPDATE scheduler_jobs AS j
SET done_count = done_count + 1, failure_streak = 0, last_done_at = r.finished_at,
    updated_at = r.finished_at, done_us = done_us + ?, longest_us = max(longest_us, ?)
FROM scheduler_runs r WHERE r.id = ? AND j.job = r.job`,

	CountFailed: `
UPDATE scheduler_jobs AS j
SET failed_count = failed_count + 1, failure_streak = failure_streak + 1,
    last_failed_at = r.finished_at, updated_at = r.finished_at, last_error = nullif(?, '')
FROM scheduler_runs r WHERE r.id = ? AND j.job = r.job`,

	Left: `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE status = 'in_progress' AND term <> ? ORDER BY term, id`,

	InsertRequest: `
INSERT INTO scheduler_requests (job, requested_at, requested_by, reason)
SELECT ?, ?, ?, ?
WHERE NOT EXISTS (SELECT 1 FROM scheduler_runs WHERE job = ? AND scheduled_at = ?)
ON CONFLICT (job, requested_at) DO NOTHING`,

	InsertAnswer: `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt,
                            error, requested_by, request_reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''))
ON CONFLICT (job, scheduled_at) DO NOTHING`,

	InsertPause: `
INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason) VALUES (?, ?, ?, ?)
ON CONFLICT (job) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by,
    reason = excluded.reason, resumed_at = NULL, resumed_by = NULL
WHERE resumed_at IS NOT NULL`,

	TrimAudit: `
DELETE FROM scheduler_audit
WHERE id <= (SELECT id FROM scheduler_audit ORDER BY id DESC LIMIT 1 OFFSET ?)`,
}

// sqlPrune finds the oldest row that stays by the index of (job, scheduled_at),
// and reads no more older ones than it deletes, except those that stay. The newest
// row of all stays: SQLite would give its id to the next.
const sqlPrune = `
DELETE FROM scheduler_runs WHERE id IN (
    SELECT id FROM scheduler_runs
    WHERE job = ?1 AND status <> 'in_progress' AND retry_at IS NULL
      AND id < (SELECT max(id) FROM scheduler_runs)
      AND scheduled_at <= (SELECT scheduled_at FROM scheduler_runs WHERE job = ?1
                           ORDER BY scheduled_at DESC LIMIT 1 OFFSET ?2)
    ORDER BY scheduled_at LIMIT ?3
)`

// Prune implements ledger.Store.
func (s *Store) Prune(ctx context.Context, job string, keep, limit int) (deleted int64, err error) {
	return within(ctx, s.write, func(ctx context.Context, tx tx) (int64, error) {
		return tx.exec(ctx, sqlPrune, job, max(keep, 0), max(limit, 0))
	})
}
