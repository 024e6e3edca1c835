package postgres

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock/driver"
)

// sqlLook reads the newest term and the lock row from one snapshot. What can be
// worked out from its columns is, by Look: each standby asks once a second.
// Without a history it has no row; then sqlLookAnyway has.
var (
	sqlLook       = sqlView + sqlConfirmed + sqlFromNewest
	sqlLookAnyway = sqlView + sqlEmptySince + sqlFromNothing

	sqlLookAtSession = sqlView + sqlConfirmed + `, ` + sqlSessionState + `, ` + sqlBackend +
		sqlFromNewest
	sqlLookAtSessionAnyway = sqlView + sqlEmptySince + `, ` + sqlSessionState + `, ` + sqlBackend +
		sqlFromNothing

	sqlFromNewest = `
FROM ` + sqlNewest + ` LEFT JOIN scheduler_lock l ON l.id = 1`
	sqlFromNothing = `
FROM (SELECT) AS one LEFT JOIN ` + sqlNewest + ` ON true LEFT JOIN scheduler_lock l ON l.id = 1`

	sqlView = `
SELECT l.pid, l.hostname, l.created_at, l.heartbeat_at, l.token, l.term, l.beat, l.state,
       l.ttl_ms, l.renew_deadline_ms, l.heartbeat_ms, l.grace_ms, l.ttl_only, l.app, l.program,
       t.term, t.token, t.pid, t.hostname, t.acquired_at, t.ended_at,
       t.end_reason, t.next_term, t.ttl_ms,
       t.revoked_at, t.revoked_by, t.revoke_reason, t.app, t.program,
       clock_timestamp(), pg_postmaster_start_time(), ` + sqlTimeline + `,
       ` + sqlHidden + `,
       `

	// On which timeline the newest term was acquired, or last confirmed by its
	// holder; and an empty history, which on another timeline does not mean that
	// nobody has ever held the lock.
	sqlConfirmed  = `CASE WHEN l.term = t.term THEN l.timeline ELSE t.timeline END`
	sqlEmptySince = `coalesce(l.timeline, ` + sqlOrigin + `, 'unknown')`

	// sqlOrigin is the timeline on which the tables were made: see migration 7.
	sqlOrigin = `(SELECT o.timeline FROM scheduler_lock_schema o WHERE o.version = 7)`

	sqlNewest = `(
    SELECT term, token, pid, hostname, acquired_at, ended_at, end_reason, next_term, ttl_ms,
           revoked_at, revoked_by, revoke_reason, timeline, app, program
    FROM scheduler_terms ORDER BY term DESC LIMIT 1
) AS t`
)

// sqlBlocker finds who keeps the lock row locked, or may: whoever has a lock on
// the table, in a transaction that is at least $1 ms old. It is a statement of its
// own, for a holder that gives no sign of life only: its views cost more than all
// of sqlLook, even where they are not read. The server shows a session of another
// role without its times, client and statement. Of the statement only the beginning
// is shown, up to what may be a value: what is named here may be shown to others.
const sqlBlocker = `
SELECT concat_ws(', ',
           'backend ' || coalesce(k.pid::text, '(prepared transaction)'),
           'application "' || a.application_name || '"',
           'client ' || host(a.client_addr),
           'in a transaction since ' || coalesce(
               to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               'an unknown time'),
           CASE WHEN a.state IS NOT NULL THEN a.state || ' "' || left(
               regexp_replace(regexp_replace(a.query, '(''|[$][$]|[0-9]{2}).*', '…'),
                              '[[:space:]]+', ' ', 'g'), 80) || '"' END,
           'waits for ' || w.others)
FROM (
    SELECT k.pid
    FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
    WHERE k.locktype = 'relation' AND k.relation = 'scheduler_lock'::regclass AND k.granted
      AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND k.mode <> 'AccessShareLock' AND k.pid IS DISTINCT FROM pg_backend_pid()
      AND coalesce(a.xact_start <= clock_timestamp() - $1::bigint * interval '1 millisecond', true)
    ORDER BY a.xact_start NULLS LAST LIMIT 1
) AS k
LEFT JOIN pg_stat_activity a ON a.pid = k.pid
LEFT JOIN LATERAL (
    SELECT string_agg(DISTINCT concat_ws(', ',
               'backend ' || coalesce(nullif(o.pid, 0)::text, '(prepared transaction)'),
               'application "' || b.application_name || '"'), ' and ') AS others
    FROM unnest(pg_blocking_pids(k.pid)) AS o (pid)
    LEFT JOIN pg_stat_activity b ON b.pid = o.pid
) AS w ON true`

// blocker asks for that; "" if there is nobody.
func (s *Store) blocker(ctx context.Context, conn *pgx.Conn,
	age time.Duration) (text string, err error) {
	err = s.on(conn).QueryRow(ctx, sqlBlocker, s.mode(), age.Milliseconds()).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return text, err
}

// Look implements driver.Store.
func (s *Store) Look(ctx context.Context) (driver.Snapshot, error) {
	return s.look(ctx, sqlLook, sqlLookAnyway, false)
}

// LookAtSession implements driver.Store. It takes longer the more
// sessions the server has: PostgreSQL copies what it knows of all of them.
func (s *Store) LookAtSession(ctx context.Context) (driver.Snapshot, error) {
	return s.look(ctx, sqlLookAtSession, sqlLookAtSessionAnyway, true)
}

func (s *Store) look(ctx context.Context, query, anyway string,
	closely bool) (view driver.Snapshot, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var c struct {
			lock           lockColumns
			newest         termColumns
			now, started   time.Time
			timeline, last pgtype.Text // of the server, and when the newest term was last confirmed
			session        pgtype.Text // of the holder: how it is, …
			backend        string      // … and which it is
			hidden         bool        // rows may be
		}
		dest := make([]any, 0, 36)
		dest = append(dest, c.lock.dest()...)
		dest = append(dest, c.newest.dest()...)
		dest = append(dest, &c.now, &c.started, &c.timeline, &c.hidden, &c.last)
		if closely {
			dest = append(dest, &c.session, &c.backend)
		}
		err := s.on(conn).QueryRow(ctx, query, s.mode()).Scan(dest...)
		if errors.Is(err, pgx.ErrNoRows) {
			err = s.on(conn).QueryRow(ctx, anyway, s.mode()).Scan(dest...)
		}
		if err == nil && c.hidden {
			err = hidden(ctx, s.on(conn))
		}
		if err != nil {
			return err
		}
		view.Row, view.Newest, view.Now = c.lock.row(), c.newest.term(), c.now.UTC()
		view.Incarnation = epoch(c.timeline, c.started)
		view.FailedOver = c.timeline.Valid && c.last.Valid && c.last.String != c.timeline.String
		view.Sign = s.sign(view.Row, c.session.String)
		if view.Row != nil {
			view.Row.Session = c.backend
		}
		if view.Row != nil && (view.Sign == driver.SignEnded || overdue(view)) {
			view.Blocker, err = s.blocker(ctx, conn, blockerAge)
		}
		return err
	})
	if err != nil {
		return driver.Snapshot{}, err
	}
	return view, nil
}

// blockerAge is how old a transaction must be to be named by a look: a healthy
// leader's own last for milliseconds.
const blockerAge = time.Second

// overdue reports whether two heartbeats of the holder are missing.
func overdue(v driver.Snapshot) bool {
	limit := min(2*v.Row.Timing.HeartbeatInterval, v.Row.Timing.TTL, driver.MaxTTL)
	return v.Now.Sub(v.Row.HeartbeatAt) > limit
}

// epoch is Snapshot.Incarnation.
func epoch(timeline pgtype.Text, started time.Time) string {
	if !timeline.Valid {
		timeline.String = "replica"
	}
	return timeline.String + " " + strconv.FormatInt(started.UnixMicro(), 10)
}

// lockColumns takes what stands in the row: all NULL if there is none.
type lockColumns struct {
	pid, term, beat, ttl, renew, heartbeat, grace pgtype.Int8
	hostname, token, state, ttlOnly, app, program pgtype.Text
	created, heartbeatAt                          pgtype.Timestamptz
}

func (c *lockColumns) dest() []any {
	return []any{&c.pid, &c.hostname, &c.created, &c.heartbeatAt, &c.token, &c.term, &c.beat,
		&c.state, &c.ttl, &c.renew, &c.heartbeat,
		&c.grace, &c.ttlOnly, &c.app, &c.program}
}

func (c *lockColumns) row() *driver.Row {
	if !c.pid.Valid {
		return nil
	}
	token, _ := driver.ParseToken(c.token.String) // an edited one is nobody's
	return &driver.Row{
		Ref: driver.Ref{
			Owner: driver.Owner{PID: int(c.pid.Int64), Hostname: c.hostname.String},
			Token: token,
			Term:  c.term.Int64,
		},
		RawToken:    c.token.String,
		Beat:        c.beat.Int64,
		State:       driver.State(c.state.String),
		CreatedAt:   stamp(c.created),
		HeartbeatAt: stamp(c.heartbeatAt),
		Timing: driver.Timing{
			TTL:               fromMillis(c.ttl.Int64),
			RenewDeadline:     fromMillis(c.renew.Int64),
			HeartbeatInterval: fromMillis(c.heartbeat.Int64),
		},
		Grace:   fromMillis(c.grace.Int64),
		TTLOnly: c.ttlOnly.String,
		App:     driver.App{Name: c.app.String, Program: c.program.String},
	}
}

type termColumns struct {
	number, pid, next, ttl   pgtype.Int8
	token, hostname, reason  pgtype.Text
	acquired, ended, revoked pgtype.Timestamptz
	revokedBy, revokeReason  pgtype.Text
	app, program             pgtype.Text
}

func (c *termColumns) dest() []any {
	return []any{&c.number, &c.token, &c.pid, &c.hostname, &c.acquired, &c.ended, &c.reason,
		&c.next, &c.ttl,
		&c.revoked, &c.revokedBy, &c.revokeReason, &c.app, &c.program}
}

func (c *termColumns) term() *driver.Term {
	if !c.number.Valid {
		return nil
	}
	token, _ := driver.ParseToken(c.token.String)
	return &driver.Term{
		Ref: driver.Ref{
			Owner: driver.Owner{PID: int(c.pid.Int64), Hostname: c.hostname.String},
			Token: token,
			Term:  c.number.Int64,
		},
		AcquiredAt: stamp(c.acquired),
		EndedAt:    stamp(c.ended),
		EndReason:  driver.EndReason(c.reason.String),
		NextTerm:   c.next.Int64,
		TTL:        fromMillis(c.ttl.Int64),
		App:        driver.App{Name: c.app.String, Program: c.program.String},
		Revoked: driver.Revocation{At: stamp(c.revoked), By: c.revokedBy.String,
			Reason: c.revokeReason.String},
	}
}

// stamp reads a time, zero if it is NULL. An infinite one, which only a hand
// can have written, becomes the first or the last second that Go can show.
func stamp(t pgtype.Timestamptz) time.Time {
	switch {
	case !t.Valid:
		return time.Time{}
	case t.InfinityModifier == pgtype.Infinity:
		return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	case t.InfinityModifier == pgtype.NegativeInfinity:
		return time.Unix(0, 0).UTC()
	}
	return t.Time.UTC()
}

// fromMillis reads a duration: what is too long for Go becomes the longest.
func fromMillis(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}
