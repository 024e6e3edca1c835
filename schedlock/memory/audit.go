package memory

import (
	"context"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// note writes down an order that is carried out.
func (t *tables) note(at time.Time, what string, o ledger.Action) {
	t.lastAudit++
	t.audit = append(t.audit, ledger.AuditEntry{ID: t.lastAudit, At: at, What: what, Action: o})
	t.audit = t.audit[max(0, len(t.audit)-ledger.KeepAudit):]
}

// Audit implements ledger.Store.
func (s *Store) Audit(ctx context.Context, job string,
	limit int) (list []ledger.AuditEntry, err error) {
	list = []ledger.AuditEntry{}
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		for i := len(t.audit) - 1; i >= 0 && len(list) < limit; i-- {
			if a := t.audit[i]; job == "" || a.Job == job {
				list = append(list, a)
			}
		}
		return nil
	})
	return list, err
}
