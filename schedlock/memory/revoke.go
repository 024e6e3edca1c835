package memory

import (
	"context"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// Revoke implements driver.Store.
func (s *Store) Revoke(ctx context.Context, term int64, by,
	reason string) (r driver.Revocation, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if !t.held || t.row.Term != term {
			return driver.ErrConflict
		}
		t.row.State = driver.StateRevoked
		r = driver.Revocation{At: now, By: by, Reason: reason}
		first := true
		for i := range t.terms {
			if t.terms[i].Term != term {
				continue
			}
			if first = t.terms[i].Revoked == (driver.Revocation{}); first {
				t.terms[i].Revoked = r
			}
			r = t.terms[i].Revoked
		}
		if first {
			t.note(now, ledger.OrderHandOver, ledger.Action{By: by, Reason: reason})
		}
		return nil
	})
	return r, err
}
