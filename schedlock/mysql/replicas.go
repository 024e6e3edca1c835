package mysql

import (
	"context"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/ledger"
)

const (
	sqlPresent = `
INSERT INTO scheduler_replicas (instance, pid, hostname, version, state, reason, seen_at)
VALUES (?, ?, ?, ?, ?, ?, NOW(6))
ON DUPLICATE KEY UPDATE state = VALUES(state), reason = VALUES(reason), seen_at = VALUES(seen_at)`

	sqlForgetReplicas = `
DELETE FROM scheduler_replicas
WHERE seen_at < NOW(6) - INTERVAL ? MICROSECOND AND instance <> ?`

	sqlAbsent = `
DELETE FROM scheduler_replicas WHERE instance = ?`

	sqlReplicas = `
SELECT ` + columns.ReplicaColumns + `, NOW(6) FROM scheduler_replicas r
ORDER BY r.hostname, r.pid, r.instance`
)

// Present implements ledger.Store.
func (s *Store) Present(ctx context.Context, r ledger.Replica, forget bool) error {
	_, err := s.shared.exec(ctx, sqlPresent, text(r.Instance), r.PID, text(r.Hostname),
		text(r.Version), text(r.State), text(r.Reason))
	if err == nil && forget {
		_, err = s.shared.exec(ctx, sqlForgetReplicas, ledger.ReplicaGone.Microseconds(),
			text(r.Instance))
	}
	return s.explain(err)
}

// Absent implements ledger.Store.
func (s *Store) Absent(ctx context.Context, instance string) error {
	_, err := s.shared.exec(ctx, sqlAbsent, text(instance))
	return s.explain(err)
}

// Replicas implements ledger.Store.
func (s *Store) Replicas(ctx context.Context) ([]ledger.Replica, error) {
	var (
		r   columns.Replica
		now columns.Time
	)
	return all(ctx, s, s.shared, append(r.Dest(), &now),
		func() ledger.Replica { return r.Value(now.Time) }, sqlReplicas)
}
