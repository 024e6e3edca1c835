package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/schedlock/driver"
)

// keepTerms is how many terms of history stay. A few more are in the table until
// the next sweep.
const keepTerms = 1000

const (
	// sqlTimeline names the server's history: it changes with every promotion,
	// after which the last commits may be missing. NULL on a replica.
	sqlTimeline = `CASE WHEN pg_is_in_recovery() THEN NULL
                    ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END`

	// sqlEpoch is Snapshot.Incarnation, as function epoch writes it.
	sqlEpoch = `coalesce(` + sqlTimeline +
		`, 'replica') || ' ' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint`

	sqlDurable = `set_config('synchronous_commit', CASE current_setting('synchronous_commit')
           WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)`

	// sqlNow begins a statement that needs the time, and commits durably.
	sqlNow = `settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
)`
)

var (
	// sqlSettings bounds every wait for a lock, and makes the commit durable on
	// this server at least, for this one statement (in a transaction of its
	// own): no session state, so it works behind a pooler.
	sqlSettings = `
    SELECT clock_timestamp() AS now,
           ` + sqlTimeline + ` AS timeline,
           ` + sqlEpoch + ` AS epoch,
           set_config('lock_timeout', '1s', true),
           ` + sqlDurable + `,
           CASE WHEN $10::bigint IS NOT NULL THEN ` + sqlHold("$5", "false") + ` END
    WHERE NOT ` + sqlHidden
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

// sqlJump is by how much a term is above what it would be without a fail-over,
// for each timeline since the newest acquisition that is known. Others may be
// lost. Each had the last term + 1 (or what its claimant had seen), or the time
// of a clock in milliseconds: 2^36 of them are more than two years, so the new
// term is above all lost ones, although the clock of this server may lag.
//
// That is 2^36 for each fail-over before an acquisition: 100,000 of them fit
// into the 53 bits of a number in JavaScript. What a hand wrote into the column
// counts as not known.
func sqlJump(now, then string) string {
	return `CASE WHEN ` + then + ` ~ '^[0-9A-F]{8}$'
                   THEN least(greatest(('x' || ` + now + `)::bit(32)::bigint
                                       - ('x' || ` + then + `)::bit(32)::bigint, 0), 65536) << 36
                   ELSE 0 END`
}

// What both acquisitions share. Their first part, "ended", has at most one
// row: what was judged is over, and nobody else can write here until we
// commit. All that follows selects from it, so nothing happens without it.
//
// A transaction that deletes this row and one that inserts the next cannot be
// put in one order by snapshots alone, so each path locks a row that the other
// claimants must change: the lock row itself, or the newest term, whose
// next_term every acquisition sets.
//
// No acquisition reads all of the history: terms that are still open are among
// the newest (each acquisition ends them), and the old ones go in one of 64, on
// average, as finding the first of them means to count the newer ones.
var sqlSucceed = `
new AS (
    INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat,
                                state, ttl_ms, renew_deadline_ms, heartbeat_ms, timeline,
                                backend_pid, backend_start, postmaster_start, grace_ms, ttl_only,
                                app, program)
    SELECT 1, $1::bigint, $2::text, e.now, e.now, $3::text,
           greatest(e.last + 1, $4::bigint, floor(extract(epoch FROM e.now) * 1000)::bigint)
                  + e.jump,
           0, 'leading', $5::bigint, $6::bigint, $7::bigint, e.timeline,
           ` + sqlHolderSession("$10", "$11", "$12") + `,
           nullif($13::text, ''), nullif($14::text, '')
    FROM ended e CROSS JOIN LATERAL (SELECT ` + sqlHeld("$10", "$5", "e.now") + `) h
    ON CONFLICT (id) DO NOTHING
    RETURNING term, created_at, timeline, grace_ms, ttl_only, app, program
), history AS (
    INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ttl_ms,
                                 timeline, app, program)
    SELECT n.term, $3, $1, $2, n.created_at, $5, n.timeline, n.app, n.program FROM new n
), earlier AS (
    UPDATE scheduler_terms t
    SET ended_at = coalesce(t.ended_at, n.created_at),
        end_reason = coalesce(t.end_reason, $8::text),
        next_term = CASE WHEN t.term = e.last THEN n.term ELSE t.next_term END
    FROM new n, ended e,
         (SELECT o.term, o.ended_at FROM scheduler_terms o ORDER BY o.term DESC LIMIT 5) AS late
    WHERE t.term = late.term AND (late.ended_at IS NULL OR late.term = e.last)
), trimmed AS (
    DELETE FROM scheduler_terms t USING new n, ended e
    WHERE t.term < e.last
      AND t.term <= (SELECT CASE WHEN random() * 64 < 1 THEN
                                (SELECT o.term FROM scheduler_terms o
                                 ORDER BY o.term DESC LIMIT 1 OFFSET $9::integer) END)
)
SELECT n.term, n.created_at, n.grace_ms IS NOT NULL, n.ttl_only FROM new n`

// sqlTakeOver ends the holder that was judged: this row and no other.
var sqlTakeOver = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), judged AS MATERIALIZED (
    SELECT s.now, s.timeline, l.term, l.timeline AS confirmed
    FROM settings s CROSS JOIN scheduler_lock l
    WHERE s.epoch = $15::text
      AND l.id = 1 AND l.token = $16::text AND l.term = $17::bigint AND l.beat = $18::bigint
      AND ` + sqlSameSession("$19") + `
    FOR UPDATE OF l SKIP LOCKED
), ended AS (
    DELETE FROM scheduler_lock l USING judged j
    WHERE l.id = 1
    RETURNING j.now, j.timeline,
              greatest(j.term, (SELECT max(t.term) FROM scheduler_terms t)) AS last,
              ` + sqlJump("j.timeline", `coalesce((SELECT t.timeline FROM scheduler_terms t
                                   ORDER BY t.term DESC LIMIT 1), j.confirmed)`) + ` AS jump
), ` + sqlSucceed

// sqlTakeFree puts a row where none was, if the newest term is still the one
// that was judged. It deletes nothing, whatever it finds. Unless the lock was
// watched for a TTL, it is free on the timeline of its newest term only.
var sqlTakeFree = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), ended AS MATERIALIZED (
    SELECT s.now, s.timeline, t.term AS last, ` + sqlJump("s.timeline", "t.timeline") + ` AS jump
    FROM settings s CROSS JOIN scheduler_terms t
    WHERE s.epoch = $15::text AND t.term = $16::bigint
      AND t.term = (SELECT max(o.term) FROM scheduler_terms o)
      AND t.next_term IS NOT DISTINCT FROM nullif($17::bigint, 0)
      AND ($18::boolean OR coalesce(t.timeline = s.timeline, true))
      AND NOT EXISTS (SELECT FROM scheduler_lock)
    FOR UPDATE OF t SKIP LOCKED
), ` + sqlSucceed

// sqlTakeFirst is the same for a history without a term, whose timeline is the
// one on which the tables were made. There is no row to lock, so it runs in a
// serializable transaction.
var sqlTakeFirst = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), ended AS MATERIALIZED (
    SELECT s.now, s.timeline, 0::bigint AS last, ` + sqlJump("s.timeline", sqlOrigin) + ` AS jump
    FROM settings s
    WHERE s.epoch = $15::text AND ($16::boolean OR s.timeline = ` + sqlOrigin + `)
      AND NOT EXISTS (SELECT FROM scheduler_terms) AND NOT EXISTS (SELECT FROM scheduler_lock)
), ` + sqlSucceed

// sqlStill tells a row that was locked from one that has moved.
var sqlStill = `
SELECT EXISTS (SELECT FROM scheduler_lock l
               WHERE l.id = 1 AND l.token = $1::text AND l.term = $2::bigint AND l.beat = $3::bigint
                 AND ` + sqlSameSession("$4") + `)
       AND ` + sqlEpoch + ` = $5::text AND NOT ` + sqlHidden

// Acquire implements driver.Store: one statement, which waits for another
// transaction for a second at most.
func (s *Store) Acquire(ctx context.Context, c driver.Claim) (grant driver.Grant, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		args := []any{s.mode(), int64(c.PID), text(c.Hostname), c.Token.String(), c.MinTerm,
			c.Timing.TTL.Milliseconds(), c.Timing.RenewDeadline.Milliseconds(),
			c.Timing.HeartbeatInterval.Milliseconds(),
			string(c.Reason), int32(keepTerms - 1)}
		hold := s.hold(c.Grace)
		args = append(args, hold.grace, hold.start, hold.why, text(c.App.Name), text(c.App.Program),
			c.Expected.Incarnation)
		var (
			held bool
			why  pgtype.Text
			err  error
		)
		got := []any{&grant.Term, &grant.Now, &held, &why}
		switch row, newest := c.Expected.Row, c.Expected.Newest; {
		case row != nil:
			judged := []any{row.RawToken, row.Term, row.Beat, row.Session}
			err = s.on(conn).QueryRow(ctx, sqlTakeOver, append(args, judged...)...).Scan(got...)
			if errors.Is(err, pgx.ErrNoRows) {
				var still bool
				if err := s.on(conn).QueryRow(ctx, sqlStill,
					append([]any{s.mode()}, append(judged,
						c.Expected.Incarnation)...)...).Scan(&still); err == nil && still {
					return s.blocked(ctx, conn)
				}
			}
		case newest != nil:
			err = s.on(conn).QueryRow(ctx, sqlTakeFree,
				append(args, newest.Term, newest.NextTerm, c.Watched)...).Scan(got...)
		default:
			err = pgx.BeginTxFunc(ctx, conn, s.txOptions(pgx.Serializable), func(tx pgx.Tx) error {
				return tx.QueryRow(ctx, sqlTakeFirst, append(args, c.Watched)...).Scan(got...)
			})
		}
		grant.Now = grant.Now.UTC()
		switch code(err) {
		case codeLockTimeout:
			return s.blocked(ctx, conn)
		case codeSerialization, codeUnique: // another claimant was faster
			return driver.ErrConflict
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return driver.ErrConflict
		}
		if err == nil {
			s.holder = holder{token: c.Token, grace: c.Grace, ttl: c.Timing.TTL}
			grant.Session = s.seen(conn, held, why.String)
		}
		return err
	})
	return grant, err
}

// blocked is what a claim returns whose row somebody keeps locked.
func (s *Store) blocked(ctx context.Context, conn *pgx.Conn) error {
	if who, err := s.blocker(ctx, conn, 0); err == nil && who != "" {
		return fmt.Errorf("%w: %s", driver.ErrBlocked, who)
	}
	return driver.ErrBlocked
}

// sqlHeartbeat is scoped to token and term: it never touches another's row. It
// changes no indexed column, so it is a HOT update. It is flushed to this
// server's disk, whatever the session's setting, and waits for no replica.
//
// A holder that is confirmed on a new timeline has outlived the fail-over, and
// no acquisition can have been lost in it: another could only follow the end of
// this lease. But the heartbeat itself does not know whether its holder still
// leads: the server may execute it late. So it writes on which timeline the one
// before was answered, see holder.timeline.
var sqlHeartbeat = `
UPDATE scheduler_lock
SET beat = beat + 1, heartbeat_at = clock_timestamp(), timeline = coalesce($4::text, timeline),
    state = CASE state WHEN 'revoked' THEN state ELSE $1::text END
WHERE id = 1 AND token = $2::text AND term = $3::bigint
RETURNING state, heartbeat_at, set_config('synchronous_commit', 'local', true),
          ` + sqlHidden + `, ` + sqlTimeline

// sqlHeartbeatAnew is the first heartbeat on another session than the one before,
// which it puts into the row: in the place of one of those that the row may tell
// of by what this holder knows. One that the server executes late, after a later
// session was put in, must not bring an ended session back, by which others judge.
var sqlHeartbeatAnew = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now,
           CASE WHEN $4::bigint IS NOT NULL THEN ` + sqlHold("$7", "false") + ` END
), h AS MATERIALIZED (
    SELECT h.* FROM settings s CROSS JOIN LATERAL (SELECT ` + sqlHeld("$4", "$7", "s.now") + `) h
)
UPDATE scheduler_lock
SET beat = beat + 1, heartbeat_at = clock_timestamp(), timeline = coalesce($9::text, timeline),
    state = CASE state WHEN 'revoked' THEN state ELSE $1::text END,
    (backend_pid, backend_start, postmaster_start, grace_ms, ttl_only) =
        (SELECT ` + sqlHolderSession("$4", "$5", "$6") + ` FROM h)
WHERE id = 1 AND token = $2::text AND term = $3::bigint
  AND coalesce(backend_start, '-infinity') = ANY ($8::timestamptz[])
RETURNING state, heartbeat_at, set_config('synchronous_commit', 'local', true),
          ` + sqlHidden + `, ` + sqlTimeline + `, grace_ms IS NOT NULL, ttl_only`

// errNotOurs is what a holder finds that is none.
var errNotOurs = fmt.Errorf("%w: the lock row does not bear this lease's token any more",
	driver.ErrLost)

// Heartbeat implements driver.Store: one round trip.
func (s *Store) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (beat driver.Renewal, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var (
			found, setting string
			unsure, held   bool
			why, timeline  pgtype.Text
			err            error
		)
		args := []any{s.mode(), string(state), ref.Token.String(), ref.Term}
		anew := s.holder.anew(ref, conn)
		if anew {
			hold := s.hold(s.holder.grace)
			args = append(args, hold.grace, hold.start, hold.why, s.holder.ttl.Milliseconds(),
				s.holder.starts, s.holder.confirmed(ref))
			s.holder.starts = append(s.holder.starts, started(hold.start),
				started(pgtype.Timestamptz{}))
			err = s.on(conn).QueryRow(ctx, sqlHeartbeatAnew, args...).
				Scan(&found, &beat.Now, &setting, &unsure, &timeline, &held, &why)
		} else {
			err = s.on(conn).QueryRow(ctx, sqlHeartbeat, append(args, s.holder.confirmed(ref))...).
				Scan(&found, &beat.Now, &setting, &unsure, &timeline)
		}
		if missing := errors.Is(err, pgx.ErrNoRows); missing || unsure {
			if err := hidden(ctx, s.on(conn)); err != nil {
				return err
			}
			if missing {
				return errNotOurs
			}
		}
		if err != nil {
			return err
		}
		beat.State, beat.Now = driver.State(found), beat.Now.UTC()
		if s.holder.token == ref.Token {
			s.holder.timeline = timeline
		}
		if anew {
			s.seen(conn, held, why.String)
		}
		beat.Session = s.holder.sessionOf(ref)
		return nil
	})
	return beat, err
}

const sqlRelease = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('lock_timeout', '1s', true), ` + sqlDurable + `
), gone AS (
    DELETE FROM scheduler_lock l USING settings
    WHERE l.id = 1 AND l.pid = $1::bigint AND l.hostname = $2::text
      AND l.token = $3::text AND l.term = $4::bigint
    RETURNING l.timeline
), ended AS (
    UPDATE scheduler_terms t
    SET ended_at = s.now, end_reason = $5::text,
        timeline = coalesce((SELECT timeline FROM gone), t.timeline)
    FROM settings s
    WHERE t.term = $4 AND t.token = $3 AND t.ended_at IS NULL
    RETURNING t.term
)
SELECT EXISTS (SELECT FROM gone), EXISTS (SELECT FROM ended)`

// Release implements driver.Store. The standbys that listen are told, once it
// has been committed.
func (s *Store) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (deleted bool, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if ref.Token == s.holder.token {
			s.holder.unwatch()
			s.holder = holder{}
		}
		var ended bool
		err := s.on(conn).QueryRow(ctx, sqlRelease, s.mode(), int64(ref.PID), text(ref.Hostname),
			ref.Token.String(),
			ref.Term, string(reason)).Scan(&deleted, &ended)
		if err == nil && !deleted {
			err = hidden(ctx, s.on(conn))
		}
		if err == nil && (deleted || ended) {
			s.tell(ctx, conn)
		}
		return err
	})
	return deleted && err == nil, err
}

// A notification that a crash of the server takes away is not missed: so its
// commit waits for no disk.
const sqlTell = `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')`

// tellTimeout bounds the notification: a commit that notifies waits for all
// others that do.
const tellTimeout = time.Second

// tell lets the standbys that listen look at once. It is a transaction of its own:
// where the server takes no notification, since its queue is full for example, it
// undoes the whole transaction. Standbys look each second anyway.
func (s *Store) tell(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	_, err := s.on(conn).Exec(ctx, sqlTell, pgx.QueryExecModeExec, s.channel())
	if err == nil {
		return
	}
	if _, said := s.said.LoadOrStore(sqlTell, true); !said {
		s.log.Warn("the lock is released, but the server does not notify the standbys: they notice it when they look", "err", pgdsn.Safe(err))
	}
}

const sqlTerms = `
SELECT term, token, pid, hostname, acquired_at, ended_at, end_reason, next_term, ttl_ms,
       revoked_at, revoked_by, revoke_reason, app, program
FROM scheduler_terms ORDER BY term DESC LIMIT $1::bigint`

// Terms implements driver.Store.
func (s *Store) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	rows, err := s.pool.Query(ctx, sqlTerms, int64(min(max(limit, 0), keepTerms)))
	if err != nil {
		return nil, s.explain(err)
	}
	terms, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (driver.Term, error) {
		var c termColumns
		if err := row.Scan(c.dest()...); err != nil {
			return driver.Term{}, err
		}
		return *c.term(), nil
	})
	return terms, s.explain(err)
}

// sqlFence locks the row so that heartbeats pass and a take-over waits (row
// locks, chapter 13.3.2 of the PostgreSQL manual). A client that dies in the
// middle must not block the fleet for good, so the server ends a transaction
// that is idle for the TTL; an app's own shorter limit stays. One that waits for a
// lock, or works, is not idle: there the server looks each second whether the
// client is there still.
//
// Behind a savepoint the server puts the number of a subtransaction into xmax,
// and the lock goes with it. Where others hold the row too, xmax has a number
// that tells nothing of us; where the outer transaction holds it, its own.
func sqlFence(lock string) string {
	return `
WITH held AS MATERIALIZED (
    SELECT l.id,
           set_config('idle_in_transaction_session_timeout',
               CASE WHEN own.ms BETWEEN 1 AND l.ttl_ms THEN own.ms
                    ELSE l.ttl_ms END::bigint::text, true),
           ` + sqlNotice("true") + `
    FROM ` + lock + ` l
    CROSS JOIN (SELECT extract(epoch FROM
        current_setting('idle_in_transaction_session_timeout')::interval) * 1000 AS ms) AS own
    WHERE l.id = 1 AND l.token = $1 AND l.term = $2
    FOR KEY SHARE OF l
)
SELECT (SELECT CASE WHEN x.xmax <> pg_current_xact_id()::xid THEN EXISTS (
            SELECT FROM pg_locks k
            WHERE k.pid = pg_backend_pid() AND k.locktype = 'transactionid'
              AND k.mode = 'ExclusiveLock' AND k.transactionid = x.xmax
        ) ELSE false END
        FROM ` + lock + ` x WHERE x.id = h.id)
FROM held h`
}

// errNested is what an app can get wrong about a fence. It is no ErrNoFence: an
// app may go on without a fence then.
var errNested = errors.New("the fence would end with a roll-back to a savepoint: " +
	"fence the outer transaction, before its first savepoint")

// nested reports whether tx is what Begin of a pgx.Tx returns: a savepoint.
func nested(tx pgx.Tx) bool { return fmt.Sprintf("%T", tx) == "*pgx.dbSimulatedNestedTx" }

// A scanner is a *sql.Row or a pgx.Row.
type scanner interface{ Scan(dest ...any) error }

// inside returns how to ask for a row in a transaction of the caller's.
func inside(ctx context.Context, tx any) (func(query string, args ...any) scanner, error) {
	switch tx := tx.(type) {
	case pgx.Tx:
		if nested(tx) {
			return nil, errNested
		}
		return func(query string, args ...any) scanner {
			return tx.QueryRow(ctx, query, args...)
		}, nil
	case *sql.Tx:
		return func(query string, args ...any) scanner {
			return tx.QueryRowContext(ctx, query, args...)
		}, nil
	}
	return nil, fmt.Errorf("%w: it is a %T, neither a pgx.Tx nor a *sql.Tx", driver.ErrNoFence, tx)
}

// Fence implements driver.Store; tx must be a pgx.Tx or a *sql.Tx, of
// any isolation level, on the database of the lock.
func (s *Store) Fence(ctx context.Context, tx any, ref driver.Ref) error {
	var behind pgtype.Bool
	query, err := inside(ctx, tx)
	if err != nil {
		return err
	}
	err = query(sqlFence(s.table("scheduler_lock")), ref.Token.String(), ref.Term).Scan(&behind)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows):
		if err := concealed(query, s.table("scheduler_lock")); err != nil {
			return s.explain(err)
		}
		return errNotOurs
	case code(err) == codeNoTable:
		return fmt.Errorf("%w: %w", driver.ErrNoFence, err)
	case code(err) == codeSerialization: // the row was deleted since the transaction's snapshot
		return fmt.Errorf("%w: %w", errNotOurs, err)
	case err == nil && behind.Bool:
		return errNested
	}
	return s.explain(err)
}

// Check returns an error that names what the role may not do, and the GRANT
// that is missing, nil if it has all it needs. It writes nothing.
func (s *Store) Check(ctx context.Context) error {
	const sqlMissing = `
SELECT string_agg(format('GRANT %s ON %I.%I TO %I',
                         g.privilege, n.nspname, c.relname, current_user),
                  '; ' ORDER BY c.relname, g.privilege)
FROM (VALUES ('scheduler_lock', 'SELECT'), ('scheduler_lock', 'INSERT'),
             ('scheduler_lock', 'UPDATE'), ('scheduler_lock', 'DELETE'),
             ('scheduler_terms', 'SELECT'), ('scheduler_terms', 'INSERT'),
             ('scheduler_terms', 'UPDATE'), ('scheduler_terms', 'DELETE'),
             ('scheduler_jobs', 'SELECT'), ('scheduler_jobs', 'INSERT'),
             ('scheduler_jobs', 'UPDATE'),
             ('scheduler_runs', 'SELECT'), ('scheduler_runs', 'INSERT'),
             ('scheduler_runs', 'UPDATE'), ('scheduler_runs', 'DELETE'),
             ('scheduler_requests', 'SELECT'), ('scheduler_requests', 'INSERT'),
             ('scheduler_requests', 'DELETE'),
             ('scheduler_pauses', 'SELECT'), ('scheduler_pauses', 'INSERT'),
             ('scheduler_pauses', 'UPDATE'),
             ('scheduler_lock_schema', 'SELECT')) AS g (tab, privilege)
JOIN pg_class c ON c.oid = to_regclass(g.tab)
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT has_table_privilege(c.oid, g.privilege)`
	var missing pgtype.Text
	err := s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return s.on(conn).QueryRow(ctx, sqlMissing, pgx.QueryExecModeExec).Scan(&missing)
	})
	if err == nil && missing.Valid {
		return fmt.Errorf("%w: %s: a right is missing: %s", driver.ErrPermanent, s.name(),
			missing.String)
	}
	if err != nil {
		return err
	}
	_, err = s.Look(ctx) // names a table that is missing
	return err
}
