package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/internal/ledgersql"
)

// A runLedger has the steps of the run ledger: Jobs, Decide and so on.
type runLedger = ledgersql.Ledger[tx]

func (s *Store) newLedger() runLedger {
	return ledgersql.New(ledgersql.Dialect[tx]{
		Attempt: s.runs.write, Leader: s.runs.write,
		Order: s.shared.write, Patient: s.patient.write,
		ReadForLeader: s.runs.each, Read: s.shared.each,
		Guard: s.guard, PassGate: s.passGate, ShutGate: shutGate,
		Duplicate: func(err error) bool { return number(err) == errDuplicate },
		Explain:   s.explain,
		Text:      text, Layout: layout, SQL: statements,
	})
}

// Once Pause has returned, nothing starts. A pause that is not there yet can't be
// locked, so both go through a row of their own: what starts an attempt shares it until
// it has committed, and Pause has it alone.
const (
	sqlPassGate = `
INSERT INTO %s.scheduler_gated (gate) VALUES (?)`

	sqlPassedGate = `
DELETE FROM %s.scheduler_gated WHERE id = ?`

	sqlShutGate = `
SELECT id FROM scheduler_gate FOR UPDATE`

	// On Galera a lock stays on its node. A start refers to the row of the gate, so it can't
	// be committed anywhere once that was deleted.
	sqlEndGate = `
DELETE FROM scheduler_gate`

	sqlNewGate = `
INSERT INTO scheduler_gate (id) VALUES (1)`
)

func (s *Store) passGate(ctx context.Context, tx tx) error {
	return s.refer(ctx, tx, sqlPassGate, sqlPassedGate, 1)
}

// shutGate waits for the starts that are under way.
func shutGate(ctx context.Context, tx tx) error {
	var id int
	if err := tx.row(ctx, sqlShutGate, nil, &id); err != nil {
		return err
	}
	for _, query := range []string{sqlEndGate, sqlNewGate} {
		if _, err := tx.exec(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

var statements = ledgersql.Statements{
	Now: sqlNow,

	InsertJob: `
INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
VALUES (?, ?, ?, UTC_TIMESTAMP(6))`,

	MoveCursor: `
UPDATE scheduler_jobs SET spec = ?, cursor_at = ?, updated_at = UTC_TIMESTAMP(6)
WHERE job = ? AND CAST(cursor_at AS CHAR) = ?`,

	InsertSkip: `
INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error,
                            until, count)
VALUES (?, ?, 'skipped', ?, ?, ?, 0, ?, ?, ?)`,

	InsertRun: `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
VALUES (?, ?, ?, 'in_progress', ?, ?, ?, 1)`,

	ResetCursor: `
UPDATE scheduler_jobs SET cursor_at = ?, updated_at = ? WHERE job = ?`,
	Spec: `
SELECT spec FROM scheduler_jobs WHERE job = ?`,

	KeepAttempt: ledgersql.SQLKeepAttempt + `
FOR UPDATE`,

	Retry: `
UPDATE scheduler_runs
SET status = 'in_progress', started_at = UTC_TIMESTAMP(6), finished_at = NULL, retry_at = NULL,
    attempt = attempt + 1, term = ?, pid = ?, hostname = ?` + ledgersql.SQLOwed,
	Retried: `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE id = ?`,

	Finish: `
UPDATE scheduler_runs
SET finished_at = UTC_TIMESTAMP(6), status = ?, error = nullif(?, ''), retry_at = ?
WHERE id = ? AND term = ? AND attempt = ? AND status = 'in_progress'`,

	CountDone: `
UPDATE scheduler_jobs j JOIN scheduler_runs r ON r.job = j.job
SET j.done_count = j.done_count + 1, j.failure_streak = 0, j.last_done_at = r.finished_at,
    j.updated_at = r.finished_at, j.done_us = j.done_us + ?,
    j.longest_us = greatest(j.longest_us, ?)
WHERE r.id = ?`,

	CountFailed: `
UPDATE scheduler_jobs j JOIN scheduler_runs r ON r.job = j.job
SET j.failed_count = j.failed_count + 1, j.failure_streak = j.failure_streak + 1,
    j.last_failed_at = r.finished_at, j.updated_at = r.finished_at,
    j.last_error = nullif(?, '')
WHERE r.id = ?`,

	Left: `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
WHERE status = 'in_progress' AND term <> ? ORDER BY term, id FOR UPDATE`,

	InsertRequest: `
INSERT INTO scheduler_requests (job, requested_at, requested_by, reason)
SELECT ?, ?, ?, ? FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM scheduler_runs WHERE job = ? AND scheduled_at = ?)`,

	InsertAnswer: `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt,
                            error, requested_by, request_reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''))`,

	PauseAgain: `
UPDATE scheduler_pauses
SET paused_at = ?, paused_by = ?, reason = ?, resumed_at = NULL, resumed_by = NULL
WHERE job = ? AND resumed_at IS NOT NULL`,
	InsertPause: `
INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason) VALUES (?, ?, ?, ?)`,

	OldAudit: `
SELECT id FROM scheduler_audit ORDER BY id DESC LIMIT 1 OFFSET ?`,
	TrimAudit: `
DELETE FROM scheduler_audit WHERE id <= ?`,
}

// The indexes are named because MariaDB, left to choose, now and then sorts all that Prune may ever
// delete, or reads the rows of other jobs. What it locks then keeps other transactions waiting.
const (
	// What it finds cannot start again: it is final.
	sqlFinal = `
SELECT id FROM scheduler_runs FORCE INDEX (scheduler_runs_tick)
WHERE job = ? AND status <> 'in_progress' AND retry_at IS NULL
  AND scheduled_at <= (SELECT scheduled_at FROM scheduler_runs WHERE job = ?
                       ORDER BY scheduled_at DESC LIMIT 1 OFFSET ?)
ORDER BY scheduled_at LIMIT ?`

	sqlPrune = `
DELETE r FROM scheduler_runs r FORCE INDEX (PRIMARY) WHERE r.id IN (%s)`
)

// Prune implements ledger.Store. It locks rows that others lock in another order: where it looks
// for attempts of a run that is deleted, no attempt of the next run can be written.
func (s *Store) Prune(ctx context.Context, job string, keep, limit int) (deleted int64, err error) {
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		var (
			id  int64
			ids []string
		)
		rows, err := tx.QueryContext(ctx, sqlFinal, text(job), text(job), max(keep, 0),
			max(limit, 0))
		err = columns.Each(rows, err, []any{&id}, func() error {
			ids = append(ids, strconv.FormatInt(id, 10))
			return nil
		})
		if deleted = 0; err == nil && len(ids) > 0 {
			deleted, err = tx.exec(ctx, fmt.Sprintf(sqlPrune, strings.Join(ids, ", ")))
		}
		return err
	})
	if err != nil {
		return 0, s.explain(err)
	}
	return deleted, nil
}
