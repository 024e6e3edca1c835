package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const sqlJobs = `
SELECT ` + columns.JobColumns + `, cursor_at
FROM scheduler_jobs ORDER BY job`

// Jobs implements ledger.Store. A leader needs it to start, so it does not
// depend on the pool.
func (s *Store) Jobs(ctx context.Context) (jobs []ledger.Job, err error) {
	var (
		j      columns.Job
		cursor string
	)
	err = s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		return s.each(ctx, sqlJobs, nil, append(j.Dest(), &cursor), func() error {
			job := j.Value()
			job.Cursor, job.RawCursor = readCursor(cursor)
			jobs = append(jobs, job)
			return nil
		})
	})
	return jobs, err
}

// readCursor returns the time of a cursor, and its text in quotes if that is
// not as this package writes it. A time that is none, or that stands for none
// elsewhere, is zero.
func readCursor(text string) (at time.Time, raw string) {
	at = stamp(text)
	if at.IsZero() || formatTime(at) != text {
		raw = strconv.Quote(text)
	}
	return at, raw
}

// cursorText is how the cursor stood in the table when it was read.
func cursorText(d ledger.Decision) (string, error) {
	if d.RawFrom == "" {
		return formatTime(d.From), nil
	}
	text, err := strconv.Unquote(d.RawFrom)
	if err != nil {
		return "", fmt.Errorf("cursor %.40q is not one that Jobs has returned: %w", d.RawFrom, err)
	}
	return text, nil
}

const (
	sqlInsertJob = `
INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (job) DO NOTHING`

	sqlMoveCursor = `
UPDATE scheduler_jobs SET spec = ?1, cursor_at = ?2, updated_at = ?3
WHERE job = ?4 AND cursor_at = ?5`

	sqlInsertSkip = `
INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error,
                            until, count)
VALUES (?1, ?2, 'skipped', ?3, ?4, ?5, 0, ?6, ?7, ?8)
ON CONFLICT (job, scheduled_at) DO NOTHING`

	sqlInsertRun = `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
VALUES (?1, ?2, ?3, 'in_progress', ?4, ?5, ?6, 1)
ON CONFLICT (job, scheduled_at) DO NOTHING
RETURNING id`
)

// guard makes the transaction fail unless ref holds the lock.
func guard(ctx context.Context, tx tx, ref driver.Ref) error {
	if err := tx.s.checkTenure(ref.Token); err != nil {
		return err
	}
	return heldBy(tx.exec(ctx, sqlFence, ref.Token.String(), ref.Term))
}

// Decide implements ledger.Store.
func (s *Store) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (run ledger.Run, started bool, err error) {
	run, err = within(ctx, s.share, func(ctx context.Context, tx tx) (run ledger.Run, err error) {
		if err := guard(ctx, tx, ref); err != nil {
			return run, err
		}
		if !d.Start.IsZero() {
			if err := mayStart(ctx, tx, d.Job); err != nil {
				return run, err
			}
		}
		now := columns.Kept(s.now())
		var moved int64
		switch {
		case d.To.Before(d.From) && !d.Back: // whatever stands there
		case d.From.IsZero() && d.RawFrom == "":
			moved, err = tx.exec(ctx, sqlInsertJob, d.Job, d.Spec, formatTime(d.To),
				formatTime(now))
		default:
			var from string
			if from, err = cursorText(d); err == nil {
				moved, err = tx.exec(ctx, sqlMoveCursor, d.Spec, formatTime(d.To), formatTime(now),
					d.Job, from)
			}
		}
		if err != nil {
			return run, err
		}
		if moved == 0 {
			return run, driver.ErrConflict
		}
		for _, k := range d.Skipped {
			for k := range k.Places() {
				until, count := sql.NullString{}, sql.NullInt64{}
				if k.Count > 1 {
					until = formatOptional(k.Last)
					count = sql.NullInt64{Int64: k.Count, Valid: true}
				}
				free, err := tx.exec(ctx, sqlInsertSkip, d.Job, formatTime(k.First), ref.Term,
					ref.PID, ref.Hostname, k.Reason, until, count)
				if err != nil {
					return run, err
				}
				if free > 0 {
					break
				}
			}
		}
		if d.Start.IsZero() {
			return run, nil
		}
		run = ledger.Run{Job: d.Job, ScheduledAt: d.Start, StartedAt: now,
			Status: ledger.InProgress,
			Term:   ref.Term, PID: ref.PID, Hostname: ref.Hostname, Attempt: 1}
		err = tx.row(ctx, sqlInsertRun, []any{d.Job, formatTime(d.Start),
			formatTime(now), ref.Term, ref.PID, ref.Hostname}, &run.ID)
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return run, err
	})
	return run, run.ID != 0, err
}

const (
	sqlRuns = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT ?1`

	sqlRunsOfJob = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE job = ?2
ORDER BY scheduled_at DESC LIMIT ?1`
)

// Runs implements ledger.Store. A row that a hand has spoiled is left out: the
// error names it, and comes with the others.
func (s *Store) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	query, args := sqlRuns, []any{max(limit, 0)} // SQLite takes -1 for no limit
	if job != "" {
		query, args = sqlRunsOfJob, append(args, job)
	}
	list := runList{runs: []ledger.Run{}}
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err := columns.Each(rows, err, list.Dest(), list.add); err != nil {
		return nil, s.explain(err)
	}
	return list.runs, s.explain(list.spoiled)
}

const sqlRun = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE job = ?1 AND scheduled_at = ?2`

// Run implements ledger.Store.
func (s *Store) Run(ctx context.Context, job string,
	tick time.Time) (run ledger.Run, found bool, err error) {
	var r columns.Run
	err = s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		return s.each(ctx, sqlRun, []any{job, formatTime(tick)}, r.Dest(), func() error {
			run, found = r.Value(), true
			return r.Err()
		})
	})
	return run, found && err == nil, err
}

const sqlResetCursor = `
UPDATE scheduler_jobs SET cursor_at = ?1, updated_at = ?1 WHERE job = ?2 RETURNING spec`

// ResetCursor implements ledger.Store.
func (s *Store) ResetCursor(ctx context.Context, o ledger.Action) (j ledger.Job, err error) {
	if err := o.Validate(); err != nil {
		return j, err
	}
	return within(ctx, s.write, func(ctx context.Context, tx tx) (ledger.Job, error) {
		j := ledger.Job{Name: o.Job, Cursor: columns.Kept(s.now())}
		err := tx.row(ctx, sqlResetCursor, []any{formatTime(j.Cursor), o.Job}, &j.Spec)
		if errors.Is(err, sql.ErrNoRows) {
			return j, ledger.NoJob(o.Job)
		}
		if err != nil {
			return j, err
		}
		return j, note(ctx, tx, j.Cursor, ledger.OrderResetCursor, o)
	})
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

// runList gathers rows. Those that a hand has spoiled do not hide the others.
type runList struct {
	columns.Run
	runs    []ledger.Run
	spoiled error
}

func (l *runList) add() error {
	if err := l.Err(); err != nil {
		l.spoiled = errors.Join(l.spoiled, err)
	} else {
		l.runs = append(l.runs, l.Value())
	}
	return nil
}

func nullText(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
