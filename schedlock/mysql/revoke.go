package mysql

import (
	"context"
	"database/sql"
	"errors"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/internal/ledgersql"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const (
	sqlRevoke = `
UPDATE scheduler_lock SET state = 'revoked' WHERE id = 1 AND term = ?`

	sqlKeepRevocation = `
UPDATE scheduler_terms SET revoked_at = ?, revoked_by = ?, revoke_reason = ?
WHERE term = ? AND revoked_at IS NULL`

	sqlRevocation = `
SELECT revoked_at, revoked_by, revoke_reason FROM scheduler_terms
WHERE term = ? AND revoked_at IS NOT NULL`
)

// Revoke implements driver.Store.
func (s *Store) Revoke(ctx context.Context, term int64, by,
	reason string) (r driver.Revocation, err error) {
	err = s.shared.write(ctx, func(ctx context.Context, tx tx) error {
		now, err := tx.now(ctx)
		if err != nil {
			return err
		}
		n, err := tx.exec(ctx, sqlRevoke, term)
		if err != nil {
			return err
		}
		if n == 0 {
			return driver.ErrConflict
		}
		n, err = tx.exec(ctx, sqlKeepRevocation, formatTime(now), text(by), text(reason), term)
		if err != nil {
			return err
		}
		var at columns.Time
		r = driver.Revocation{}
		err = tx.row(ctx, sqlRevocation, []any{term}, &at, &r.By, &r.Reason)
		r.At = at.Time
		known := err == nil
		if errors.Is(err, sql.ErrNoRows) { // somebody has deleted the term from the history
			r, err = driver.Revocation{At: now, By: by, Reason: reason}, nil
		}
		if err == nil && (n > 0 || !known) {
			err = ledgersql.Note(ctx, s.runLedger, tx, now, ledger.OrderHandOver,
				ledger.Action{By: text(by), Reason: text(reason)})
		}
		return err
	})
	if err != nil {
		return driver.Revocation{}, s.explain(err)
	}
	return r, nil
}
