package schedlock

import (
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/internal/rules"
)

// Errors to test for with errors.Is.
var (
	// ErrHeld: another replica holds the lock. It comes as a *HeldError.
	ErrHeld = errors.New("scheduler lock is held")

	// ErrUnreleased: this replica's own last lease, which it may hold still, was
	// not released yet, so its jobs may run: Acquire and Wait refuse another.
	ErrUnreleased = errors.New("this replica's lease was not released yet")

	// ErrReleased: the lease has ended by Release.
	ErrReleased = errors.New("scheduler lock was released")

	// ErrNotLeader: this replica does not hold the lock.
	ErrNotLeader = errors.New("not the leader")

	// ErrDraining: this replica holds the lock but is leaving, and starts
	// nothing new. It wraps ErrNotLeader.
	ErrDraining = fmt.Errorf("draining: %w", ErrNotLeader)

	// ErrSuspended: this replica holds the lock, but its session with the
	// database has ended, or was not looked at for too long: others may soon
	// take over. Nothing starts until a heartbeat on a new session succeeds. It
	// wraps ErrNotLeader.
	ErrSuspended = fmt.Errorf("suspended, as the database session has ended: %w", ErrNotLeader)

	// ErrStopped: the Lock was stopped and acquires nothing more.
	ErrStopped = errors.New("scheduler lock is stopped")
)

// A HeldError says who holds the lock. errors.Is(err, ErrHeld) is true for it.
type HeldError struct {
	Info LockInfo
}

func (e *HeldError) Error() string {
	i := e.Info
	last := fmt.Sprintf("its last heartbeat was %s ago", rules.RoundAge(i.HeartbeatAge))
	if i.HeartbeatAge < 0 {
		last = fmt.Sprintf("its last heartbeat is stamped %s in the future, so clocks differ",
			rules.RoundAge(-i.HeartbeatAge))
	}
	return fmt.Sprintf("scheduler lock is held by pid %d on host %q (term %d) since %s, for %s; "+
		"%s (TTL %v): stop that process, and its clean shutdown frees the lock; "+
		"if it is dead, wait until the TTL has passed and start again",
		i.PID, i.Hostname, i.Term, i.CreatedAt.UTC().Format(time.RFC3339),
		rules.RoundAge(i.Age), last, i.Timing.TTL)
}

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }
