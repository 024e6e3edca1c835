// Package assess tells what the lock is, for whoever only tells of it: a command,
// a page, a check.
package assess

import (
	"context"
	"errors"
	"time"

	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// A Verdict is what the lock is, as far as one look can tell.
type Verdict string

// The verdicts.
const (
	Held Verdict = "held" // its holder leads, or drains
	Free Verdict = "free" // nobody holds it
	// a row without a sign of life: no heartbeat within its TTL, or its session has ended
	Stale Verdict = "stale"
	Dead  Verdict = "dead" // its holder is proven dead, or wrote its own end
	// no row, and not free: a term without an end, or a process that has led
	Unfinished Verdict = "unfinished"
)

// An Assessment is what one look means.
type Assessment struct {
	Verdict Verdict

	// AtOnce: a standby takes the lock as soon as it looks. If not, it takes it
	// when it has itself seen no heartbeat for the TTL, or, where the holder's
	// session has ended (Grace is not 0), for Grace.
	AtOnce bool
	TTL    time.Duration
	Grace  time.Duration

	Lateness Lateness // of a holder whose verdict is Held
}

// A Lateness is how long the heartbeat of a holder whose lease has not run out is due.
type Lateness int

// What a holder has missed.
const (
	OnTime       Lateness = iota
	Late                  // two heartbeats
	PastDeadline          // its renew deadline: it must have stopped itself
)

// LateAfter is how old the last heartbeat of a late holder is: two intervals, and for the one
// that is under way half an interval, at least a second. 0: the row does not say.
func LateAfter(t driver.Timing) time.Duration {
	if t.HeartbeatInterval <= 0 {
		return 0
	}
	return 2*t.HeartbeatInterval + max(t.HeartbeatInterval/2, time.Second)
}

func lateness(r *driver.Row, now time.Time) Lateness {
	age, late := now.Sub(r.HeartbeatAt), LateAfter(r.Timing)
	switch {
	case late == 0:
	case r.Timing.RenewDeadline > 0 && age >= r.Timing.RenewDeadline:
		return PastDeadline
	case age >= late:
		return Late
	}
	return OnTime
}

// More terms than FlapTerms that began within FlapWindow are flapping. A term after a hand-over
// that somebody ordered does not count.
const (
	FlapWindow = 10 * time.Minute
	FlapTerms  = 5
)

// Of judges a view as a standby does that has seen nothing else, so that whoever
// tells of a lock tells what the standbys go by. Give it what LookAtSession has
// found: a Look does not see sessions.
func Of(v driver.Snapshot) Assessment {
	j := rules.Judge(v, driver.Term{}, 0)
	a := Assessment{AtOnce: j.Verdict != rules.Wait, TTL: j.TTL}
	if a.TTL <= 0 {
		a.TTL = rules.DefaultTTL
	}
	a.Grace = min(j.Grace, a.TTL)
	switch {
	case j.Holder == rules.Gone:
		a.Verdict = Dead
	case j.Holder == rules.Free:
		a.Verdict = Free
	case v.Row == nil:
		a.Verdict = Unfinished
	case a.Grace == 0 && v.Now.Sub(v.Row.HeartbeatAt).Abs() < a.TTL:
		a.Verdict, a.Lateness = Held, lateness(v.Row, v.Now)
	default:
		a.Verdict = Stale
	}
	return a
}

// LookAtSession looks at the lock and, where the store can, at the session of
// its holder. Like schedlock.GetLockInfo it may be called by anybody.
func LookAtSession(ctx context.Context, store driver.Store) (driver.Snapshot, error) {
	v, err := store.LookAtSession(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		return store.Look(ctx)
	}
	return v, err
}
