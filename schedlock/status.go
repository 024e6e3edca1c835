package schedlock

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// SelfState is where a replica stands in its life.
type SelfState string

// The states of a replica; doc.go draws how one becomes another.
const (
	SelfStarting  SelfState = "starting" // has not looked at the lock yet
	SelfStandby   SelfState = "standby"  // does not lead; waits, or gives up work after a loss
	SelfLeading   SelfState = "leading"
	SelfSuspended SelfState = "suspended" // holds the lock, but lost sight of its database session: starts nothing
	SelfDraining  SelfState = "draining"  // leads, but starts nothing new
	SelfStopped   SelfState = "stopped"
)

// Status is what a replica knows of itself, without asking the database.
type Status struct {
	State  SelfState
	Leader bool  // IsLeader returned nil
	Term   int64 // 0 on a standby
	Reason string

	// Err is the error that Reason quotes, nil if it quotes none. Its text may
	// name files and servers: see PublicReason.
	Err error

	// Confirmed is how long ago the heartbeat was sent, or the acquisition,
	// that last confirmed the lease; 0 on a standby.
	Confirmed time.Duration
}

// PublicReason is Reason for strangers: what public says of Err stands in the
// place of its text.
func (s Status) PublicReason(public func(error) string) string {
	if s.Err == nil {
		return s.Reason
	}
	return strings.Replace(s.Reason, s.Err.Error(), public(s.Err), 1)
}

// Status tells the replica's state, and the reason for it in words.
func (l *Lock) Status() Status {
	if lease := l.current.Load(); lease != nil {
		err := lease.check()
		c := lease.confirmed.Load()
		since := l.clock.since(&c.sent)
		switch {
		case err == nil:
			return Status{State: SelfLeading, Leader: true, Term: lease.ref.Term, Confirmed: since,
				Reason: fmt.Sprintf("holds the lock; last confirmed %v ago, trusted for %v", since.Round(time.Millisecond), l.timing.RenewDeadline)}
		case errors.Is(err, ErrSuspended):
			return Status{State: SelfSuspended, Term: lease.ref.Term, Confirmed: since,
				Reason: fmt.Sprintf("its database session has ended; starts nothing until a heartbeat on a new one succeeds, and gives up %v after the end", lease.lock.grace/2)}
		case lease.ctx.Err() == nil:
			return Status{State: SelfDraining, Term: lease.ref.Term, Confirmed: since,
				Reason: "is leaving: starts nothing new, and releases the lock when what runs has returned"}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.standby
	switch {
	case l.stopped:
		return Status{State: SelfStopped, Reason: "was stopped and will not lead again"}
	case l.last != nil:
		err := l.last.Err()
		return Status{State: SelfStandby, Err: err, Reason: fmt.Sprintf("its lease of term %d has ended (%v); its work is returning", l.last.ref.Term, err)}
	case s.err != nil:
		return Status{State: SelfStandby, Err: s.err, Reason: "cannot read the lock: " + s.err.Error()}
	case !s.looked:
		return Status{State: SelfStarting, Reason: "has not looked at the lock yet"}
	}
	return Status{State: SelfStandby, Reason: l.standbyReason(s)}
}

func (l *Lock) standbyReason(s standby) string {
	now := l.clock.now()
	left := max(l.watch.remaining(s.judged.ttl, now), 0).Round(100 * time.Millisecond)
	r := s.view.Row
	switch {
	case s.view.Blocker != "":
		return fmt.Sprintf("the lease of pid %d on host %q has expired, but its row is locked: %s", r.PID, r.Hostname, s.view.Blocker)
	case s.view.FailedOver && r == nil:
		return fmt.Sprintf("the server has failed over and may have lost the newest term: waits %v more for its TTL", left)
	case r == nil && s.judged.verdict == free:
		return "the lock is free; about to take it"
	case r == nil && s.view.Sign == SignAlive:
		return fmt.Sprintf("there is no lock row, but a process still holds what only a leader holds; waits %v more", left)
	case r == nil:
		return fmt.Sprintf("there is no lock row, but term %d has no end: waits %v more for its TTL", s.judged.key.newest, left)
	case s.judged.verdict == gone:
		return fmt.Sprintf("pid %d on host %q is gone; about to take over", r.PID, r.Hostname)
	case s.judged.grace > 0 && l.grace > 0:
		left = max(min(left, l.silence.remaining(max(s.judged.grace, l.grace), now)), 0).Round(100 * time.Millisecond)
		return fmt.Sprintf("the database session of pid %d on host %q (term %d) has ended; takes over after %v unless it comes back",
			r.PID, r.Hostname, r.Term, left)
	}
	age := s.view.Now.Sub(r.HeartbeatAt) + now.Sub(s.at)
	return fmt.Sprintf("pid %d on host %q leads (term %d), last heartbeat %v ago; takes over after %v without another",
		r.PID, r.Hostname, r.Term, roundAge(age), left)
}
