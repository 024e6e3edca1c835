package schedlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock/driver"
)

// Revoke tells the holder of term to leave: at its next heartbeat it starts
// nothing new, waits for what runs up to its drain limit, and releases the
// lock, so that another replica leads. by says who tells it (required, at most
// 200 bytes), reason why (at most 1,000 bytes); the history keeps both. It may
// be called from any process, and again: the first revocation of a term is the
// one that is kept and returned.
//
// It ends no lease by itself. The row of a holder that is dead or hung goes by
// the rules of every other one, never earlier. The error wraps [driver.ErrConflict] if
// term does not hold the lock any more.
func Revoke(ctx context.Context, store driver.Store, term int64, by,
	reason string) (Revocation, error) {
	by, reason = strings.TrimSpace(by), strings.TrimSpace(reason)
	if err := names.CheckOrder("the name of who revokes", by, reason); err != nil {
		return Revocation{}, fmt.Errorf("revoke term %d: %w", term, err)
	}
	r, err := store.Revoke(ctx, term, by, reason)
	if errors.Is(err, driver.ErrConflict) {
		return Revocation{}, fmt.Errorf("revoke term %d: it does not hold the lock any more: %w",
			term, err)
	}
	if err != nil {
		return Revocation{}, fmt.Errorf("revoke term %d: %w", term, err)
	}
	return r, nil
}
