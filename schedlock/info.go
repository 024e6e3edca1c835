package schedlock

import (
	"context"
	"fmt"
	"time"
)

// LockInfo is what the lock row says. Ages are measured with the database's
// clock; an age below zero is a stamp in the future.
type LockInfo struct {
	PID          int
	Hostname     string
	CreatedAt    time.Time
	HeartbeatAt  time.Time
	Age          time.Duration // since CreatedAt
	HeartbeatAge time.Duration // since HeartbeatAt
	Timing       Timing        // the holder's own
	Term         int64
	Beat         int64
	State        State
	Revoked      Revocation // zero: nobody has told it to leave, or the history does not know
	Sign         Sign
	Grace        time.Duration // how long others wait once its session has ended; 0: they wait for the TTL, …
	TTLOnly      string        // … and why; "": not known
	Blocker      string        // who keeps an expired holder's row locked; "": nobody, or not known
}

// GetLockInfo tells who holds the lock. It returns (nil, nil) when there is no
// row, and an error when it cannot tell: "free" and "could not read" are never
// the same answer. It only reads. It may be called from any process, at any
// time, concurrently.
func GetLockInfo(ctx context.Context, store Store) (*LockInfo, error) {
	view, err := store.Look(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the scheduler lock: %w", err)
	}
	return view.Info(), nil
}

// Info returns what the view says of the holder, nil if it has no row.
func (v View) Info() *LockInfo {
	if v.Row == nil {
		return nil
	}
	r := v.Row
	var revoked Revocation
	if r.State == StateRevoked && v.Newest != nil && v.Newest.Term == r.Term {
		revoked = v.Newest.Revoked
	}
	return &LockInfo{
		PID:          r.PID,
		Hostname:     r.Hostname,
		CreatedAt:    r.CreatedAt,
		HeartbeatAt:  r.HeartbeatAt,
		Age:          v.Now.Sub(r.CreatedAt),
		HeartbeatAge: v.Now.Sub(r.HeartbeatAt),
		Timing:       r.Timing,
		Term:         r.Term,
		Beat:         r.Beat,
		State:        r.State,
		Revoked:      revoked,
		Sign:         v.Sign,
		Grace:        r.Grace,
		TTLOnly:      r.TTLOnly,
		Blocker:      v.Blocker,
	}
}
