package mysql

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

	sqlPausedBy = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p
WHERE p.job IN (?, '') AND p.resumed_at IS NULL ORDER BY p.job DESC LIMIT 1`

	sqlJobExists = `
SELECT 1 FROM scheduler_jobs WHERE job = ?`
)

// mayStart makes the transaction fail while the job, or the whole scheduler, is paused.
func (s *Store) mayStart(ctx context.Context, tx tx, job string) error {
	var p columns.Pause
	if err := s.refer(ctx, tx, sqlPassGate, sqlPassedGate, 1); err != nil {
		return err
	}
	err := tx.row(ctx, sqlPausedBy, []any{job}, p.Dest()...)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return &ledger.PausedError{Pause: p.Value()}
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

const (
	sqlPendingOf = `
SELECT count(*) FROM scheduler_requests WHERE job = ?`

	sqlTaken = `
SELECT EXISTS (SELECT 1 FROM scheduler_runs WHERE job = ? AND scheduled_at = ?)`

	sqlInsertRequest = `
INSERT INTO scheduler_requests (job, requested_at, requested_by, reason) VALUES (?, ?, ?, ?)`
)

// Trigger implements ledger.Store.
func (s *Store) Trigger(ctx context.Context, o ledger.Action) (r ledger.Request, err error) {
	if err := o.Validate(); err != nil {
		return r, err
	}
	err = s.patient.write(ctx, func(ctx context.Context, tx tx) error {
		if err := isKnown(ctx, tx, o.Job); err != nil {
			return err
		}
		if err := s.mayStart(ctx, tx, o.Job); err != nil {
			return err
		}
		var n int
		if err := tx.row(ctx, sqlPendingOf, []any{o.Job}, &n); err != nil {
			return err
		}
		if n >= ledger.MaxPending {
			return &ledger.BacklogError{Job: o.Job, Pending: n, Limit: ledger.MaxPending}
		}
		now, err := tx.now(ctx)
		if err != nil {
			return err
		}
		for at := now; ; at = at.Add(time.Microsecond) {
			var taken bool
			err := tx.row(ctx, sqlTaken, []any{o.Job, formatTime(at)}, &taken)
			isNew := false
			if err == nil && !taken {
				_, isNew, err = tx.insert(ctx, sqlInsertRequest, o.Job, formatTime(at), o.By,
					o.Reason)
			}
			if err != nil {
				return err
			}
			if isNew {
				r = ledger.Request{Action: o, At: at}
				return note(ctx, tx, at, ledger.OrderRun, o)
			}
		}
	})
	if err != nil {
		return ledger.Request{}, s.explain(err)
	}
	return r, nil
}

const (
	sqlTakeRequest = `
DELETE FROM scheduler_requests WHERE job = ? AND requested_at = ?
RETURNING requested_by, reason`

	sqlInsertAnswer = `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt,
                            error, requested_by, request_reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''))`
)

// Answer implements ledger.Store. A request whose time has become a tick that is in the
// ledger is removed without a run of its own.
func (s *Store) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (run ledger.Run, started bool, err error) {
	answered := false
	err = s.runs.write(ctx, func(ctx context.Context, tx tx) error {
		answered = false
		if err := s.guard(ctx, tx, ref); err != nil {
			return err
		}
		run = ledger.Run{Job: r.Job, ScheduledAt: columns.Kept(r.At), Status: ledger.Skipped,
			Error: text(skip), Term: ref.Term, PID: ref.PID, Hostname: text(ref.Hostname)}
		if skip == "" {
			if err := s.mayStart(ctx, tx, r.Job); err != nil {
				return err
			}
			now, err := tx.now(ctx)
			if err != nil {
				return err
			}
			run.Status, run.StartedAt, run.Attempt = ledger.InProgress, now, 1
		}
		err := tx.row(ctx, sqlTakeRequest, []any{r.Job, formatTime(r.At)}, &run.RequestedBy,
			&run.RequestReason)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		run.ID, answered, err = tx.insert(ctx, sqlInsertAnswer, run.Job,
			formatTime(run.ScheduledAt), optional(run.StartedAt), string(run.Status), run.Term,
			run.PID, run.Hostname, run.Attempt, run.Error, run.RequestedBy, run.RequestReason)
		return err
	})
	if err != nil || !answered {
		return ledger.Run{}, false, s.explain(err)
	}
	return run, skip == "", nil
}

const (
	sqlInsertPause = `
INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason) VALUES (?, ?, ?, ?)`

	sqlPauseAgain = `
UPDATE scheduler_pauses
SET paused_at = ?, paused_by = ?, reason = ?, resumed_at = NULL, resumed_by = NULL
WHERE job = ? AND resumed_at IS NOT NULL`

	sqlPauseOf = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p WHERE p.job = ?`
)

// Pause implements ledger.Store. It waits for the starts that are under way.
func (s *Store) Pause(ctx context.Context, o ledger.Action) (p ledger.Pause, err error) {
	if err := o.Validate(); err != nil {
		return p, err
	}
	err = s.patient.write(ctx, func(ctx context.Context, tx tx) error {
		if o.Job != "" {
			if err := isKnown(ctx, tx, o.Job); err != nil {
				return err
			}
		}
		var id int
		if err := tx.row(ctx, sqlShutGate, nil, &id); err != nil {
			return err
		}
		for _, query := range []string{sqlEndGate, sqlNewGate} {
			if _, err := tx.exec(ctx, query); err != nil {
				return err
			}
		}
		now, err := tx.now(ctx)
		if err != nil {
			return err
		}
		changed, err := tx.exec(ctx, sqlPauseAgain, formatTime(now), o.By, o.Reason, o.Job)
		isNew := false
		if err == nil && changed == 0 {
			_, isNew, err = tx.insert(ctx, sqlInsertPause, o.Job, formatTime(now), o.By, o.Reason)
		}
		if err == nil && (changed > 0 || isNew) {
			err = note(ctx, tx, now, ledger.OrderPause, o)
		}
		if err != nil {
			return err
		}
		var c columns.Pause
		err = tx.row(ctx, sqlPauseOf, []any{o.Job}, c.Dest()...)
		p = c.Value()
		return err
	})
	if err != nil {
		return ledger.Pause{}, s.explain(err)
	}
	return p, nil
}

const sqlResume = `
UPDATE scheduler_pauses SET resumed_at = ?, resumed_by = ?
WHERE job = ? AND resumed_at IS NULL`

// Resume implements ledger.Store.
func (s *Store) Resume(ctx context.Context, job, by string) (resumed bool, err error) {
	o := ledger.Action{Job: job, By: by}
	if err := o.Validate(); err != nil {
		return false, err
	}
	err = s.shared.write(ctx, func(ctx context.Context, tx tx) error {
		now, err := tx.now(ctx)
		if err != nil {
			return err
		}
		n, err := tx.exec(ctx, sqlResume, formatTime(now), by, job)
		if resumed = n > 0; err == nil && resumed {
			err = note(ctx, tx, now, ledger.OrderResume, o)
		}
		return err
	})
	return resumed && err == nil, s.explain(err)
}

const (
	sqlPauses = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p ORDER BY p.job`

	sqlPending = `
SELECT job, count(*) FROM scheduler_requests GROUP BY job`

	// It is asked for each job that has requests and may start.
	sqlRequests = `
SELECT requested_at, requested_by, reason
FROM scheduler_requests WHERE job = ? ORDER BY requested_at LIMIT ?`
)

// Pending implements ledger.Store.
func (s *Store) Pending(ctx context.Context) (ledger.Pending, error) {
	in, err := s.pending(ctx)
	if err != nil {
		return ledger.Pending{}, s.explain(err)
	}
	slices.SortFunc(in.Requests, func(a, b ledger.Request) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Job, b.Job))
	})
	return in, nil
}

func (s *Store) pending(ctx context.Context) (in ledger.Pending, err error) {
	var (
		job string
		n   int
		p   columns.Pause
		r   ledger.Request
		at  columns.Time
	)
	if err := s.runs.each(ctx, p.Dest(), func() error {
		in.Pauses = append(in.Pauses, p.Value())
		return nil
	}, sqlPauses); err != nil {
		return in, err
	}
	if err := s.runs.each(ctx, []any{&job, &n}, func() error {
		if in.Backlog == nil {
			in.Backlog = map[string]int{}
		}
		in.Backlog[job] = n
		return nil
	}, sqlPending); err != nil {
		return in, err
	}
	for job := range in.Backlog {
		if in.Paused(job) != nil {
			continue
		}
		if err := s.runs.each(ctx, []any{&at, &r.By, &r.Reason}, func() error {
			r.Job, r.At = job, at.Time
			if at.Err == nil { // else Answer would not find it
				in.Requests = append(in.Requests, r)
			}
			return nil
		}, sqlRequests, job, ledger.PendingLimit); err != nil {
			return in, err
		}
	}
	return in, nil
}
