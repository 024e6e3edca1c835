package postgres

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
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
SELECT ` + columns.LockColumns + `, l.grace_ms, l.ttl_only,
       ` + columns.TermColumns + `,
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
               regexp_replace(regexp_replace(a.query, '(''|[$][^0-9]|[0-9]{2}).*', '...'),
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
			lock           columns.Lock
			grace          pgtype.Int8
			ttlOnly        pgtype.Text
			newest         columns.Term
			now, started   time.Time
			timeline, last pgtype.Text // of the server, and when the newest term was last confirmed
			session        pgtype.Text // of the holder: how it is, …
			backend        string      // … and which it is
			hidden         bool        // rows may be
		}
		dest := slices.Concat(c.lock.Dest(), []any{&c.grace, &c.ttlOnly}, c.newest.Dest(),
			[]any{&c.now, &c.started, &c.timeline, &c.hidden, &c.last})
		dest = native(dest)
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
		view.Row, view.Newest, view.Now = c.lock.Row(), c.newest.Newest(), c.now.UTC()
		view.Incarnation = epoch(c.timeline, c.started)
		view.FailedOver = c.timeline.Valid && c.last.Valid && c.last.String != c.timeline.String
		view.Sign = s.sign(view.Row, c.session.String)
		if view.Row == nil {
			return nil
		}
		view.Row.Grace, view.Row.TTLOnly = columns.Millis(c.grace.Int64), c.ttlOnly.String
		view.Row.Session = c.backend
		if view.Sign == driver.SignEnded || overdue(view) {
			// Who may not ask, or is not answered in time, has looked all the same.
			view.Blocker, _ = s.blocker(ctx, conn, blockerAge)
		}
		return nil
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
