package driver

import "time"

// LockInfo is what the lock row says. Ages are measured with the database's
// clock; an age below zero is a stamp in the future.
type LockInfo struct {
	PID          int
	Hostname     string
	App          App // zero: not known
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
	// how long others wait once its session has ended; 0: they wait for the TTL, …
	Grace   time.Duration
	TTLOnly string // … and why; "": not known
	// who keeps the row of a holder locked that gives no sign of life; "": nobody, or not known
	Blocker string
}

// Info is what the look has seen of the holder, nil if there is no row.
func (v Snapshot) Info() *LockInfo {
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
		App:          r.App,
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
