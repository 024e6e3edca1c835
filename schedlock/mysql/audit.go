package mysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/ledger"
)

const (
	sqlInsertAudit = `
INSERT INTO scheduler_audit (at, what, job, ` + "`by`" + `, reason) VALUES (?, ?, ?, ?, ?)`

	sqlOldAudit = `
SELECT id FROM scheduler_audit ORDER BY id DESC LIMIT 1 OFFSET ?`

	sqlTrimAudit = `
DELETE FROM scheduler_audit WHERE id <= ?`
)

// note writes down an order, in the transaction that carries it out.
func note(ctx context.Context, tx tx, at time.Time, what string, o ledger.Action) error {
	if _, err := tx.exec(ctx, sqlInsertAudit, formatTime(at), what, o.Job, o.By,
		o.Reason); err != nil {
		return err
	}
	var old int64
	err := tx.row(ctx, sqlOldAudit, []any{ledger.KeepAudit}, &old)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		_, err = tx.exec(ctx, sqlTrimAudit, old)
	}
	return err
}

const (
	sqlAudit = `
SELECT ` + columns.AuditColumns + ` FROM scheduler_audit a ORDER BY a.id DESC LIMIT ?`

	sqlAuditOfJob = `
SELECT ` + columns.AuditColumns + ` FROM scheduler_audit a WHERE a.job = ?
ORDER BY a.id DESC LIMIT ?`
)

// Audit implements ledger.Store.
func (s *Store) Audit(ctx context.Context, job string, limit int) ([]ledger.AuditEntry, error) {
	query, args := sqlAudit, []any{max(limit, 0)}
	if job != "" {
		query, args = sqlAuditOfJob, []any{text(job), max(limit, 0)}
	}
	var a columns.Audit
	return all(ctx, s, s.shared, a.Dest(), a.Value, query, args...)
}
