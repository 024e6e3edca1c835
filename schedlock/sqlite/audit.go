package sqlite

import (
	"context"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/ledger"
)

const (
	sqlInsertAudit = `
INSERT INTO scheduler_audit (at, what, job, by, reason) VALUES (?1, ?2, ?3, ?4, ?5)`

	sqlTrimAudit = `
DELETE FROM scheduler_audit
WHERE id <= (SELECT id FROM scheduler_audit ORDER BY id DESC LIMIT 1 OFFSET ?1)`
)

// note writes down an order, in the transaction that carries it out.
func note(ctx context.Context, tx tx, at time.Time, what string, o ledger.Action) error {
	if _, err := tx.exec(ctx, sqlInsertAudit, formatTime(at), what, o.Job, o.By,
		o.Reason); err != nil {
		return err
	}
	_, err := tx.exec(ctx, sqlTrimAudit, ledger.KeepAudit)
	return err
}

const sqlAudit = `
SELECT ` + columns.AuditColumns + ` FROM scheduler_audit a
WHERE ?1 IN ('', a.job) ORDER BY a.id DESC LIMIT ?2`

// Audit implements ledger.Store.
func (s *Store) Audit(ctx context.Context, job string, limit int) ([]ledger.AuditEntry, error) {
	var a columns.Audit
	rows, err := s.db.QueryContext(ctx, sqlAudit, job, max(limit, 0)) // -1 would be no limit
	list, err := columns.All(rows, err, a.Dest(), a.Value)
	return list, s.explain(err)
}
