package ledgersql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const sqlJobs = `
SELECT ` + columns.JobColumns + `, cursor_at, CAST(cursor_at AS CHAR)
FROM scheduler_jobs ORDER BY job`

// Jobs implements ledger.Store. A cursor that is not as the ledger writes it, such as one that is
// no time, is shown and compared as its text in quotes.
func (l Ledger[T]) Jobs(ctx context.Context) ([]ledger.Job, error) {
	var (
		j      columns.Job
		cursor columns.Time
		raw    string
	)
	return all(ctx, l, l.d.ReadForLeader, append(j.Dest(), &cursor, &raw), func() ledger.Job {
		job := j.Value()
		job.Cursor = cursor.Time
		if cursor.IsZero() || l.format(cursor.Time) != raw {
			job.RawCursor = strconv.Quote(raw)
		}
		return job
	}, sqlJobs)
}

// Decide implements ledger.Store.
func (l Ledger[T]) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (run ledger.Run, started bool, err error) {
	run, err = within(ctx, l, l.d.Attempt, func(ctx context.Context,
		t T) (run ledger.Run, err error) {
		if err := l.d.Guard(ctx, t, ref); err != nil {
			return run, err
		}
		if !d.Start.IsZero() {
			if err := l.mayStart(ctx, t, d.Job); err != nil {
				return run, err
			}
		}
		if err := l.moveCursor(ctx, t, d); err != nil {
			return run, err
		}
		for _, k := range d.Skipped {
			if err := l.skip(ctx, t, ref, d.Job, k); err != nil {
				return run, err
			}
		}
		if d.Start.IsZero() {
			return run, nil
		}
		now, err := l.now(ctx, t)
		if err != nil {
			return run, err
		}
		run = ledger.Run{Job: d.Job, ScheduledAt: columns.Kept(d.Start), StartedAt: now,
			Status: ledger.InProgress, Term: ref.Term, PID: ref.PID,
			Hostname: l.d.Text(ref.Hostname), Attempt: 1}
		run.ID, _, err = l.insert(ctx, t, l.d.SQL.InsertRun, d.Job, d.Start, now, ref.Term, ref.PID,
			run.Hostname)
		return run, err
	})
	if err != nil || run.ID == 0 {
		return ledger.Run{}, false, err
	}
	return run, true, nil
}

// moveCursor makes the transaction fail unless the cursor stands as it was read.
func (l Ledger[T]) moveCursor(ctx context.Context, t T, d ledger.Decision) (err error) {
	moved := false
	switch {
	case d.To.Before(d.From) && !d.Back: // whatever stands there
	case d.From.IsZero() && d.RawFrom == "":
		_, moved, err = l.insert(ctx, t, l.d.SQL.InsertJob, l.stamped(d.Job, d.Spec, d.To)...)
	default:
		from := l.format(d.From)
		if d.RawFrom != "" {
			if from, err = strconv.Unquote(d.RawFrom); err != nil {
				return fmt.Errorf("cursor %.40q is not one that Jobs has returned: %w", d.RawFrom,
					err)
			}
		}
		var n int64
		n, err = l.exec(ctx, t, l.d.SQL.MoveCursor, l.stamped(d.Spec, d.To, d.Job, from)...)
		moved = n > 0
	}
	if err == nil && !moved {
		return driver.ErrConflict
	}
	return err
}

// skip records a range of ticks that are not run, at the first of its places that is free.
func (l Ledger[T]) skip(ctx context.Context, t T, ref driver.Ref, job string, k ledger.Skip) error {
	for k := range k.Places() {
		var until, count any
		if k.Count > 1 {
			until, count = k.Last, k.Count
		}
		_, free, err := l.insert(ctx, t, l.d.SQL.InsertSkip, job, k.First, ref.Term, ref.PID,
			l.d.Text(ref.Hostname), l.d.Text(k.Reason), until, count)
		if err != nil || free {
			return err
		}
	}
	return nil
}

// What Runs asks, of all jobs and of one.
const (
	SQLRuns = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT ?`

	SQLRunsOfJob = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE job = ?
ORDER BY scheduled_at DESC LIMIT ?`
)

// Runs implements ledger.Store. A row that a hand has spoiled is left out: the error names it,
// and comes with the others.
func (l Ledger[T]) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	query, args := SQLRuns, []any{max(limit, 0)} // SQLite takes -1 for no limit
	if job != "" {
		query, args = SQLRunsOfJob, []any{l.d.Text(job), max(limit, 0)}
	}
	list := runList{runs: []ledger.Run{}}
	if err := l.d.Read(ctx, list.Dest(), list.add, query, args...); err != nil {
		return nil, l.d.Explain(err)
	}
	return list.runs, l.d.Explain(list.spoiled)
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

const sqlRun = `
SELECT ` + columns.RunColumns + ` FROM scheduler_runs WHERE job = ? AND scheduled_at = ?`

// Run implements ledger.Store.
func (l Ledger[T]) Run(ctx context.Context, job string,
	tick time.Time) (run ledger.Run, found bool, err error) {
	var r columns.Run
	err = l.d.ReadForLeader(ctx, r.Dest(), func() error {
		run, found = r.Value(), true
		return r.Err()
	}, sqlRun, l.d.Text(job), l.format(tick))
	return run, found && err == nil, l.d.Explain(err)
}

// ResetCursor implements ledger.Store.
func (l Ledger[T]) ResetCursor(ctx context.Context, o ledger.Action) (j ledger.Job, err error) {
	if err := o.Validate(); err != nil {
		return j, err
	}
	return within(ctx, l, l.d.Order, func(ctx context.Context,
		t T) (j ledger.Job, err error) {
		j.Name = o.Job
		if j.Cursor, err = l.now(ctx, t); err != nil {
			return j, err
		}
		found, err := l.change(ctx, t, []any{&j.Spec}, l.d.SQL.ResetCursor,
			[]any{j.Cursor, j.Cursor, o.Job}, l.d.SQL.Spec, o.Job)
		if err == nil && !found {
			err = ledger.NoJob(o.Job)
		}
		if err != nil {
			return j, err
		}
		return j, Note(ctx, l, t, j.Cursor, ledger.OrderResetCursor, o)
	})
}
