package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// Present implements ledger.Store.
func (s *Store) Present(ctx context.Context, r ledger.Replica, forget bool) error {
	return s.do(ctx, func(t *tables, now time.Time) error {
		t.replicas = slices.DeleteFunc(slices.Clone(t.replicas), func(o ledger.Replica) bool {
			return o.Instance == r.Instance || forget && now.Sub(o.SeenAt) > ledger.ReplicaGone
		})
		r.SeenAt, r.Silent = now, 0
		t.replicas = append(t.replicas, r)
		return nil
	})
}

// Absent implements ledger.Store.
func (s *Store) Absent(ctx context.Context, instance string) error {
	return s.do(ctx, func(t *tables, _ time.Time) error {
		t.replicas = slices.DeleteFunc(slices.Clone(t.replicas), func(o ledger.Replica) bool {
			return o.Instance == instance
		})
		return nil
	})
}

// Replicas implements ledger.Store.
func (s *Store) Replicas(ctx context.Context) (list []ledger.Replica, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		list = append([]ledger.Replica{}, t.replicas...)
		for i := range list {
			list[i].Silent = max(now.Sub(list[i].SeenAt), 0)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b ledger.Replica) int {
		return cmp.Or(cmp.Compare(a.Hostname, b.Hostname), cmp.Compare(a.PID, b.PID),
			cmp.Compare(a.Instance, b.Instance))
	})
	return list, err
}
