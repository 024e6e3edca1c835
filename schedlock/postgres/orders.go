package postgres

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// sqlTrigger moves the time on for what it can see. If another request takes
// the time meanwhile it writes nothing.
const sqlTrigger = `
WITH RECURSIVE ` + sqlNow + `, known AS (
    SELECT FROM scheduler_jobs j WHERE j.job = $1::text
), paused AS (
    SELECT ` + columns.PauseColumns + `
    FROM scheduler_pauses p WHERE p.resumed_at IS NULL AND p.job IN ('', $1)
), pending AS (
    SELECT count(*) AS n FROM scheduler_requests q WHERE q.job = $1
), free AS (
    SELECT s.now AS at FROM settings s CROSS JOIN pending WHERE pending.n < $4::bigint
    UNION ALL
    SELECT f.at + interval '1 microsecond' FROM free f
    WHERE EXISTS (SELECT FROM scheduler_runs r WHERE r.job = $1 AND r.scheduled_at = f.at)
       OR EXISTS (SELECT FROM scheduler_requests q WHERE q.job = $1 AND q.requested_at = f.at)
), asked AS (
    INSERT INTO scheduler_requests (job, requested_at, requested_by, reason)
    SELECT $1, max(f.at), $2::text, $3::text FROM free f
    HAVING EXISTS (SELECT FROM known) AND NOT EXISTS (SELECT FROM paused)
       AND EXISTS (SELECT FROM free)
    ON CONFLICT (job, requested_at) DO NOTHING
    RETURNING requested_at
), given AS (
    SELECT a.requested_at AS at, 'run' AS what, $1 AS job, $2 AS by, $3 AS reason FROM asked a
)` + sqlNote + `
SELECT EXISTS (SELECT FROM known), (SELECT n FROM pending), (SELECT requested_at FROM asked), p.*
FROM (SELECT) AS one
LEFT JOIN (SELECT * FROM paused ORDER BY job DESC LIMIT 1) AS p ON true`

// Trigger implements ledger.Store.
func (s *Store) Trigger(ctx context.Context, o ledger.Action) (ledger.Request, error) {
	if err := o.Validate(); err != nil {
		return ledger.Request{}, err
	}
	for {
		var (
			known   bool
			pending int64
			at      columns.Time
			p       columns.Pause
		)
		err := s.pool.QueryRow(ctx, sqlTrigger, text(o.Job), o.By, o.Reason,
			int64(ledger.MaxPending)).Scan(append([]any{&known, &pending, &at}, p.Dest()...)...)
		switch {
		case err != nil:
			return ledger.Request{}, s.explain(err)
		case !known:
			return ledger.Request{}, ledger.NoJob(o.Job)
		case p.Since.Valid:
			return ledger.Request{}, &ledger.PausedError{Pause: p.Value()}
		case pending >= ledger.MaxPending:
			return ledger.Request{}, &ledger.BacklogError{Job: o.Job, Pending: int(pending),
				Limit: ledger.MaxPending}
		case at.Valid:
			return ledger.Request{Action: o, At: at.Time}, nil
		}
	}
}

const sqlAnswer = sqlGuard + `
paused AS MATERIALIZED (
    SELECT ` + columns.PauseColumns + `
    FROM held CROSS JOIN scheduler_requests q JOIN scheduler_pauses p ON p.job IN ('', q.job)
    WHERE p.resumed_at IS NULL
      AND q.job = $3::text AND q.requested_at = $4::timestamptz AND $5::text = ''
    FOR KEY SHARE OF p
), taken AS (
    DELETE FROM scheduler_requests q USING held h
    WHERE q.job = $3 AND q.requested_at = $4 AND NOT EXISTS (SELECT FROM paused)
    RETURNING q.requested_by, q.reason, h.now
), started AS (
    INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt,
                                error, requested_by, request_reason)
    SELECT $3, $4, CASE WHEN $5 = '' THEN t.now END,
           CASE WHEN $5 = '' THEN 'in_progress' ELSE 'skipped' END,
           $2, $6::bigint, $7::text, CASE WHEN $5 = '' THEN 1 ELSE 0 END,
           nullif($5, ''), t.requested_by, t.reason
    FROM taken t
    ON CONFLICT (job, scheduled_at) DO NOTHING
    RETURNING ` + columns.RunColumns + `
)
SELECT ` + sqlStarted

// Answer implements ledger.Store. If a tick of the job's schedule has taken the
// time since it was asked for, the request goes, and nothing starts.
func (s *Store) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (run ledger.Run, started bool, err error) {
	run, err = s.start(ctx, sqlAnswer, []any{ref.Token.String(),
		ref.Term, r.Job, r.At, text(skip), int64(ref.PID), text(ref.Hostname)})
	return run, run.Status == ledger.InProgress, err
}

// Once Pause has returned, nothing starts. What starts an attempt reads the
// pauses FOR KEY SHARE, which needs a lock on the table (ROW SHARE) that it
// gets before it takes its snapshot (at READ COMMITTED, see isolation.go) and keeps
// until it has committed. Pause shuts the table against that lock. So it waits
// for the starts that may not see the pause, and all others wait for it, and
// see it. A heartbeat does not touch the table; what only reads it, such as
// Pending or pg_dump, does not wait.
const (
	// A client that died, or was cut off, must not keep the table shut.
	sqlPauseSettings = `
SELECT set_config('lock_timeout', '3s', true),
       set_config('idle_in_transaction_session_timeout', '5s', true), ` + sqlDurable

	sqlPauseShut = `LOCK TABLE scheduler_pauses IN EXCLUSIVE MODE`

	sqlPause = `
WITH begun AS (
    INSERT INTO scheduler_pauses AS p (job, paused_at, paused_by, reason)
    SELECT $1::text, clock_timestamp(), $2::text, $3::text
    WHERE $1 = '' OR EXISTS (SELECT FROM scheduler_jobs j WHERE j.job = $1)
    ON CONFLICT (job) DO UPDATE
    SET paused_at = excluded.paused_at, paused_by = excluded.paused_by,
        reason = excluded.reason, resumed_at = NULL, resumed_by = NULL
    WHERE p.resumed_at IS NOT NULL
    RETURNING ` + columns.PauseColumns + `
), given AS (
    SELECT b.paused_at AS at, 'pause' AS what, b.job, b.paused_by AS by, b.reason FROM begun b
)` + sqlNote + `
SELECT * FROM begun
UNION ALL
SELECT ` + columns.PauseColumns + `
FROM scheduler_pauses p WHERE p.job = $1 AND p.resumed_at IS NULL`
)

// Pause implements ledger.Store.
func (s *Store) Pause(ctx context.Context, o ledger.Action) (ledger.Pause, error) {
	if err := o.Validate(); err != nil {
		return ledger.Pause{}, err
	}
	var p columns.Pause
	err := s.patient.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlPauseSettings); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlPauseShut); err != nil {
			return err
		}
		return tx.QueryRow(ctx, sqlPause, text(o.Job), o.By, o.Reason).Scan(p.Dest()...)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ledger.Pause{}, ledger.NoJob(o.Job)
	case err != nil:
		return ledger.Pause{}, s.explain(err)
	}
	return p.Value(), nil
}

const sqlResume = `
WITH ` + sqlNow + `, resumed AS (
    UPDATE scheduler_pauses p SET resumed_at = s.now, resumed_by = $2::text
    FROM settings s WHERE p.job = $1::text AND p.resumed_at IS NULL
    RETURNING p.job, p.resumed_at, p.resumed_by
), given AS (
    SELECT r.resumed_at AS at, 'resume' AS what, r.job, r.resumed_by AS by, '' AS reason
    FROM resumed r
)` + sqlNote + `
SELECT 1 FROM resumed`

// Resume implements ledger.Store.
func (s *Store) Resume(ctx context.Context, job, by string) (resumed bool, err error) {
	if err := (ledger.Action{Job: job, By: by}).Validate(); err != nil {
		return false, err
	}
	tag, err := s.pool.Exec(ctx, sqlResume, text(job), by)
	return tag.RowsAffected() > 0, s.explain(err)
}

// sqlPending reads both tables from one snapshot: requests have a time, and come
// first; then, for each job, its pause, and how many requests it has.
const sqlPending = `
WITH pending AS MATERIALIZED (
    SELECT q.job, count(*) AS n FROM scheduler_requests q GROUP BY q.job
)
SELECT r.requested_at, r.job, NULL::timestamptz, r.requested_by, r.reason,
       NULL::timestamptz, NULL::text, NULL::bigint
FROM pending w CROSS JOIN LATERAL (
    SELECT * FROM scheduler_requests q WHERE q.job = w.job ORDER BY q.requested_at LIMIT $1::bigint
) r
WHERE NOT EXISTS (SELECT FROM scheduler_pauses p
                  WHERE p.job IN ('', w.job) AND p.resumed_at IS NULL)
UNION ALL
SELECT NULL, ` + columns.PauseColumns + `, NULL FROM scheduler_pauses p
UNION ALL
SELECT NULL, w.job, NULL, NULL, NULL, NULL, NULL, w.n FROM pending w
ORDER BY 1, 2`

// Pending implements ledger.Store; the pauses come in the order of their jobs.
func (s *Store) Pending(ctx context.Context) (ledger.Pending, error) {
	var (
		in ledger.Pending
		at columns.Time
		p  columns.Pause
		n  pgtype.Int8
	)
	err := s.runs.each(ctx, slices.Concat([]any{&at}, p.Dest(), []any{&n}), func() error {
		switch {
		case at.Valid:
			in.Requests = append(in.Requests, ledger.Request{Action: p.Value().Action,
				At: at.Time})
		case n.Valid:
			if in.Backlog == nil {
				in.Backlog = map[string]int{}
			}
			in.Backlog[p.Job.String] = int(n.Int64)
		default:
			in.Pauses = append(in.Pauses, p.Value())
		}
		return nil
	}, sqlPending, s.mode(), int64(ledger.PendingLimit))
	if err != nil {
		return ledger.Pending{}, s.explain(err)
	}
	return in, nil
}
