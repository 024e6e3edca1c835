package schedlock

import (
	"context"
	"fmt"

	"example.com/schedlock/schedlock/driver"
)

// GetLockInfo tells who holds the lock. It returns (nil, nil) when there is no
// row, and an error when it cannot tell: "free" and "could not read" are never
// the same answer. It only reads. It may be called from any process, at any
// time, concurrently. If ctx has no deadline the store has one of its own:
// PostgreSQL and MariaDB answer, or fail, within 10 s.
func GetLockInfo(ctx context.Context, store driver.Store) (*LockInfo, error) {
	view, err := store.Look(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the scheduler lock: %w", err)
	}
	return view.Info(), nil
}
