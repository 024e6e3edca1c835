package sqlite

import (
	"context"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/ledger"
)

const (
	sqlPresent = `
INSERT INTO scheduler_replicas (instance, pid, hostname, version, state, reason, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (instance) DO UPDATE
SET state = excluded.state, reason = excluded.reason, seen_at = excluded.seen_at`

	sqlAbsent = `
DELETE FROM scheduler_replicas WHERE instance = ?1`

	sqlForgetReplicas = `
DELETE FROM scheduler_replicas WHERE seen_at < ?1`

	sqlReplicas = `
SELECT ` + columns.ReplicaColumns + ` FROM scheduler_replicas r
ORDER BY r.hostname, r.pid, r.instance`
)

// Present implements ledger.Store.
func (s *Store) Present(ctx context.Context, r ledger.Replica, forget bool) error {
	return s.lazily(ctx, func(ctx context.Context, tx tx) error {
		now := s.now()
		_, err := tx.exec(ctx, sqlPresent, r.Instance, r.PID, r.Hostname, r.Version, r.State,
			r.Reason, formatTime(now))
		if err == nil && forget {
			_, err = tx.exec(ctx, sqlForgetReplicas, formatTime(now.Add(-ledger.ReplicaGone)))
		}
		return err
	})
}

// Absent implements ledger.Store.
func (s *Store) Absent(ctx context.Context, instance string) error {
	return s.lazily(ctx, func(ctx context.Context, tx tx) error {
		_, err := tx.exec(ctx, sqlAbsent, instance)
		return err
	})
}

// Replicas implements ledger.Store.
func (s *Store) Replicas(ctx context.Context) ([]ledger.Replica, error) {
	var r columns.Replica
	rows, err := s.db.QueryContext(ctx, sqlReplicas)
	now := s.now()
	list, err := columns.All(rows, err, r.Dest(), func() ledger.Replica { return r.Value(now) })
	return list, s.explain(err)
}
