package memory

import (
	"context"
	"time"

	"example.com/schedlock/schedlock"
)

// Revoke implements schedlock.RevocableStore.
func (s *Store) Revoke(ctx context.Context, term int64, by, reason string) (r schedlock.Revocation, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if !t.held || t.row.Term != term {
			return schedlock.ErrMoved
		}
		t.row.State = schedlock.StateRevoked
		r = schedlock.Revocation{At: now, By: by, Reason: reason}
		for i := range t.terms {
			if t.terms[i].Term != term {
				continue
			}
			if t.terms[i].Revoked == (schedlock.Revocation{}) {
				t.terms[i].Revoked = r
			}
			r = t.terms[i].Revoked
		}
		return nil
	})
	return r, err
}
