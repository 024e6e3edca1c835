package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock/driver"
)

// sqlIdle lets the server end the transaction when it was idle for limit, in
// milliseconds. A shorter limit of the app's own stays.
func sqlIdle(limit string) string {
	return `(SELECT set_config('idle_in_transaction_session_timeout',
                CASE WHEN own.ms BETWEEN 1 AND ` + limit + ` THEN own.ms
                     ELSE ` + limit + ` END::bigint::text, true)
            FROM (SELECT extract(epoch FROM current_setting(
                'idle_in_transaction_session_timeout')::interval) * 1000) AS own (ms))`
}

// sqlSaneTTL is driver.MaxTTL where a hand has written what no lease has: the server refuses a
// limit that is too long or below 0, and takes 0 for none.
var sqlSaneTTL = fmt.Sprintf(`CASE WHEN l.ttl_ms BETWEEN 1 AND %[1]d THEN l.ttl_ms ELSE %[1]d END`,
	driver.MaxTTL.Milliseconds())

// sqlFence locks the row so that heartbeats pass and a take-over waits (row
// locks, chapter 13.3.2 of the PostgreSQL manual). A client that dies in the
// middle must not block the fleet for good, so the server ends a transaction
// that is idle for the TTL. One that waits for a lock, or works, is not idle:
// there the server looks each second whether the client is there still.
//
// Behind a savepoint the server puts the number of a subtransaction into xmax,
// and the lock goes with it. Where others hold the row too, xmax has a number
// that tells nothing of us; where the outer transaction holds it, its own.
func sqlFence(lock string) string {
	return `
WITH held AS MATERIALIZED (
    SELECT l.id,
           ` + sqlIdle(sqlSaneTTL) + `,
           ` + sqlNotice("true") + `
    FROM ` + lock + ` l
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
			return s.explainTheirs(err)
		}
		return errNotOurs
	case code(err) == codeNoTable:
		return fmt.Errorf("%w: %w", driver.ErrNoFence, err)
	case code(err) == codeSerialization: // the row was deleted since the transaction's snapshot
		return fmt.Errorf("%w: %w", errNotOurs, err)
	case err == nil && behind.Bool:
		return errNested
	}
	return s.explainTheirs(err)
}
