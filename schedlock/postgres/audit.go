package postgres

import (
	"context"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/ledger"
)

// sqlNote goes on a statement that carries out an order, and has the row of it, or
// none, as given (at, what, job, by, reason). It does not see its own row: so it
// keeps ledger.KeepAudit - 1 of those before.
const sqlNote = `, noted AS (
    INSERT INTO scheduler_audit (at, what, job, by, reason)
    SELECT g.at, g.what, g.job, g.by, g.reason FROM given g
), trimmed AS (
    DELETE FROM scheduler_audit a
    WHERE EXISTS (SELECT FROM given)
      AND a.id <= (SELECT o.id FROM scheduler_audit o ORDER BY o.id DESC LIMIT 1 OFFSET 999)
)`

const sqlAudit = `
SELECT ` + columns.AuditColumns + ` FROM scheduler_audit a
WHERE $1::text IN ('', a.job) ORDER BY a.id DESC LIMIT $2::bigint`

// Audit implements ledger.Store.
func (s *Store) Audit(ctx context.Context, job string, limit int) ([]ledger.AuditEntry, error) {
	var a columns.Audit
	return all(ctx, s.pool, a.Dest(), a.Value, sqlAudit, text(job), int64(max(limit, 0)))
}
