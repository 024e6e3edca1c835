package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

// sqlRevoke changes the row and keeps the order in one statement; nothing is
// kept if the row does not bear the term.
const sqlRevoke = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('lock_timeout', '1s', true), ` + sqlDurable + `
), revoked AS (
    UPDATE scheduler_lock l SET state = 'revoked' FROM settings
    WHERE l.id = 1 AND l.term = $1::bigint
    RETURNING l.term, settings.now
), kept AS (
    UPDATE scheduler_terms t
    SET revoked_at    = coalesce(t.revoked_at, r.now),
        revoked_by    = CASE WHEN t.revoked_at IS NULL THEN $2::text ELSE t.revoked_by END,
        revoke_reason = CASE WHEN t.revoked_at IS NULL THEN $3::text ELSE t.revoke_reason END
    FROM revoked r WHERE t.term = r.term
    RETURNING t.revoked_at, t.revoked_by, t.revoke_reason
), given AS (
    SELECT r.now AS at, 'hand-over' AS what, '' AS job, $2 AS by, $3 AS reason
    FROM revoked r LEFT JOIN kept k ON true WHERE k.revoked_at IS NULL OR k.revoked_at = r.now
)` + sqlNote + `
SELECT r.now, k.revoked_at, k.revoked_by, k.revoke_reason FROM revoked r LEFT JOIN kept k ON true`

// Revoke implements driver.Store: one statement, which waits for
// another transaction for a second at most.
func (s *Store) Revoke(ctx context.Context, term int64, by,
	reason string) (r driver.Revocation, err error) {
	var (
		now, at  columns.Time
		who, why pgtype.Text
	)
	err = s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return s.on(conn).QueryRow(ctx, sqlRevoke, s.mode(), term, text(by),
			text(reason)).Scan(&now, &at, &who, &why)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return r, driver.ErrConflict
	case err != nil:
		return r, err
	case !at.Valid: // somebody has deleted the term from the history
		return driver.Revocation{At: now.Time, By: by, Reason: reason}, nil
	}
	return driver.Revocation{At: at.Time, By: who.String, Reason: why.String}, nil
}
