package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const (
	sqlPausedBy = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p
WHERE job IN (?1, '') AND resumed_at IS NULL ORDER BY job DESC LIMIT 1`

	sqlJobExists = `
SELECT 1 FROM scheduler_jobs WHERE job = ?1`
)

// mayStart makes the transaction fail while the job, or the whole scheduler,
// is paused.
func mayStart(ctx context.Context, tx tx, job string) error {
	var p columns.Pause
	return tx.s.each(ctx, sqlPausedBy, []any{job}, p.Dest(), func() error {
		return &ledger.PausedError{Pause: p.Value()}
	})
}

// isKnown makes the transaction fail unless the job has a row.
func isKnown(ctx context.Context, tx tx, job string) error {
	var one int
	err := tx.row(ctx, sqlJobExists, []any{job}, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return ledger.NoJob(job)
	}
	return err
}

const sqlPendingOf = `
SELECT count(*) FROM scheduler_requests WHERE job = ?1`

const sqlInsertRequest = `
INSERT INTO scheduler_requests (job, requested_at, requested_by, reason)
SELECT ?1, ?2, ?3, ?4
WHERE NOT EXISTS (SELECT 1 FROM scheduler_runs WHERE job = ?1 AND scheduled_at = ?2)
ON CONFLICT (job, requested_at) DO NOTHING`

// Trigger implements ledger.Store.
func (s *Store) Trigger(ctx context.Context, o ledger.Action) (r ledger.Request, err error) {
	if err := o.Validate(); err != nil {
		return r, err
	}
	return within(ctx, s.write, func(ctx context.Context, tx tx) (r ledger.Request, err error) {
		if err := isKnown(ctx, tx, o.Job); err != nil {
			return r, err
		}
		if err := mayStart(ctx, tx, o.Job); err != nil {
			return r, err
		}
		var n int
		if err := tx.row(ctx, sqlPendingOf, []any{o.Job}, &n); err != nil {
			return r, err
		}
		if n >= ledger.MaxPending {
			return r, &ledger.BacklogError{Job: o.Job, Pending: n, Limit: ledger.MaxPending}
		}
		for at := columns.Kept(s.now()); ; at = at.Add(time.Microsecond) {
			n, err := tx.exec(ctx, sqlInsertRequest, o.Job, formatTime(at), o.By, o.Reason)
			if err != nil {
				return r, err
			}
			if n > 0 {
				return ledger.Request{Action: o, At: at}, note(ctx, tx, at, ledger.OrderRun, o)
			}
		}
	})
}

const (
	sqlTakeRequest = `
DELETE FROM scheduler_requests WHERE job = ?1 AND requested_at = ?2
RETURNING requested_by, reason`

	sqlInsertAnswer = `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt,
                            error, requested_by, request_reason)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (job, scheduled_at) DO NOTHING
RETURNING id`
)

// Answer implements ledger.Store. A request whose time has become a tick that
// is in the ledger is removed without a run of its own.
func (s *Store) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (run ledger.Run, started bool, err error) {
	run, err = within(ctx, s.share, func(ctx context.Context, tx tx) (run ledger.Run, err error) {
		if err := guard(ctx, tx, ref); err != nil {
			return run, err
		}
		run = ledger.Run{Job: r.Job, ScheduledAt: columns.Kept(r.At), Status: ledger.Skipped,
			Error: skip, Term: ref.Term, PID: ref.PID, Hostname: ref.Hostname}
		if skip == "" {
			if err := mayStart(ctx, tx, r.Job); err != nil {
				return run, err
			}
			run.Status, run.StartedAt, run.Attempt = ledger.InProgress, columns.Kept(s.now()), 1
		}
		err = tx.row(ctx, sqlTakeRequest, []any{r.Job, formatTime(r.At)}, &run.RequestedBy,
			&run.RequestReason)
		if err == nil {
			err = tx.row(ctx, sqlInsertAnswer, []any{run.Job,
				formatTime(run.ScheduledAt), formatOptional(run.StartedAt),
				string(run.Status), run.Term, run.PID, run.Hostname, run.Attempt,
				nullText(run.Error),
				run.RequestedBy, nullText(run.RequestReason)}, &run.ID)
		}
		if errors.Is(err, sql.ErrNoRows) {
			return ledger.Run{}, nil
		}
		return run, err
	})
	return run, run.ID != 0 && skip == "", err
}

const (
	// A pause that is in force stays as it is.
	sqlPause = `
INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (job) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by,
    reason = excluded.reason, resumed_at = NULL, resumed_by = NULL
WHERE resumed_at IS NOT NULL`

	sqlPauseOf = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p WHERE job = ?1`
)

// Pause implements ledger.Store.
func (s *Store) Pause(ctx context.Context, o ledger.Action) (p ledger.Pause, err error) {
	if err := o.Validate(); err != nil {
		return p, err
	}
	return within(ctx, s.write, func(ctx context.Context, tx tx) (p ledger.Pause, err error) {
		if o.Job != "" {
			if err := isKnown(ctx, tx, o.Job); err != nil {
				return p, err
			}
		}
		now := s.now()
		n, err := tx.exec(ctx, sqlPause, o.Job, formatTime(now), o.By, o.Reason)
		if err == nil && n > 0 {
			err = note(ctx, tx, now, ledger.OrderPause, o)
		}
		if err != nil {
			return p, err
		}
		var c columns.Pause
		err = tx.row(ctx, sqlPauseOf, []any{o.Job}, c.Dest()...)
		return c.Value(), err
	})
}

const sqlResume = `
UPDATE scheduler_pauses SET resumed_at = ?1, resumed_by = ?2 WHERE job = ?3 AND resumed_at IS NULL`

// Resume implements ledger.Store.
func (s *Store) Resume(ctx context.Context, job, by string) (resumed bool, err error) {
	o := ledger.Action{Job: job, By: by}
	if err := o.Validate(); err != nil {
		return false, err
	}
	return within(ctx, s.write, func(ctx context.Context, tx tx) (bool, error) {
		now := s.now()
		n, err := tx.exec(ctx, sqlResume, formatTime(now), by, job)
		if err == nil && n > 0 {
			err = note(ctx, tx, now, ledger.OrderResume, o)
		}
		return n > 0, err
	})
}

const (
	sqlPending = `
SELECT job, count(*) FROM scheduler_requests GROUP BY job`

	// It is asked for each job that has requests and may start.
	sqlRequests = `
SELECT requested_at, requested_by, reason
FROM scheduler_requests WHERE job = ?1 ORDER BY requested_at LIMIT ?2`

	sqlPauses = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p ORDER BY job`
)

// Pending implements ledger.Store. A request whose time a hand has spoiled cannot
// be answered: it stays in the table, and does not keep a leader from all
// others.
func (s *Store) Pending(ctx context.Context) (in ledger.Pending, err error) {
	err = s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		var (
			job string
			n   int
			p   columns.Pause
		)
		err := s.each(ctx, sqlPending, nil, []any{&job, &n}, func() error {
			if in.Backlog == nil {
				in.Backlog = map[string]int{}
			}
			in.Backlog[job] = n
			return nil
		})
		if err != nil {
			return err
		}
		err = s.each(ctx, sqlPauses, nil, p.Dest(), func() error {
			in.Pauses = append(in.Pauses, p.Value())
			return nil
		})
		for job := range in.Backlog {
			if err == nil && in.Paused(job) == nil {
				err = s.requests(ctx, job, &in.Requests)
			}
		}
		return err
	})
	slices.SortFunc(in.Requests, func(a, b ledger.Request) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Job, b.Job))
	})
	return in, err
}

// requests appends those of a job; the turn is held.
func (s *Store) requests(ctx context.Context, job string, list *[]ledger.Request) error {
	r, at := ledger.Request{Action: ledger.Action{Job: job}}, ""
	return s.each(ctx, sqlRequests, []any{job, ledger.PendingLimit}, []any{&at, &r.By, &r.Reason},
		func() error {
			if r.At = stamp(at); formatTime(r.At) == at { // as Answer will look for it
				*list = append(*list, r)
			}
			return nil
		})
}
