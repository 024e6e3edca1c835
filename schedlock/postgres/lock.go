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

	"example.com/schedlock/schedlock"
)

// keepTerms is how many terms of history stay. A few more are in the table until
// the next sweep.
const keepTerms = 1000

const (
	// sqlTimeline names the server's history: it changes with every promotion,
	// after which the last commits may be missing. NULL on a replica.
	sqlTimeline = `CASE WHEN pg_is_in_recovery() THEN NULL ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END`

	// sqlEpoch is View.Epoch, as function epoch writes it.
	sqlEpoch = `coalesce(` + sqlTimeline + `, 'replica') || ' ' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint`

	sqlDurable = `set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)`
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
           CASE WHEN $10::bigint IS NOT NULL THEN ` + sqlHold("$5") + ` END`
)

// sqlLook reads the newest term and the lock row from one snapshot. What can be
// worked out from its columns is, by Look: each standby asks once a second.
// Without a history it has no row; then sqlLookAnyway has.
const (
	sqlLook       = sqlView + sqlFromNewest
	sqlLookAnyway = sqlView + sqlFromNothing

	sqlLookAtSession       = sqlView + `, ` + sqlSessionState + sqlFromNewest
	sqlLookAtSessionAnyway = sqlView + `, ` + sqlSessionState + sqlFromNothing

	sqlFromNewest = `
FROM ` + sqlNewest + ` LEFT JOIN scheduler_lock l ON l.id = 1`
	sqlFromNothing = `
FROM (SELECT) AS one LEFT JOIN ` + sqlNewest + ` ON true LEFT JOIN scheduler_lock l ON l.id = 1`

	sqlView = `
SELECT l.pid, l.hostname, l.created_at, l.heartbeat_at, l.token, l.term, l.beat, l.state,
       l.ttl_ms, l.renew_deadline_ms, l.heartbeat_ms, l.grace_ms, l.ttl_only,
       t.term, t.token, t.pid, t.hostname, t.acquired_at, t.ended_at, t.end_reason, t.next_term, t.ttl_ms,
       t.revoked_at, t.revoked_by, t.revoke_reason,
       clock_timestamp(), pg_postmaster_start_time(), ` + sqlTimeline + `,
       CASE WHEN l.term = t.term THEN l.timeline ELSE t.timeline END`

	sqlNewest = `(
    SELECT term, token, pid, hostname, acquired_at, ended_at, end_reason, next_term, ttl_ms, revoked_at, revoked_by, revoke_reason, timeline
    FROM scheduler_terms ORDER BY term DESC LIMIT 1
) AS t`
)

// sqlBlocker finds who keeps the lock row locked. It is a statement of its own,
// for the row of an expired holder only: its views cost more than all of
// sqlLook, even where they are not read.
const sqlBlocker = `
SELECT format('backend %s%s%s, in a transaction since %s', coalesce(k.pid::text, '(prepared transaction)'),
              ', application "' || a.application_name || '"', ', client ' || host(a.client_addr),
              coalesce(to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'an unknown time'))
FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
WHERE k.locktype = 'relation' AND k.relation = 'scheduler_lock'::regclass AND k.granted
  AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND k.mode <> 'AccessShareLock' AND k.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY a.xact_start NULLS LAST LIMIT 1`

// Look implements schedlock.Store.
func (s *Store) Look(ctx context.Context) (schedlock.View, error) {
	return s.look(ctx, sqlLook, sqlLookAnyway, false)
}

// LookAtSession implements schedlock.SessionStore. It takes longer the more
// sessions the server has: PostgreSQL copies what it knows of all of them.
func (s *Store) LookAtSession(ctx context.Context) (schedlock.View, error) {
	return s.look(ctx, sqlLookAtSession, sqlLookAtSessionAnyway, true)
}

func (s *Store) look(ctx context.Context, query, anyway string, closely bool) (view schedlock.View, err error) {
	err = s.use(ctx, func(conn *pgx.Conn) error {
		var c struct {
			lock           lockColumns
			newest         termColumns
			now, started   time.Time
			timeline, last pgtype.Text // of the server, and when the newest term was last confirmed
			session        pgtype.Text // of the holder
		}
		dest := make([]any, 0, 32)
		dest = append(dest, c.lock.dest()...)
		dest = append(dest, c.newest.dest()...)
		dest = append(dest, &c.now, &c.started, &c.timeline, &c.last)
		if closely {
			dest = append(dest, &c.session)
		}
		err := conn.QueryRow(ctx, query, s.mode()).Scan(dest...)
		if errors.Is(err, pgx.ErrNoRows) {
			err = conn.QueryRow(ctx, anyway, s.mode()).Scan(dest...)
		}
		if err != nil {
			return err
		}
		view.Row, view.Newest, view.Now = c.lock.row(), c.newest.term(), c.now.UTC()
		view.Epoch = epoch(c.timeline, c.started)
		view.FailedOver = c.timeline.Valid && c.last.Valid && c.last.String != c.timeline.String
		view.Sign = s.sign(view.Row, c.session.String)
		if r := view.Row; r == nil || view.Now.Sub(r.HeartbeatAt) <= min(r.Timing.TTL, schedlock.MaxTTL) {
			return nil
		}
		err = conn.QueryRow(ctx, sqlBlocker, s.mode()).Scan(&view.Blocker)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return schedlock.View{}, err
	}
	return view, nil
}

// epoch is View.Epoch.
func epoch(timeline pgtype.Text, started time.Time) string {
	if !timeline.Valid {
		timeline.String = "replica"
	}
	return timeline.String + " " + strconv.FormatInt(started.UnixMicro(), 10)
}

// lockColumns takes what stands in the row: all NULL if there is none.
type lockColumns struct {
	pid, term, beat, ttl, renew, heartbeat, grace pgtype.Int8
	hostname, token, state, ttlOnly               pgtype.Text
	created, heartbeatAt                          pgtype.Timestamptz
}

func (c *lockColumns) dest() []any {
	return []any{&c.pid, &c.hostname, &c.created, &c.heartbeatAt, &c.token, &c.term, &c.beat, &c.state, &c.ttl, &c.renew, &c.heartbeat,
		&c.grace, &c.ttlOnly}
}

func (c *lockColumns) row() *schedlock.Row {
	if !c.pid.Valid {
		return nil
	}
	token, _ := schedlock.ParseToken(c.token.String) // an edited one is nobody's
	return &schedlock.Row{
		Ref: schedlock.Ref{
			Owner: schedlock.Owner{PID: int(c.pid.Int64), Hostname: c.hostname.String},
			Token: token,
			Term:  c.term.Int64,
		},
		RawToken:    c.token.String,
		Beat:        c.beat.Int64,
		State:       schedlock.State(c.state.String),
		CreatedAt:   stamp(c.created),
		HeartbeatAt: stamp(c.heartbeatAt),
		Timing: schedlock.Timing{
			TTL:               fromMillis(c.ttl.Int64),
			RenewDeadline:     fromMillis(c.renew.Int64),
			HeartbeatInterval: fromMillis(c.heartbeat.Int64),
		},
		Grace:   fromMillis(c.grace.Int64),
		TTLOnly: c.ttlOnly.String,
	}
}

type termColumns struct {
	number, pid, next, ttl   pgtype.Int8
	token, hostname, reason  pgtype.Text
	acquired, ended, revoked pgtype.Timestamptz
	revokedBy, revokeReason  pgtype.Text
}

func (c *termColumns) dest() []any {
	return []any{&c.number, &c.token, &c.pid, &c.hostname, &c.acquired, &c.ended, &c.reason, &c.next, &c.ttl,
		&c.revoked, &c.revokedBy, &c.revokeReason}
}

func (c *termColumns) term() *schedlock.Term {
	if !c.number.Valid {
		return nil
	}
	token, _ := schedlock.ParseToken(c.token.String)
	return &schedlock.Term{
		Ref: schedlock.Ref{
			Owner: schedlock.Owner{PID: int(c.pid.Int64), Hostname: c.hostname.String},
			Token: token,
			Term:  c.number.Int64,
		},
		AcquiredAt: stamp(c.acquired),
		EndedAt:    stamp(c.ended),
		EndReason:  schedlock.EndReason(c.reason.String),
		NextTerm:   c.next.Int64,
		TTL:        fromMillis(c.ttl.Int64),
		Revoked:    schedlock.Revocation{At: stamp(c.revoked), By: c.revokedBy.String, Reason: c.revokeReason.String},
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
    INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat, state, ttl_ms, renew_deadline_ms, heartbeat_ms, timeline,
                                backend_pid, backend_start, postmaster_start, grace_ms, ttl_only)
    SELECT 1, $1::bigint, $2::text, e.now, e.now, $3::text,
           greatest(e.last + 1, $4::bigint, floor(extract(epoch FROM e.now) * 1000)::bigint),
           0, 'leading', $5::bigint, $6::bigint, $7::bigint, e.timeline,
           ` + sqlHolderSession("$10", "$11", "$12") + `
    FROM ended e CROSS JOIN LATERAL (SELECT ` + sqlHeld("$10", "$5") + ` AS held) h
    ON CONFLICT (id) DO NOTHING
    RETURNING term, created_at, timeline, grace_ms, ttl_only
), history AS (
    INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ttl_ms, timeline)
    SELECT n.term, $3, $1, $2, n.created_at, $5, n.timeline FROM new n
), earlier AS (
    UPDATE scheduler_terms t
    SET ended_at = coalesce(t.ended_at, n.created_at),
        end_reason = coalesce(t.end_reason, $8::text),
        next_term = CASE WHEN t.term = e.last THEN n.term ELSE t.next_term END
    FROM new n, ended e, (SELECT o.term, o.ended_at FROM scheduler_terms o ORDER BY o.term DESC LIMIT 5) AS late
    WHERE t.term = late.term AND (late.ended_at IS NULL OR late.term = e.last)
), trimmed AS (
    DELETE FROM scheduler_terms t USING new n, ended e
    WHERE t.term < e.last
      AND t.term <= (SELECT CASE WHEN random() * 64 < 1 THEN (SELECT o.term FROM scheduler_terms o ORDER BY o.term DESC LIMIT 1 OFFSET $9::integer) END)
)
SELECT n.term, n.created_at, n.grace_ms IS NOT NULL, n.ttl_only FROM new n`

// sqlTakeOver ends the holder that was judged: this row and no other.
var sqlTakeOver = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), judged AS MATERIALIZED (
    SELECT s.now, s.timeline, l.term
    FROM settings s CROSS JOIN scheduler_lock l
    WHERE s.epoch = $13::text AND l.id = 1 AND l.token = $14::text AND l.term = $15::bigint AND l.beat = $16::bigint
    FOR UPDATE OF l SKIP LOCKED
), ended AS (
    DELETE FROM scheduler_lock l USING judged j
    WHERE l.id = 1
    RETURNING j.now, j.timeline, greatest(j.term, (SELECT max(t.term) FROM scheduler_terms t)) AS last
), ` + sqlSucceed

// sqlTakeFree puts a row where none was, if the newest term is still the one
// that was judged. It deletes nothing, whatever it finds.
var sqlTakeFree = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), ended AS MATERIALIZED (
    SELECT s.now, s.timeline, t.term AS last
    FROM settings s CROSS JOIN scheduler_terms t
    WHERE s.epoch = $13::text AND t.term = $14::bigint AND t.term = (SELECT max(o.term) FROM scheduler_terms o)
      AND t.next_term IS NOT DISTINCT FROM nullif($15::bigint, 0)
      AND NOT EXISTS (SELECT FROM scheduler_lock)
    FOR UPDATE OF t SKIP LOCKED
), ` + sqlSucceed

// sqlTakeFirst is the same for a history without a term. There is no row to
// lock, so it runs in a serializable transaction.
var sqlTakeFirst = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), ended AS MATERIALIZED (
    SELECT s.now, s.timeline, 0::bigint AS last
    FROM settings s
    WHERE s.epoch = $13::text AND NOT EXISTS (SELECT FROM scheduler_terms) AND NOT EXISTS (SELECT FROM scheduler_lock)
), ` + sqlSucceed

// sqlStill tells a row that was locked from one that has moved.
const sqlStill = `
SELECT EXISTS (SELECT FROM scheduler_lock WHERE id = 1 AND token = $1::text AND term = $2::bigint AND beat = $3::bigint)
       AND ` + sqlEpoch + ` = $4::text`

// Acquire implements schedlock.Store: one statement, which waits for another
// transaction for a second at most.
func (s *Store) Acquire(ctx context.Context, c schedlock.Claim) (grant schedlock.Grant, err error) {
	err = s.use(ctx, func(conn *pgx.Conn) error {
		args := []any{s.mode(), int64(c.PID), text(c.Hostname), c.Token.String(), c.MinTerm,
			c.Timing.TTL.Milliseconds(), c.Timing.RenewDeadline.Milliseconds(), c.Timing.HeartbeatInterval.Milliseconds(),
			string(c.Reason), int32(keepTerms - 1)}
		hold := s.hold(c.Grace)
		args = append(args, hold.grace, hold.start, hold.why, c.Judged.Epoch)
		var (
			held bool
			why  pgtype.Text
			err  error
		)
		got := []any{&grant.Term, &grant.Now, &held, &why}
		switch row, newest := c.Judged.Row, c.Judged.Newest; {
		case row != nil:
			judged := []any{row.RawToken, row.Term, row.Beat}
			err = conn.QueryRow(ctx, sqlTakeOver, append(args, judged...)...).Scan(got...)
			if errors.Is(err, pgx.ErrNoRows) {
				var still bool
				if err := conn.QueryRow(ctx, sqlStill, append([]any{s.mode()}, append(judged, c.Judged.Epoch)...)...).Scan(&still); err == nil && still {
					return blocked(c)
				}
			}
		case newest != nil:
			err = conn.QueryRow(ctx, sqlTakeFree, append(args, newest.Term, newest.NextTerm)...).Scan(got...)
		default:
			err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
				return tx.QueryRow(ctx, sqlTakeFirst, args...).Scan(got...)
			})
		}
		grant.Now = grant.Now.UTC()
		switch code(err) {
		case codeLockTimeout:
			return blocked(c)
		case codeSerialization, codeUnique: // another claimant was faster
			return schedlock.ErrMoved
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return schedlock.ErrMoved
		}
		if err == nil {
			s.holder = holder{token: c.Token, grace: c.Grace, ttl: c.Timing.TTL}
			grant.Session = s.seen(conn, held, why.String)
		}
		return err
	})
	return grant, err
}

func blocked(c schedlock.Claim) error {
	if c.Judged.Blocker != "" {
		return fmt.Errorf("%w: %s", schedlock.ErrBlocked, c.Judged.Blocker)
	}
	return schedlock.ErrBlocked
}

// sqlHeartbeat is scoped to token and term: it never touches another's row. It
// changes no indexed column, so it is a HOT update. It is flushed to this
// server's disk, whatever the session's setting, and waits for no replica.
//
// A holder that is confirmed on a new timeline has outlived the fail-over, and
// no acquisition can have been lost in it: another could only follow the end of
// this lease.
const sqlHeartbeat = `
UPDATE scheduler_lock
SET beat = beat + 1, heartbeat_at = clock_timestamp(), timeline = ` + sqlTimeline + `, state = CASE state WHEN 'revoked' THEN state ELSE $1::text END
WHERE id = 1 AND token = $2::text AND term = $3::bigint
RETURNING state, heartbeat_at, set_config('synchronous_commit', 'local', true)`

// sqlHeartbeatAnew is the first heartbeat on another session than the one before,
// which it puts into the row: in the place of one of those that the row may tell
// of by what this holder knows. One that the server executes late, after a later
// session was put in, must not bring an ended session back, by which others judge.
var sqlHeartbeatAnew = `
WITH settings AS MATERIALIZED (
    SELECT CASE WHEN $4::bigint IS NOT NULL THEN ` + sqlHold("$7") + ` END
), h AS MATERIALIZED (
    SELECT ` + sqlHeld("$4", "$7") + ` AS held FROM settings
)
UPDATE scheduler_lock
SET beat = beat + 1, heartbeat_at = clock_timestamp(), timeline = ` + sqlTimeline + `, state = CASE state WHEN 'revoked' THEN state ELSE $1::text END,
    (backend_pid, backend_start, postmaster_start, grace_ms, ttl_only) = (SELECT ` + sqlHolderSession("$4", "$5", "$6") + ` FROM h)
WHERE id = 1 AND token = $2::text AND term = $3::bigint AND coalesce(backend_start, '-infinity') = ANY ($8::timestamptz[])
RETURNING state, heartbeat_at, set_config('synchronous_commit', 'local', true), grace_ms IS NOT NULL, ttl_only`

// errNotOurs is what a holder finds that is none.
var errNotOurs = fmt.Errorf("%w: the lock row does not bear this lease's token any more", schedlock.ErrLost)

// Heartbeat implements schedlock.Store: one round trip.
func (s *Store) Heartbeat(ctx context.Context, ref schedlock.Ref, state schedlock.State) (beat schedlock.Beat, err error) {
	err = s.use(ctx, func(conn *pgx.Conn) error {
		var (
			found, setting string
			held           bool
			why            pgtype.Text
			err            error
		)
		args := []any{s.mode(), string(state), ref.Token.String(), ref.Term}
		anew := s.holder.anew(ref, conn)
		if anew {
			hold := s.hold(s.holder.grace)
			args = append(args, hold.grace, hold.start, hold.why, s.holder.ttl.Milliseconds(), s.holder.starts)
			s.holder.starts = append(s.holder.starts, started(hold.start), started(pgtype.Timestamptz{}))
			err = conn.QueryRow(ctx, sqlHeartbeatAnew, args...).Scan(&found, &beat.Now, &setting, &held, &why)
		} else {
			err = conn.QueryRow(ctx, sqlHeartbeat, args...).Scan(&found, &beat.Now, &setting)
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return errNotOurs
		}
		if err != nil {
			return err
		}
		beat.State, beat.Now = schedlock.State(found), beat.Now.UTC()
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
    SELECT clock_timestamp() AS now, ` + sqlDurable + `
), gone AS (
    DELETE FROM scheduler_lock l USING settings
    WHERE l.id = 1 AND l.pid = $1::bigint AND l.hostname = $2::text AND l.token = $3::text AND l.term = $4::bigint
    RETURNING l.timeline
), ended AS (
    UPDATE scheduler_terms t
    SET ended_at = s.now, end_reason = $5::text, timeline = coalesce((SELECT timeline FROM gone), t.timeline)
    FROM settings s
    WHERE t.term = $4 AND t.token = $3 AND t.ended_at IS NULL
    RETURNING t.term
)
SELECT EXISTS (SELECT FROM gone),
       CASE WHEN EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM ended) THEN pg_notify('` + channel + `', '')::text END`

// Release implements schedlock.Store. The standbys that listen are told.
func (s *Store) Release(ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (deleted bool, err error) {
	err = s.use(ctx, func(conn *pgx.Conn) error {
		if ref.Token == s.holder.token {
			s.holder.unwatch()
			s.holder = holder{}
		}
		var notice pgtype.Text
		return conn.QueryRow(ctx, sqlRelease, s.mode(), int64(ref.PID), text(ref.Hostname), ref.Token.String(), ref.Term, string(reason)).Scan(&deleted, &notice)
	})
	return deleted && err == nil, err
}

const sqlTerms = `
SELECT term, token, pid, hostname, acquired_at, ended_at, end_reason, next_term, ttl_ms,
       revoked_at, revoked_by, revoke_reason
FROM scheduler_terms ORDER BY term DESC LIMIT $1::bigint`

// Terms implements schedlock.Store.
func (s *Store) Terms(ctx context.Context, limit int) ([]schedlock.Term, error) {
	rows, err := s.pool.Query(ctx, sqlTerms, int64(min(max(limit, 0), keepTerms)))
	if err != nil {
		return nil, s.explain(err)
	}
	terms, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (schedlock.Term, error) {
		var c termColumns
		if err := row.Scan(c.dest()...); err != nil {
			return schedlock.Term{}, err
		}
		return *c.term(), nil
	})
	return terms, s.explain(err)
}

// sqlFence locks the row so that heartbeats pass and a take-over waits (row
// locks, chapter 13.3.2 of the PostgreSQL manual). A client that dies in the
// middle must not block the fleet for good, so the server ends a transaction
// that is idle for the TTL; an app's own shorter limit stays.
const sqlFence = `
SELECT set_config('idle_in_transaction_session_timeout',
           CASE WHEN own.ms BETWEEN 1 AND l.ttl_ms THEN own.ms ELSE l.ttl_ms END::bigint::text, true)
FROM scheduler_lock l
CROSS JOIN (SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000 AS ms) AS own
WHERE l.id = 1 AND l.token = $1 AND l.term = $2
FOR KEY SHARE OF l`

// Fence implements schedlock.FencedStore; tx must be a pgx.Tx or a *sql.Tx, of
// any isolation level, on the database of the lock.
func (s *Store) Fence(ctx context.Context, tx any, ref schedlock.Ref) error {
	var (
		limit string
		err   error
	)
	switch tx := tx.(type) {
	case pgx.Tx:
		err = tx.QueryRow(ctx, sqlFence, ref.Token.String(), ref.Term).Scan(&limit)
	case *sql.Tx:
		err = tx.QueryRowContext(ctx, sqlFence, ref.Token.String(), ref.Term).Scan(&limit)
	default:
		return fmt.Errorf("%w: it is a %T, neither a pgx.Tx nor a *sql.Tx", schedlock.ErrNoFence, tx)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows):
		return errNotOurs
	case code(err) == codeNoTable:
		return fmt.Errorf("%w: %w", schedlock.ErrNoFence, err)
	case code(err) == codeSerialization: // the row was deleted since the transaction's snapshot
		return fmt.Errorf("%w: %w", errNotOurs, err)
	}
	return s.explain(err)
}

// Check returns an error that names what the role may not do, and the GRANT
// that is missing, nil if it has all it needs. It writes nothing.
func (s *Store) Check(ctx context.Context) error {
	const sqlMissing = `
SELECT string_agg(format('GRANT %s ON %I.%I TO %I', g.privilege, n.nspname, c.relname, current_user), '; ' ORDER BY c.relname, g.privilege)
FROM (VALUES ('scheduler_lock', 'SELECT'), ('scheduler_lock', 'INSERT'), ('scheduler_lock', 'UPDATE'), ('scheduler_lock', 'DELETE'),
             ('scheduler_terms', 'SELECT'), ('scheduler_terms', 'INSERT'), ('scheduler_terms', 'UPDATE'), ('scheduler_terms', 'DELETE'),
             ('scheduler_jobs', 'SELECT'), ('scheduler_jobs', 'INSERT'), ('scheduler_jobs', 'UPDATE'),
             ('scheduler_runs', 'SELECT'), ('scheduler_runs', 'INSERT'), ('scheduler_runs', 'UPDATE'), ('scheduler_runs', 'DELETE'),
             ('scheduler_requests', 'SELECT'), ('scheduler_requests', 'INSERT'), ('scheduler_requests', 'DELETE'),
             ('scheduler_pauses', 'SELECT'), ('scheduler_pauses', 'INSERT'), ('scheduler_pauses', 'UPDATE'),
             ('scheduler_lock_schema', 'SELECT')) AS g (tab, privilege)
JOIN pg_class c ON c.oid = to_regclass(g.tab)
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT has_table_privilege(c.oid, g.privilege)`
	var missing pgtype.Text
	err := s.use(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sqlMissing, pgx.QueryExecModeExec).Scan(&missing)
	})
	if err == nil && missing.Valid {
		return fmt.Errorf("%w: %s: a right is missing: %s", schedlock.ErrPermanent, s.name(), missing.String)
	}
	if err != nil {
		return err
	}
	_, err = s.Look(ctx) // names a table that is missing
	return err
}
