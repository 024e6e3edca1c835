package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
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

// A release waits for no disk. A crash of the server may bring the row back: then the TTL, or a
// proof of the holder's death, decides.
const sqlRelease = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('lock_timeout', '1s', true),
           set_config('synchronous_commit', 'off', true)
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
    RETURNING t.term, t.ended_at
)
SELECT EXISTS (SELECT FROM gone), EXISTS (SELECT FROM ended)`

// The standbys that listen are told once it is committed, and by that commit: of the term and
// when it has ended, in microseconds, if it was released as the next leader supposes. A commit
// that notifies waits for all others that do, so it does not wait for long.
var sqlReleaseTelling = sqlRelease + `,
       CASE WHEN EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM ended) THEN pg_notify($6::text,
           coalesce((SELECT e.term || ' ' || floor(extract(epoch FROM e.ended_at) * 1000000)::bigint
                     FROM ended e WHERE $5 = '` + string(driver.EndReleased) + `'), ''))::text
           || set_config('lock_timeout', '250ms', true) END`

// Release implements driver.Store: one round trip. Where the server takes no notification, since
// its queue is full for example, it undoes the whole transaction: then it is done without.
// Standbys look each second anyway.
func (s *Store) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (deleted bool, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if ref.Token == s.holder.token {
			s.holder.unwatch()
			s.holder = holder{}
		}
		var ended bool
		args := []any{s.mode(), int64(ref.PID), text(ref.Hostname), ref.Token.String(), ref.Term,
			string(reason)}
		err := s.on(conn).QueryRow(ctx, sqlReleaseTelling, append(args, s.channel())...).
			Scan(&deleted, &ended, nil)
		// The server says where it has waited for the row in vain. At the commit, for others that
		// notify, it has no place to name.
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if ok && !conn.IsClosed() && (refused.Code != codeLockTimeout || refused.Where == "") {
			err = s.on(conn).QueryRow(ctx, sqlRelease, args...).Scan(&deleted, &ended)
			if err == nil && (deleted || ended) {
				s.sayUntold(refused)
			}
		}
		if err == nil && !deleted {
			err = hidden(ctx, s.on(conn))
		}
		return err
	})
	return deleted && err == nil, err
}

// sayUntold says it once.
func (s *Store) sayUntold(err error) {
	if _, said := s.said.LoadOrStore(sqlReleaseTelling, true); !said {
		s.log.Warn("the lock is released, but the server does not notify the standbys: they notice "+
			"it when they look", "err", pgdsn.Safe(err))
	}
}

const sqlTerms = `
SELECT ` + columns.TermColumns + `
FROM scheduler_terms t ORDER BY t.term DESC LIMIT $1::bigint`

// Terms implements driver.Store.
func (s *Store) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	var t columns.Term
	return all(ctx, s.pool, t.Dest(), t.Value, sqlTerms, int64(min(max(limit, 0), keepTerms)))
}

// Check returns an error that names what the role may not do, and the GRANT
// that is missing, nil if it has all it needs. It writes nothing.
func (s *Store) Check(ctx context.Context) error {
	const sqlMissing = `
SELECT string_agg(format('GRANT %s ON %I.%I TO %I',
                         g.privilege, n.nspname, c.relname, current_user),
                  '; ' ORDER BY c.relname, g.privilege)
FROM (
    SELECT v.tab, unnest(string_to_array(v.privileges, ' ')) AS privilege
    FROM (VALUES ('scheduler_lock', 'SELECT INSERT UPDATE DELETE'),
                 ('scheduler_terms', 'SELECT INSERT UPDATE DELETE'),
                 ('scheduler_jobs', 'SELECT INSERT UPDATE'),
                 ('scheduler_runs', 'SELECT INSERT UPDATE DELETE'),
                 ('scheduler_attempts', 'SELECT INSERT DELETE'),
                 ('scheduler_requests', 'SELECT INSERT DELETE'),
                 ('scheduler_pauses', 'SELECT INSERT UPDATE'),
                 ('scheduler_audit', 'SELECT INSERT DELETE'),
                 ('scheduler_replicas', 'SELECT'),
                 ('scheduler_lock_schema', 'SELECT')) AS v (tab, privileges)
) AS g
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
