package ledgersql

import (
	"cmp"
	"context"
	"slices"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const (
	sqlPausedBy = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p
WHERE p.job IN (?, '') AND p.resumed_at IS NULL ORDER BY p.job DESC LIMIT 1`

	sqlJobExists = `
SELECT 1 FROM scheduler_jobs WHERE job = ?`
)

// mayStart makes the transaction fail while the job, or the whole scheduler, is paused.
func (l Ledger[T]) mayStart(ctx context.Context, t T, job string) error {
	if l.d.PassGate != nil {
		if err := l.d.PassGate(ctx, t); err != nil {
			return err
		}
	}
	var p columns.Pause
	paused, err := l.row(ctx, t, p.Dest(), sqlPausedBy, job)
	if err == nil && paused {
		err = &ledger.PausedError{Pause: p.Value()}
	}
	return err
}

// isKnown makes the transaction fail unless the job has a row.
func (l Ledger[T]) isKnown(ctx context.Context, t T, job string) error {
	var one int
	found, err := l.row(ctx, t, []any{&one}, sqlJobExists, job)
	if err == nil && !found {
		err = ledger.NoJob(job)
	}
	return err
}

const sqlPendingOf = `
SELECT count(*) FROM scheduler_requests WHERE job = ?`

// Trigger implements ledger.Store.
func (l Ledger[T]) Trigger(ctx context.Context, o ledger.Action) (r ledger.Request, err error) {
	if err := o.Validate(); err != nil {
		return r, err
	}
	return within(ctx, l, l.d.Patient, func(ctx context.Context,
		t T) (r ledger.Request, err error) {
		if err := l.isKnown(ctx, t, o.Job); err != nil {
			return r, err
		}
		if err := l.mayStart(ctx, t, o.Job); err != nil {
			return r, err
		}
		var n int
		if _, err := l.row(ctx, t, []any{&n}, sqlPendingOf, o.Job); err != nil {
			return r, err
		}
		if n >= ledger.MaxPending {
			return r, &ledger.BacklogError{Job: o.Job, Pending: n, Limit: ledger.MaxPending}
		}
		at, err := l.now(ctx, t)
		if err != nil {
			return r, err
		}
		for ; ; at = at.Add(time.Microsecond) {
			_, isNew, err := l.insert(ctx, t, l.d.SQL.InsertRequest, o.Job, at, o.By, o.Reason,
				o.Job, at)
			if err != nil {
				return r, err
			}
			if isNew {
				return ledger.Request{Action: o, At: at}, Note(ctx, l, t, at, ledger.OrderRun, o)
			}
		}
	})
}

const sqlTakeRequest = `
DELETE FROM scheduler_requests WHERE job = ? AND requested_at = ?
RETURNING requested_by, reason`

// Answer implements ledger.Store. A request whose time has become a tick that is in the ledger is
// removed without a run of its own.
func (l Ledger[T]) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (run ledger.Run, started bool, err error) {
	run, err = within(ctx, l, l.d.Attempt, func(ctx context.Context,
		t T) (run ledger.Run, err error) {
		if err := l.d.Guard(ctx, t, ref); err != nil {
			return run, err
		}
		run = ledger.Run{Job: r.Job, ScheduledAt: columns.Kept(r.At), Status: ledger.Skipped,
			Error: l.d.Text(skip), Term: ref.Term, PID: ref.PID, Hostname: l.d.Text(ref.Hostname)}
		if skip == "" {
			if err := l.mayStart(ctx, t, r.Job); err != nil {
				return run, err
			}
			run.Status, run.Attempt = ledger.InProgress, 1
			if run.StartedAt, err = l.now(ctx, t); err != nil {
				return run, err
			}
		}
		found, err := l.row(ctx, t, []any{&run.RequestedBy, &run.RequestReason}, sqlTakeRequest,
			r.Job, r.At)
		if err != nil || !found {
			return run, err
		}
		run.ID, _, err = l.insert(ctx, t, l.d.SQL.InsertAnswer, run.Job, run.ScheduledAt,
			optional(run.StartedAt), string(run.Status), run.Term, run.PID, run.Hostname,
			run.Attempt, run.Error, run.RequestedBy, run.RequestReason)
		return run, err
	})
	if err != nil || run.ID == 0 {
		return ledger.Run{}, false, err
	}
	return run, skip == "", nil
}

const sqlPauseOf = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p WHERE p.job = ?`

// Pause implements ledger.Store. A pause that is in force stays as it is.
func (l Ledger[T]) Pause(ctx context.Context, o ledger.Action) (p ledger.Pause, err error) {
	if err := o.Validate(); err != nil {
		return p, err
	}
	return within(ctx, l, l.d.Patient, func(ctx context.Context,
		t T) (p ledger.Pause, err error) {
		if o.Job != "" {
			if err := l.isKnown(ctx, t, o.Job); err != nil {
				return p, err
			}
		}
		if l.d.ShutGate != nil {
			if err := l.d.ShutGate(ctx, t); err != nil {
				return p, err
			}
		}
		now, err := l.now(ctx, t)
		if err != nil {
			return p, err
		}
		var n int64
		if l.d.SQL.PauseAgain != "" {
			n, err = l.exec(ctx, t, l.d.SQL.PauseAgain, now, o.By, o.Reason, o.Job)
		}
		changed := n > 0
		if err == nil && !changed {
			_, changed, err = l.insert(ctx, t, l.d.SQL.InsertPause, o.Job, now, o.By, o.Reason)
		}
		if err == nil && changed {
			err = Note(ctx, l, t, now, ledger.OrderPause, o)
		}
		if err != nil {
			return p, err
		}
		var c columns.Pause
		_, err = l.row(ctx, t, c.Dest(), sqlPauseOf, o.Job)
		return c.Value(), err
	})
}

const sqlResume = `
UPDATE scheduler_pauses SET resumed_at = ?, resumed_by = ?
WHERE job = ? AND resumed_at IS NULL`

// Resume implements ledger.Store.
func (l Ledger[T]) Resume(ctx context.Context, job, by string) (resumed bool, err error) {
	o := ledger.Action{Job: job, By: by}
	if err := o.Validate(); err != nil {
		return false, err
	}
	return within(ctx, l, l.d.Order, func(ctx context.Context, t T) (bool, error) {
		now, err := l.now(ctx, t)
		if err != nil {
			return false, err
		}
		n, err := l.exec(ctx, t, sqlResume, now, by, job)
		if err == nil && n > 0 {
			err = Note(ctx, l, t, now, ledger.OrderResume, o)
		}
		return n > 0, err
	})
}

const (
	sqlPauses = `
SELECT ` + columns.PauseColumns + ` FROM scheduler_pauses p ORDER BY p.job`

	sqlPending = `
SELECT job, count(*) FROM scheduler_requests GROUP BY job`

	// One statement for all jobs that have no more requests than Pending returns: a leader looks
	// before it begins, and often then.
	sqlRequests = sqlRequest + `
JOIN (SELECT job FROM scheduler_requests GROUP BY job HAVING count(*) <= ?) w ON w.job = q.job`

	// It is asked for each job that has more, and may start.
	sqlFirstRequests = sqlRequest + `
WHERE q.job = ? ORDER BY q.requested_at LIMIT ?`

	sqlRequest = `
SELECT q.job, q.requested_at, CAST(q.requested_at AS CHAR), q.requested_by, q.reason
FROM scheduler_requests q`
)

// Pending implements ledger.Store. A request whose time a hand has spoiled can't be answered: it
// stays in the table, and does not keep a leader from all others.
func (l Ledger[T]) Pending(ctx context.Context) (ledger.Pending, error) {
	in, err := l.pending(ctx)
	if err != nil {
		return ledger.Pending{}, l.d.Explain(err)
	}
	slices.SortFunc(in.Requests, func(a, b ledger.Request) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Job, b.Job))
	})
	return in, nil
}

func (l Ledger[T]) pending(ctx context.Context) (in ledger.Pending, err error) {
	var (
		job string
		n   int
		p   columns.Pause
		r   ledger.Request
		at  columns.Time
		raw string
	)
	if err := l.d.ReadForLeader(ctx, p.Dest(), func() error {
		in.Pauses = append(in.Pauses, p.Value())
		return nil
	}, sqlPauses); err != nil {
		return in, err
	}
	if err := l.d.ReadForLeader(ctx, []any{&job, &n}, func() error {
		if in.Backlog == nil {
			in.Backlog = map[string]int{}
		}
		in.Backlog[job] = n
		return nil
	}, sqlPending); err != nil {
		return in, err
	}
	many := func(job string) bool { return in.Backlog[job] > ledger.PendingLimit }
	ask := func(of bool, query string, args ...any) error {
		return l.d.ReadForLeader(ctx, []any{&r.Job, &at, &raw, &r.By, &r.Reason}, func() error {
			r.At = at.Time
			if many(r.Job) == of && in.Paused(r.Job) == nil && // it may have changed meanwhile
				l.format(r.At) == raw { // as Answer will look for it
				in.Requests = append(in.Requests, r)
			}
			return nil
		}, query, args...)
	}
	few := false
	for job := range in.Backlog {
		switch {
		case in.Paused(job) != nil:
		case !many(job):
			few = true
		default:
			if err := ask(true, sqlFirstRequests, job, ledger.PendingLimit); err != nil {
				return in, err
			}
		}
	}
	if few {
		err = ask(false, sqlRequests, ledger.PendingLimit)
	}
	return in, err
}

const sqlInsertAudit = `
INSERT INTO scheduler_audit (at, what, job, ` + "`by`" + `, reason) VALUES (?, ?, ?, ?, ?)`

// Note writes down an order, in the transaction that carries it out.
func Note[T Conn](ctx context.Context, l Ledger[T], t T, at time.Time, what string,
	o ledger.Action) error {
	_, err := l.exec(ctx, t, sqlInsertAudit, at, what, o.Job, o.By, o.Reason)
	old, found := int64(ledger.KeepAudit), true
	if err == nil && l.d.SQL.OldAudit != "" {
		found, err = l.row(ctx, t, []any{&old}, l.d.SQL.OldAudit, old)
	}
	if err == nil && found {
		_, err = l.exec(ctx, t, l.d.SQL.TrimAudit, old)
	}
	return err
}

const (
	sqlAudit = `
SELECT ` + columns.AuditColumns + ` FROM scheduler_audit a ORDER BY a.id DESC LIMIT ?`

	sqlAuditOfJob = `
SELECT ` + columns.AuditColumns + ` FROM scheduler_audit a WHERE a.job = ?
ORDER BY a.id DESC LIMIT ?`
)

// Audit implements ledger.Store.
func (l Ledger[T]) Audit(ctx context.Context, job string, limit int) ([]ledger.AuditEntry, error) {
	query, args := sqlAudit, []any{max(limit, 0)}
	if job != "" {
		query, args = sqlAuditOfJob, []any{l.d.Text(job), max(limit, 0)}
	}
	var a columns.Audit
	return all(ctx, l, l.d.Read, a.Dest(), a.Value, query, args...)
}
