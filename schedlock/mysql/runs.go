package mysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// A cursor that is no time, such as 0000-00-00, is shown as its text, and compared by it.
const sqlJobs = `
SELECT ` + columns.JobColumns + `, cursor_at, CAST(cursor_at AS CHAR)
FROM scheduler_jobs ORDER BY job`

// Jobs implements ledger.Store.
func (s *Store) Jobs(ctx context.Context) ([]ledger.Job, error) {
	var (
		j      columns.Job
		cursor columns.Time
		raw    string
	)
	return all(ctx, s, s.runs, append(j.Dest(), &cursor, &raw), func() ledger.Job {
		job := j.Value()
		if job.Cursor = cursor.Time; cursor.Err != nil {
			job.RawCursor = raw
		}
		return job
	}, sqlJobs)
}

const (
	sqlInsertJob = `
INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
VALUES (?, ?, ?, UTC_TIMESTAMP(6))`

	sqlMoveCursor = `
UPDATE scheduler_jobs SET spec = ?, cursor_at = ?, updated_at = UTC_TIMESTAMP(6)
WHERE job = ? AND cursor_at = ?`

	sqlMoveRawCursor = `
UPDATE scheduler_jobs SET spec = ?, cursor_at = ?, updated_at = UTC_TIMESTAMP(6)
WHERE job = ? AND CAST(cursor_at AS CHAR) = ?`

	sqlInsertSkip = `
INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error,
                            until, count)
VALUES (?, ?, 'skipped', ?, ?, ?, 0, ?, ?, ?)`

	sqlInsertRun = `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
VALUES (?, ?, ?, 'in_progress', ?, ?, ?, 1)`
)

// Decide implements ledger.Store.
func (s *Store) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (run ledger.Run, started bool, err error) {
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		run, started = ledger.Run{}, false
		if err := s.guard(ctx, tx, ref); err != nil {
			return err
		}
		if !d.Start.IsZero() {
			if err := s.mayStart(ctx, tx, d.Job); err != nil {
				return err
			}
		}
		if err := moveCursor(ctx, tx, d); err != nil {
			return err
		}
		for _, k := range d.Skipped {
			if err := skip(ctx, tx, ref, d.Job, k); err != nil {
				return err
			}
		}
		if d.Start.IsZero() {
			return nil
		}
		now, err := tx.now(ctx)
		if err != nil {
			return err
		}
		run = ledger.Run{Job: d.Job, ScheduledAt: columns.Kept(d.Start), StartedAt: now,
			Status: ledger.InProgress, Term: ref.Term, PID: ref.PID,
			Hostname: text(ref.Hostname), Attempt: 1}
		run.ID, started, err = tx.insert(ctx, sqlInsertRun, d.Job, formatTime(d.Start),
			formatTime(now), ref.Term, ref.PID, run.Hostname)
		return err
	})
	if err != nil || !started {
		return ledger.Run{}, false, s.explain(err)
	}
	return run, true, nil
}

// moveCursor makes the transaction fail unless the cursor stands as it was read.
func moveCursor(ctx context.Context, tx tx, d ledger.Decision) (err error) {
	var (
		n     int64
		isNew bool
	)
	switch {
	case d.To.Before(d.From) && !d.Back: // whatever stands there
	case d.RawFrom != "":
		n, err = tx.exec(ctx, sqlMoveRawCursor, d.Spec, formatTime(d.To), d.Job, d.RawFrom)
	case d.From.IsZero():
		_, isNew, err = tx.insert(ctx, sqlInsertJob, d.Job, d.Spec, formatTime(d.To))
	default:
		n, err = tx.exec(ctx, sqlMoveCursor, d.Spec, formatTime(d.To), d.Job, formatTime(d.From))
	}
	if err == nil && n == 0 && !isNew {
		return driver.ErrConflict
	}
	return err
}

// skip records a range of ticks that are not run, at the first of its places that is free.
func skip(ctx context.Context, tx tx, ref driver.Ref, job string, k ledger.Skip) error {
	for k := range k.Places() {
		until, count := sql.NullString{}, sql.NullInt64{}
		if k.Count > 1 {
			until, count = optional(k.Last), sql.NullInt64{Int64: k.Count, Valid: true}
		}
		_, free, err := tx.insert(ctx, sqlInsertSkip, job, formatTime(k.First), ref.Term, ref.PID,
			text(ref.Hostname), text(k.Reason), until, count)
		if err != nil || free {
			return err
		}
	}
	return nil
}

const (
	sqlRuns = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT ?`

	sqlRunsOfJob = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE job = ?
ORDER BY scheduled_at DESC LIMIT ?`
)

// Runs implements ledger.Store.
func (s *Store) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	query, args := sqlRuns, []any{max(limit, 0)}
	if job != "" {
		query, args = sqlRunsOfJob, []any{text(job), max(limit, 0)}
	}
	var r columns.Run
	return all(ctx, s, s.shared, r.Dest(), r.Value, query, args...)
}

const sqlRun = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE job = ? AND scheduled_at = ?`

// Run implements ledger.Store.
func (s *Store) Run(ctx context.Context, job string,
	tick time.Time) (run ledger.Run, found bool, err error) {
	var r columns.Run
	err = s.shared.row(ctx, sqlRun, []any{text(job), formatTime(tick)}, r.Dest()...)
	if errors.Is(err, sql.ErrNoRows) {
		return run, false, nil
	}
	return r.Value(), err == nil, s.explain(err)
}

const (
	sqlResetCursor = `
UPDATE scheduler_jobs SET cursor_at = ?, updated_at = ? WHERE job = ?`

	sqlSpec = `
SELECT spec FROM scheduler_jobs WHERE job = ?`
)

// ResetCursor implements ledger.Store.
func (s *Store) ResetCursor(ctx context.Context, o ledger.Action) (j ledger.Job, err error) {
	if err := o.Validate(); err != nil {
		return j, err
	}
	err = s.shared.write(ctx, func(ctx context.Context, tx tx) error {
		now, err := tx.now(ctx)
		if err != nil {
			return err
		}
		n, err := tx.exec(ctx, sqlResetCursor, formatTime(now), formatTime(now), o.Job)
		if err != nil {
			return err
		}
		if n == 0 {
			return ledger.NoJob(o.Job)
		}
		j = ledger.Job{Name: o.Job, Cursor: now}
		if err := tx.row(ctx, sqlSpec, []any{o.Job}, &j.Spec); err != nil {
			return err
		}
		return note(ctx, tx, now, ledger.OrderResetCursor, o)
	})
	if err != nil {
		return ledger.Job{}, s.explain(err)
	}
	return j, nil
}

const (
	sqlOldest = `
SELECT scheduled_at FROM scheduler_runs WHERE job = ?
ORDER BY scheduled_at DESC LIMIT 1 OFFSET ?`

	// What it deletes cannot start again: it is final.
	sqlPrune = `
DELETE FROM scheduler_runs
WHERE job = ? AND scheduled_at <= ? AND status <> 'in_progress' AND retry_at IS NULL
ORDER BY scheduled_at LIMIT ?`
)

// Prune implements ledger.Store. It locks rows that others lock in another order: where it looks
// for attempts of a run that is deleted, no attempt of the next run can be written.
func (s *Store) Prune(ctx context.Context, job string, keep, limit int) (deleted int64, err error) {
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		deleted = 0
		var oldest columns.Time
		err := tx.row(ctx, sqlOldest, []any{text(job), max(keep, 0)}, &oldest)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			deleted, err = tx.exec(ctx, sqlPrune, text(job), formatTime(oldest.Time),
				max(limit, 0))
		}
		return err
	})
	if err != nil {
		return 0, s.explain(err)
	}
	return deleted, nil
}
