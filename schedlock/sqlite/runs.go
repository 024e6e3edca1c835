package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

const sqlJobs = `
SELECT job, spec, cursor_at FROM scheduler_jobs ORDER BY job`

// Jobs implements ledger.Store. A leader needs it to start, so it does not
// depend on the pool.
func (s *Store) Jobs(ctx context.Context) (jobs []ledger.Job, err error) {
	err = s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		stmt, err := s.prepare(ctx, sqlJobs)
		if err != nil {
			return err
		}
		rows, err := stmt.QueryContext(ctx)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var (
				j      ledger.Job
				cursor string
			)
			if err := rows.Scan(&j.Name, &j.Spec, &cursor); err != nil {
				return err
			}
			if j.Cursor, err = parseTime(cursor); err != nil {
				return fmt.Errorf("job %q: %w", j.Name, err)
			}
			jobs = append(jobs, j)
		}
		return rows.Err()
	})
	return jobs, s.explain(err)
}

const (
	sqlInsertJob = `
INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (job) DO NOTHING`

	sqlMoveCursor = `
UPDATE scheduler_jobs SET spec = ?1, cursor_at = ?2, updated_at = ?3
WHERE job = ?4 AND cursor_at = ?5 AND cursor_at <= ?2`

	sqlInsertSkip = `
INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error, until, count)
VALUES (?1, ?2, 'skipped', ?3, ?4, ?5, 0, ?6, ?7, ?8)
ON CONFLICT (job, scheduled_at) DO NOTHING`

	sqlInsertRun = `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
VALUES (?1, ?2, ?3, 'in_progress', ?4, ?5, ?6, 1)
ON CONFLICT (job, scheduled_at) DO NOTHING
RETURNING id`
)

// guard makes the transaction fail unless ref holds the lock.
func guard(ctx context.Context, tx tx, ref schedlock.Ref) error {
	return heldBy(tx.exec(ctx, sqlFence, ref.Token.String(), ref.Term))
}

// Decide implements ledger.Store.
func (s *Store) Decide(ctx context.Context, ref schedlock.Ref, d ledger.Decision) (run ledger.Run, started bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx tx) error {
		started = false
		if err := guard(ctx, tx, ref); err != nil {
			return err
		}
		now := s.now().UTC()
		var (
			moved int64
			err   error
		)
		if d.From.IsZero() {
			moved, err = tx.exec(ctx, sqlInsertJob, d.Job, d.Spec, formatTime(d.To), formatTime(now))
		} else {
			moved, err = tx.exec(ctx, sqlMoveCursor, d.Spec, formatTime(d.To), formatTime(now), d.Job, formatTime(d.From))
		}
		if err != nil {
			return err
		}
		if moved == 0 {
			return schedlock.ErrMoved
		}
		for _, k := range d.Skipped {
			until, count := sql.NullString{}, sql.NullInt64{}
			if k.Count > 1 {
				until, count = formatOptional(k.Last), sql.NullInt64{Int64: k.Count, Valid: true}
			}
			if _, err := tx.exec(ctx, sqlInsertSkip, d.Job, formatTime(k.First), ref.Term, ref.PID, ref.Hostname, k.Reason, until, count); err != nil {
				return err
			}
		}
		if d.Start.IsZero() {
			return nil
		}
		run = ledger.Run{Job: d.Job, ScheduledAt: d.Start, StartedAt: now, Status: ledger.InProgress,
			Term: ref.Term, PID: ref.PID, Hostname: ref.Hostname, Attempt: 1}
		err = tx.row(ctx, sqlInsertRun, []any{d.Job, formatTime(d.Start), formatTime(now), ref.Term, ref.PID, ref.Hostname}, &run.ID)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		started = err == nil
		return err
	})
	return run, started && err == nil, err
}

const sqlFinish = `
UPDATE scheduler_runs SET status = ?1, finished_at = ?2, error = ?3
WHERE id = ?4 AND term = ?5 AND attempt = ?6 AND status = 'in_progress'`

// Finish implements ledger.Store.
func (s *Store) Finish(ctx context.Context, run ledger.Run, status ledger.Status, errText string) (written bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx tx) error {
		n, err := tx.exec(ctx, sqlFinish, string(status), formatTime(s.now()), nullText(errText), run.ID, run.Term, run.Attempt)
		written = n > 0
		return err
	})
	return written && err == nil, err
}

const sqlAbandon = `
UPDATE scheduler_runs SET status = 'abandoned', finished_at = ?1
WHERE status = 'in_progress' AND term <> ?2
RETURNING ` + runColumns

// Abandon implements ledger.Store.
func (s *Store) Abandon(ctx context.Context, ref schedlock.Ref) (runs []ledger.Run, err error) {
	err = s.write(ctx, func(ctx context.Context, tx tx) error {
		if err := guard(ctx, tx, ref); err != nil {
			return err
		}
		stmt, err := s.prepare(ctx, sqlAbandon)
		if err != nil {
			return err
		}
		rows, err := stmt.QueryContext(ctx, formatTime(s.now()), ref.Term)
		if err != nil {
			return err
		}
		runs, err = scanRuns(rows)
		return err
	})
	return runs, err
}

const (
	runColumns = `id, job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt, error, until, count`

	sqlRuns = `
SELECT ` + runColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT ?1`

	sqlRunsOfJob = `
SELECT ` + runColumns + ` FROM scheduler_runs WHERE job = ?2
ORDER BY scheduled_at DESC LIMIT ?1`
)

// Runs implements ledger.Store.
func (s *Store) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	query, args := sqlRuns, []any{max(limit, 0)} // SQLite takes -1 for no limit
	if job != "" {
		query, args = sqlRunsOfJob, append(args, job)
	}
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, s.explain(err)
	}
	runs, err := scanRuns(rows)
	return runs, s.explain(err)
}

func scanRuns(rows *sql.Rows) ([]ledger.Run, error) {
	defer rows.Close()
	runs := []ledger.Run{}
	for rows.Next() {
		var (
			r                                 ledger.Run
			scheduled, status                 string
			started, finished, until, errText sql.NullString
			count                             sql.NullInt64
		)
		if err := rows.Scan(&r.ID, &r.Job, &scheduled, &started, &finished, &status, &r.Term, &r.PID, &r.Hostname, &r.Attempt, &errText, &until, &count); err != nil {
			return nil, err
		}
		r.Status, r.Error, r.Count = ledger.Status(status), errText.String, count.Int64
		for _, t := range []struct {
			text sql.NullString
			dest *time.Time
		}{{sql.NullString{String: scheduled, Valid: true}, &r.ScheduledAt}, {started, &r.StartedAt}, {finished, &r.FinishedAt}, {until, &r.Until}} {
			var err error
			if *t.dest, err = parseOptional(t.text); err != nil {
				return nil, err
			}
		}
		runs = append(runs, r)
	}
	return runs, rows.Err()
}

func nullText(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
