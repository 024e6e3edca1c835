package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"example.com/schedlock/internal/ledgersql"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// The statements of a revocation, in their order.
const (
	sqlRevoke = `
UPDATE scheduler_lock SET state = 'revoked' WHERE id = 1 AND term = ?1`

	sqlKeepRevocation = `
UPDATE scheduler_terms
SET revoked_at    = coalesce(revoked_at, ?2),
    revoked_by    = CASE WHEN revoked_at IS NULL THEN ?3 ELSE revoked_by END,
    revoke_reason = CASE WHEN revoked_at IS NULL THEN ?4 ELSE revoke_reason END
WHERE term = ?1
RETURNING revoked_at, revoked_by, revoke_reason`
)

// Revoke implements driver.Store.
func (s *Store) Revoke(ctx context.Context, term int64, by,
	reason string) (driver.Revocation, error) {
	return within(ctx, s.write, func(ctx context.Context, tx tx) (r driver.Revocation, err error) {
		n, err := tx.exec(ctx, sqlRevoke, term)
		if err != nil {
			return r, err
		}
		if n == 0 {
			return r, driver.ErrConflict
		}
		at := s.now()
		now := formatTime(at)
		r = driver.Revocation{At: stamp(now), By: by, Reason: reason}
		o := ledger.Action{By: by, Reason: reason}
		var kept, who, why sql.NullString
		err = tx.row(ctx, sqlKeepRevocation, []any{term, now, by, reason}, &kept, &who,
			&why)
		if errors.Is(err, sql.ErrNoRows) {
			// Somebody has deleted the term from the history.
			return r, ledgersql.Note(ctx, s.runLedger, tx, at, ledger.OrderHandOver, o)
		}
		r = driver.Revocation{At: stamp(kept.String), By: who.String, Reason: why.String}
		if err == nil && kept.String == now { // the first one
			err = ledgersql.Note(ctx, s.runLedger, tx, at, ledger.OrderHandOver, o)
		}
		return r, err
	})
}
