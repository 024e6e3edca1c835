package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/named"
)

// Named returns the named locks of the database. It may be called several
// times. They are judged by the server's clock, whatever the clocks of its
// clients say; one that is set forward on the server ends locks early, and then
// only fences protect. Every operation is one plain statement on the pool that
// also serves the ledger.
func (s *Store) Named() named.Store { return (*namedStore)(s) }

type namedStore Store

var _ named.Store = (*namedStore)(nil)

// sqlNamedFree is true for a row l that anybody can take. It asks the clock when
// the row is looked at, which may be after a wait for it.
const sqlNamedFree = `((l.token IS NULL OR l.expires_at <= clock_timestamp()) AND (l.hold_until IS NULL OR l.hold_until <= clock_timestamp()))`

// sqlNamedColumns are those of namedRow.
const sqlNamedColumns = `l.token, l.term, l.pid, l.hostname, l.acquired_at, l.expires_at, l.hold_until, clock_timestamp() AS now`

// sqlNamedTake inserts the row, or updates one that is free. What is seen to be
// taken is not touched: to lock its row would be a write, and get into the
// holder's way. The term is computed from that look, too: a row that is cleaned
// up between the look and the insertion is in no later one.
//
// The update changes a key (see the migration), so it waits for the
// transactions that a fence guards: not for long, as it has a connection.
const sqlNamedTake = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('lock_timeout', '250ms', true), ` + sqlDurable + `
), seen AS MATERIALIZED (
    SELECT ` + sqlNamedColumns + `, ` + sqlNamedFree + ` AS free
    FROM settings CROSS JOIN named_locks l
    WHERE l.kind = $1::text AND l.name = $2::text
), taken AS (
    INSERT INTO named_locks AS l (kind, name, token, term, pid, hostname, acquired_at, expires_at, hold_until)
    SELECT $1, $2, $3::text,
           greatest((SELECT s.term FROM seen s) + 1, (SELECT f.term FROM named_locks_floor f) + 1, floor(extract(epoch FROM settings.now) * 1000)::bigint),
           $4::bigint, $5::text, settings.now, clock_timestamp() + $6::bigint * interval '1 millisecond',
           CASE WHEN $7::bigint > 0 THEN clock_timestamp() + $7 * interval '1 millisecond' END
    FROM settings
    WHERE NOT EXISTS (SELECT FROM seen s WHERE NOT s.free)
    ON CONFLICT (kind, name) DO UPDATE
    SET token = EXCLUDED.token, term = greatest(l.term + 1, EXCLUDED.term), pid = EXCLUDED.pid, hostname = EXCLUDED.hostname,
        acquired_at = EXCLUDED.acquired_at, expires_at = clock_timestamp() + $6 * interval '1 millisecond',
        hold_until = CASE WHEN $7 > 0 THEN clock_timestamp() + $7 * interval '1 millisecond' END
    WHERE ` + sqlNamedFree + `
    RETURNING l.term
)
SELECT t.term, s.free, s.token, s.term, s.pid, s.hostname, s.acquired_at, s.expires_at, s.hold_until, s.now
FROM (SELECT) AS one LEFT JOIN taken t ON true LEFT JOIN seen s ON true`

// Take implements named.Store.
func (n *namedStore) Take(ctx context.Context, c named.Claim) (int64, *named.Row, error) {
	s := (*Store)(n)
	var (
		term pgtype.Int8
		free pgtype.Bool
		seen namedRow
	)
	err := s.pool.QueryRow(ctx, sqlNamedTake, s.mode(), string(c.Kind), c.Name, c.Token.String(), int64(c.PID), text(c.Hostname),
		c.TTL.Milliseconds(), c.Hold.Milliseconds()).Scan(append([]any{&term, &free}, seen.dest()...)...)
	switch code(err) {
	case codeLockTimeout: // it has ended, but a fenced transaction of its holder has not
		return 0, n.blocked(ctx, c.Key), nil
	case codeSerialization, codeUnique: // somebody was faster, in a session whose isolation is strict
		return 0, nil, nil
	}
	switch {
	case err != nil:
		return 0, nil, s.explain(err)
	case term.Valid:
		return term.Int64, nil, nil
	case free.Valid && !free.Bool:
		return 0, seen.row(c.Key), nil
	}
	return 0, nil, nil // somebody was faster
}

const sqlNamedAnyway = `
SELECT ` + sqlNamedColumns + ` FROM named_locks l WHERE l.kind = $1::text AND l.name = $2::text`

// blocked is the row of a holder whose lock has ended, while a transaction of
// its own is guarded still; nil if it cannot be read.
func (n *namedStore) blocked(ctx context.Context, key named.Key) *named.Row {
	s := (*Store)(n)
	var r namedRow
	if err := s.pool.QueryRow(ctx, sqlNamedAnyway, s.mode(), string(key.Kind), key.Name).Scan(r.dest()...); err != nil {
		return nil
	}
	return r.row(key)
}

const sqlNamedLook = sqlNamedAnyway + ` AND NOT ` + sqlNamedFree

// Look implements named.Store.
func (n *namedStore) Look(ctx context.Context, key named.Key) (*named.Row, error) {
	s := (*Store)(n)
	var r namedRow
	err := s.pool.QueryRow(ctx, sqlNamedLook, s.mode(), string(key.Kind), key.Name).Scan(r.dest()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, s.explain(err)
	}
	return r.row(key), nil
}

// namedRow takes sqlNamedColumns: all NULL if there is no row.
type namedRow struct {
	token, hostname              pgtype.Text
	term, pid                    pgtype.Int8
	acquired, expires, hold, now pgtype.Timestamptz
}

func (r *namedRow) dest() []any {
	return []any{&r.token, &r.term, &r.pid, &r.hostname, &r.acquired, &r.expires, &r.hold, &r.now}
}

func (r *namedRow) row(key named.Key) *named.Row {
	now, end := stamp(r.now), stamp(r.expires)
	token, _ := schedlock.ParseToken(r.token.String) // an edited one is nobody's
	row := &named.Row{Token: token, Info: named.Info{
		Key:        key,
		Owner:      schedlock.Owner{PID: int(r.pid.Int64), Hostname: r.hostname.String},
		Term:       r.term.Int64,
		AcquiredAt: stamp(r.acquired),
		Age:        now.Sub(stamp(r.acquired)),
		Resting:    !r.token.Valid,
	}}
	if hold := stamp(r.hold); row.Resting || hold.After(end) {
		end = hold
	}
	row.Left = max(end.Sub(now), 0)
	return row
}

// What has expired is never touched, though nobody may have taken it. No key
// is changed, so a fence is no obstacle.
const (
	sqlNamedOurs = `
l.kind = $1::text AND l.name = $2::text AND l.token = $3::text AND (l.term = $4::bigint OR $4 = 0) AND l.expires_at > clock_timestamp()`

	// It is flushed to this server's disk, whatever the session's setting, and
	// waits for no replica.
	sqlNamedExtend = `
UPDATE named_locks l SET expires_at = clock_timestamp() + $5::bigint * interval '1 millisecond'
WHERE ` + sqlNamedOurs + `
RETURNING set_config('synchronous_commit', 'local', true)`

	sqlNamedRelease = `
UPDATE named_locks l
SET token = NULL,
    expires_at = greatest(clock_timestamp(), CASE WHEN $5::boolean THEN l.hold_until END),
    hold_until = CASE WHEN $5 AND l.hold_until > clock_timestamp() THEN l.hold_until END
WHERE ` + sqlNamedOurs + `
RETURNING set_config('synchronous_commit', 'local', true)`
)

// Extend implements named.Store.
func (n *namedStore) Extend(ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
	return n.update(ctx, sqlNamedExtend, ref, ttl.Milliseconds())
}

// Release implements named.Store.
func (n *namedStore) Release(ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
	return n.update(ctx, sqlNamedRelease, ref, keepHold)
}

// update runs a statement that changes the row of ref, and tells whether it has.
func (n *namedStore) update(ctx context.Context, query string, ref named.Ref, arg any) (bool, error) {
	s := (*Store)(n)
	var setting string
	err := s.pool.QueryRow(ctx, query, s.mode(), string(ref.Kind), ref.Name, ref.Token.String(), ref.Term, arg).Scan(&setting)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case code(err) == codeSerialization: // in a session whose isolation is strict: somebody has changed the row
		return false, nil
	}
	return err == nil, s.explain(err)
}

// sqlNamedFence locks the row so that extending passes and a take-over waits.
// The server ends a transaction that is idle for the TTL, as with sqlFence.
const sqlNamedFence = `
SELECT set_config('idle_in_transaction_session_timeout',
           CASE WHEN own.ms BETWEEN 1 AND $5::bigint THEN own.ms ELSE $5 END::bigint::text, true)
FROM named_locks l
CROSS JOIN (SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000 AS ms) AS own
WHERE ` + sqlNamedOurs + `
FOR KEY SHARE OF l`

// Fence implements named.Store; tx must be a pgx.Tx or a *sql.Tx, of any
// isolation level, on the database of the locks.
func (n *namedStore) Fence(ctx context.Context, tx any, ref named.Ref, ttl time.Duration) (bool, error) {
	s := (*Store)(n)
	var (
		limit string
		err   error
	)
	args := []any{string(ref.Kind), ref.Name, ref.Token.String(), ref.Term, ttl.Milliseconds()}
	switch tx := tx.(type) {
	case pgx.Tx:
		err = tx.QueryRow(ctx, sqlNamedFence, args...).Scan(&limit)
	case *sql.Tx:
		err = tx.QueryRowContext(ctx, sqlNamedFence, args...).Scan(&limit)
	default:
		return false, fmt.Errorf("%w: it is a %T, neither a pgx.Tx nor a *sql.Tx", schedlock.ErrNoFence, tx)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows):
		return false, nil
	case code(err) == codeNoTable:
		return false, fmt.Errorf("%w: %w", schedlock.ErrNoFence, err)
	case code(err) == codeSerialization: // another has taken it since the transaction's snapshot
		return false, nil
	}
	return err == nil, s.explain(err)
}

// sqlNamedClean raises the floor in the same transaction, so that no term is
// granted twice. A row that somebody is just taking is left.
const sqlNamedClean = `
WITH old AS MATERIALIZED (
    SELECT l.kind, l.name FROM named_locks l
    WHERE l.expires_at <= (SELECT clock_timestamp() - interval '1 day') AND ` + sqlNamedFree + `
    ORDER BY l.expires_at LIMIT $1::bigint
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM named_locks d USING old
    WHERE d.kind = old.kind AND d.name = old.name
    RETURNING d.term
), raised AS (
    UPDATE named_locks_floor f SET term = greatest(f.term, (SELECT max(g.term) FROM gone g))
    WHERE EXISTS (SELECT FROM gone)
)
SELECT count(*) FROM gone`

// Clean implements named.Store.
func (n *namedStore) Clean(ctx context.Context, limit int) (deleted int64, err error) {
	s := (*Store)(n)
	err = s.pool.QueryRow(ctx, sqlNamedClean, s.mode(), int64(max(limit, 0))).Scan(&deleted)
	return deleted, s.explain(err)
}
