package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Named returns the named locks of the database. It may be called several
// times. They are judged by the server's clock, whatever the clocks of its
// clients say; one that is set forward on the server ends locks early, and then
// only fences protect. Every operation is one plain statement on the pool
// that also serves the queues.
func (s *Store) Named() namedlock.Store { return namedStore{s} }

type namedStore struct{ s *Store }

// sqlNamedFree is true for a row l that anybody can take. It asks the clock when
// the row is looked at, which may be after a wait for it.
const sqlNamedFree = `((l.token IS NULL OR l.expires_at <= clock_timestamp())
      AND (l.hold_until IS NULL OR l.hold_until <= clock_timestamp()))`

// sqlNamedColumns are those of columns.Named.
const sqlNamedColumns = `l.token, l.term, l.pid, l.hostname, l.acquired_at, l.expires_at,
           l.hold_until, ` + sqlNamedTTL + ` AS ttl_ms, clock_timestamp() AS now`

// sqlNamedTTL is NULL where code that did not know the column has taken the
// lock.
const sqlNamedTTL = `CASE WHEN l.ttl_of = l.term THEN l.ttl_ms END`

// sqlNamedTake inserts the row, or updates one that is free. What is seen to be
// taken is not touched: to lock its row would be a write, and get into the
// holder's way. The term is computed from that look, too: a row that is cleaned
// up between the look and the insertion is in no later one.
//
// On a timeline that nobody has noticed yet, and for a TTL after that, it takes
// nothing: it asks the server that executes it, so it may have travelled over a
// fail-over.
//
// The update changes a key (see the migration), so it waits for the
// transactions that a fence guards: not for long, as it has a connection.
const sqlNamedTake = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlTimeline + ` AS timeline,
           set_config('lock_timeout', '250ms', true), ` + sqlDurable + `
), seen AS MATERIALIZED (
    SELECT ` + sqlNamedColumns + `, ` + sqlNamedFree + ` AS free
    FROM settings CROSS JOIN named_locks l
    WHERE l.kind = $1::text AND l.name = $2::text
), server AS MATERIALIZED (
    SELECT s.now, f.term, ` + sqlNamedNoted + ` AS noted,
           coalesce(least(greatest($6::bigint, l.ttl_ms), $8::bigint)
               - ` + sqlNamedSince + `, 0) AS wait_ms
    FROM settings s LEFT JOIN named_locks_floor f ON f.id = 1 LEFT JOIN seen l ON true
), taken AS (
    INSERT INTO named_locks AS l (kind, name, token, term, pid, hostname, acquired_at, expires_at,
                                  hold_until, ttl_ms, ttl_of)
    SELECT $1, $2, $3::text, granted.term, $4::bigint, $5::text, server.now,
           clock_timestamp() + $6 * interval '1 millisecond',
           CASE WHEN $7::bigint > 0 THEN clock_timestamp() + $7 * interval '1 millisecond' END,
           $6, granted.term
    FROM server CROSS JOIN LATERAL (
        SELECT greatest((SELECT s.term FROM seen s) + 1, server.term + 1,
                        floor(extract(epoch FROM server.now) * 1000)::bigint)
    ) AS granted (term)
    WHERE server.noted AND server.wait_ms <= 0 AND NOT EXISTS (SELECT FROM seen s WHERE NOT s.free)
    ON CONFLICT (kind, name) DO UPDATE
    SET token = EXCLUDED.token, term = greatest(l.term + 1, EXCLUDED.term),
        pid = EXCLUDED.pid, hostname = EXCLUDED.hostname, acquired_at = EXCLUDED.acquired_at,
        expires_at = clock_timestamp() + $6 * interval '1 millisecond',
        hold_until = CASE WHEN $7 > 0 THEN clock_timestamp() + $7 * interval '1 millisecond' END,
        ttl_ms = $6, ttl_of = greatest(l.term + 1, EXCLUDED.term)
    WHERE ` + sqlNamedFree + `
    RETURNING l.term
)
SELECT t.term, v.noted, v.wait_ms, s.free, s.token, s.term, s.pid, s.hostname,
       s.acquired_at, s.expires_at, s.hold_until, s.ttl_ms, s.now
FROM server v LEFT JOIN taken t ON true LEFT JOIN seen s ON true`

// Take implements namedlock.Store.
func (n namedStore) Take(ctx context.Context, c namedlock.Claim) (int64, *namedlock.Row, error) {
	for range 3 {
		var (
			term        pgtype.Int8
			free, noted pgtype.Bool
			wait        int64
			seen        columns.Named
		)
		err := n.s.patient.QueryRow(ctx, sqlNamedTake, n.s.mode(), string(c.Kind), c.Name,
			c.Token.String(), int64(c.PID), text(c.Hostname),
			c.TTL.Milliseconds(), c.Hold.Milliseconds(),
			namedlock.MaxTTL.Milliseconds()).Scan(append([]any{&term, &noted, &wait, &free},
			seen.Dest()...)...)
		switch code(err) {
		case codeLockTimeout: // it has ended, but a fenced transaction of its holder has not
			return 0, n.blocked(ctx, c.Key), nil
		case codeSerialization, codeUnique:
			// The session's isolation is strict, and somebody was faster.
			return 0, nil, nil
		}
		switch {
		case err != nil:
			return 0, nil, n.s.explain(err)
		case term.Valid:
			return term.Int64, nil, nil
		case noted.Bool && free.Valid && !free.Bool:
			return 0, n.mend(ctx, seen.Row(c.Key)), nil
		case noted.Bool && wait > 0:
			return 0, columns.FailedOver(c.Key, columns.Millis(wait)), nil
		case noted.Bool: // somebody was faster
			return 0, nil, nil
		}
		if err := n.note(ctx); err != nil {
			return 0, nil, err
		}
	}
	return 0, nil, nil
}

const sqlNamedAnyway = `
SELECT ` + sqlNamedColumns + ` FROM named_locks l WHERE l.kind = $1::text AND l.name = $2::text`

// blocked is the row of a holder whose lock has ended, while a transaction of
// its own is guarded still; nil if it cannot be read.
func (n namedStore) blocked(ctx context.Context, key namedlock.Key) *namedlock.Row {
	var r columns.Named
	if err := n.s.pool.QueryRow(ctx, sqlNamedAnyway, n.s.mode(), string(key.Kind),
		key.Name).Scan(r.Dest()...); err != nil {
		return nil
	}
	return r.Row(key)
}

const sqlNamedLook = `
SELECT ` + sqlNamedNoted + `, ` + sqlNamedSince + `, ` + sqlNamedFree + `, ` + sqlNamedColumns + `
FROM (SELECT clock_timestamp() AS now, ` + sqlTimeline + ` AS timeline) AS s
LEFT JOIN named_locks_floor f ON f.id = 1
LEFT JOIN named_locks l ON l.kind = $1::text AND l.name = $2::text`

// Look implements namedlock.Store.
func (n namedStore) Look(ctx context.Context, key namedlock.Key) (*namedlock.Row, error) {
	var (
		noted, free pgtype.Bool
		since       sql.NullInt64
		r           columns.Named
	)
	err := n.s.pool.QueryRow(ctx, sqlNamedLook, n.s.mode(), string(key.Kind),
		key.Name).Scan(append([]any{&noted, &since, &free}, r.Dest()...)...)
	if err != nil {
		return nil, n.s.explain(err)
	}
	return r.AfterFailOver(key, free.Bool, noted.Bool, since), nil
}

const sqlNamedList = `
SELECT l.kind, l.name, ` + sqlNamedColumns + ` FROM named_locks l
WHERE NOT ` + sqlNamedFree + ` OR l.token LIKE 'revoked:%'
ORDER BY l.kind COLLATE "C", l.name LIMIT $1::bigint`

// List implements namedlock.Store.
func (n namedStore) List(ctx context.Context, limit int) ([]namedlock.Row, error) {
	var (
		kind, name string
		r          columns.Named
	)
	return all(ctx, n.s.pool, append([]any{&kind, &name}, r.Dest()...), func() namedlock.Row {
		return *r.Row(namedlock.Key{Kind: namedlock.Kind(kind), Name: name})
	}, sqlNamedList, n.s.mode(), int64(limit))
}

// sqlNamedRevoke changes no key: a fenced transaction of the holder is no
// obstacle, and may still commit, as nobody takes the lock before it ends.
const sqlNamedRevoke = `
UPDATE named_locks l
SET token = $4::text, hold_until = NULL,
    expires_at = CASE WHEN l.kind = 'timeout' OR l.token IS NULL THEN clock_timestamp()
                      ELSE l.expires_at END
WHERE l.kind = $1::text AND l.name = $2::text AND l.term = $3::bigint AND NOT ` + sqlNamedFree + `
  AND (l.token IS NULL OR l.token NOT LIKE 'revoked:%')
RETURNING set_config('synchronous_commit', 'local', true)`

// Revoke implements namedlock.Store.
func (n namedStore) Revoke(ctx context.Context, key namedlock.Key, term int64,
	mark string) (bool, error) {
	return n.changed(ctx, sqlNamedRevoke, string(key.Kind), key.Name, term, mark)
}

// What has expired is never touched, though nobody may have taken it. No key
// is changed, so a fence is no obstacle.
const (
	sqlNamedOurs = `
l.kind = $1::text AND l.name = $2::text AND l.token = $3::text
  AND (l.term = $4::bigint OR $4::bigint = 0) AND l.expires_at > clock_timestamp()`

	// It is flushed to this server's disk, whatever the session's setting, and
	// waits for no replica.
	sqlNamedExtend = `
UPDATE named_locks l
SET expires_at = clock_timestamp() + $5::bigint * interval '1 millisecond',
    ttl_ms = $5, ttl_of = l.term
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

// Extend implements namedlock.Store.
func (n namedStore) Extend(ctx context.Context, ref namedlock.Ref,
	ttl time.Duration) (bool, error) {
	return n.update(ctx, sqlNamedExtend, ref, ttl.Milliseconds())
}

// Release implements namedlock.Store.
func (n namedStore) Release(ctx context.Context, ref namedlock.Ref, keepHold bool) (bool, error) {
	return n.update(ctx, sqlNamedRelease, ref, keepHold)
}

// update runs a statement that changes the row of ref, and tells whether it has.
func (n namedStore) update(ctx context.Context, query string, ref namedlock.Ref,
	arg any) (bool, error) {
	return n.changed(ctx, query, string(ref.Kind), ref.Name, ref.Token.String(), ref.Term, arg)
}

// changed runs a statement that changes a row, and tells whether it has.
func (n namedStore) changed(ctx context.Context, query string, args ...any) (bool, error) {
	var setting string
	err := n.s.pool.QueryRow(ctx, query, append([]any{n.s.mode()}, args...)...).Scan(&setting)
	// The second: the session's isolation is strict, and somebody has changed the row.
	if errors.Is(err, pgx.ErrNoRows) || code(err) == codeSerialization {
		return false, nil
	}
	return err == nil, n.s.explain(err)
}

// sqlNamedFence locks the row so that extending passes and a take-over waits: that
// changes the term, which is part of a unique index. The server ends a transaction
// that is idle for the TTL.
func sqlNamedFence(locks string) string {
	return `
SELECT ` + sqlIdle("$5::bigint") + `,
       ` + sqlNotice("true") + `
FROM ` + locks + ` l
WHERE ` + sqlNamedOurs + `
FOR KEY SHARE OF l`
}

// Fence implements namedlock.Store; tx must be a pgx.Tx or a *sql.Tx, of any
// isolation level, on the database of the locks.
func (n namedStore) Fence(ctx context.Context, tx any, ref namedlock.Ref,
	ttl time.Duration) (bool, error) {
	query, err := inside(ctx, tx)
	if err != nil {
		return false, err
	}
	err = query(sqlNamedFence(n.s.table("named_locks")), string(ref.Kind), ref.Name,
		ref.Token.String(), ref.Term, ttl.Milliseconds()).Scan(new(pgtype.Text), new(pgtype.Text))
	switch {
	case errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows):
		return false, n.s.explainTheirs(concealed(query, n.s.table("named_locks")))
	case code(err) == codeNoTable:
		return false, fmt.Errorf("%w: %w", driver.ErrNoFence, err)
	case code(err) == codeSerialization: // another has taken it since the transaction's snapshot
		return false, nil
	}
	return err == nil, n.s.explainTheirs(err)
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

// Clean implements namedlock.Store.
func (n namedStore) Clean(ctx context.Context, limit int) (deleted int64, err error) {
	err = n.s.pool.QueryRow(ctx, sqlNamedClean, n.s.mode(), int64(max(limit, 0))).Scan(&deleted)
	return deleted, n.s.explain(err)
}
