package postgres

import (
	"context"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/ledger"
)

// What is lost here with the server is told again half a minute later.
const (
	sqlPresent = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('lock_timeout', '1s', true),
           set_config('synchronous_commit', 'off', true)
), forgotten AS (
    DELETE FROM scheduler_replicas r USING settings s
    WHERE $7::bigint > 0 AND r.seen_at < s.now - $7 * interval '1 millisecond' AND r.instance <> $1
)
INSERT INTO scheduler_replicas AS r (instance, pid, hostname, version, state, reason, seen_at)
SELECT $1::text, $2::bigint, $3::text, $4::text, $5::text, $6::text, s.now FROM settings s
ON CONFLICT (instance) DO UPDATE
SET state = excluded.state, reason = excluded.reason, seen_at = excluded.seen_at`

	sqlAbsent = `
DELETE FROM scheduler_replicas WHERE instance = $1::text`

	sqlReplicas = `
SELECT ` + columns.ReplicaColumns + `, clock_timestamp() FROM scheduler_replicas r
ORDER BY r.hostname COLLATE "C", r.pid, r.instance`
)

// Present implements ledger.Store.
func (s *Store) Present(ctx context.Context, r ledger.Replica, forget bool) error {
	var after int64
	if forget {
		after = ledger.ReplicaGone.Milliseconds()
	}
	_, err := s.pool.Exec(ctx, sqlPresent, text(r.Instance), int64(r.PID), text(r.Hostname),
		text(r.Version), text(r.State), text(r.Reason), after)
	return s.explain(err)
}

// Absent implements ledger.Store.
func (s *Store) Absent(ctx context.Context, instance string) error {
	_, err := s.pool.Exec(ctx, sqlAbsent, text(instance))
	return s.explain(err)
}

// Replicas implements ledger.Store.
func (s *Store) Replicas(ctx context.Context) ([]ledger.Replica, error) {
	var (
		r   columns.Replica
		now columns.Time
	)
	return all(ctx, s.pool, append(r.Dest(), &now),
		func() ledger.Replica { return r.Value(now.Time) }, sqlReplicas)
}
