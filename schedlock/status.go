package schedlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// SelfState is where a replica stands in its life.
type SelfState string

// The states of a replica; doc.go draws how one becomes another.
const (
	SelfStarting SelfState = "starting" // has not looked at the lock yet
	SelfStandby  SelfState = "standby"  // does not lead; waits, or gives up work after a loss
	SelfLeading  SelfState = "leading"
	// holds the lock, but lost sight of its database session: starts nothing
	SelfSuspended SelfState = "suspended"
	SelfDraining  SelfState = "draining" // leads, but starts nothing new
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

	// Unproven is why the death of a holder cannot be proven here, so that after
	// a crash the TTL decides; nil if it can, or if the store has no such proof.
	Unproven error

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
	s := l.status()
	if s.Unproven = l.store.ProofOfDeath(); s.Unproven != nil && s.State != SelfStopped {
		s.Reason += "; deaths cannot be proven here, so after a crash the TTL decides"
	}
	return s
}

func (l *Lock) status() Status {
	lease := l.current.Load()
	if lease != nil {
		err := lease.check()
		c := lease.confirmed.Load()
		since := l.clock.Since(&c.sent)
		switch {
		case err == nil:
			s := Status{State: SelfLeading, Leader: true, Term: lease.ref.Term, Confirmed: since,
				Reason: fmt.Sprintf("holds the lock; last confirmed %v ago, trusted for %v",
					since.Round(time.Millisecond), l.timing.RenewDeadline)}
			if s.Err = l.store.Warning(); s.Err != nil {
				s.Reason += "; but " + s.Err.Error()
			}
			return s
		case errors.Is(err, ErrSuspended):
			return Status{State: SelfSuspended, Term: lease.ref.Term, Confirmed: since,
				Reason: fmt.Sprintf("its database session has ended; "+
					"starts nothing until a heartbeat on a new one succeeds, "+
					"and gives up %v after the end", lease.lock.grace/2)}
		case errors.Is(err, ErrDraining):
			return Status{State: SelfDraining, Term: lease.ref.Term, Confirmed: since,
				Reason: "is leaving: starts nothing new, " +
					"and releases the lock when what runs has returned"}
		}
	}
	l.mu.Lock()
	if l.current.Load() != lease { // elected meanwhile, or ended
		l.mu.Unlock()
		return l.status()
	}
	defer l.mu.Unlock()
	s := l.standby
	switch {
	case l.stopped():
		return Status{State: SelfStopped, Reason: "was stopped and will not lead again"}
	case l.last != nil && l.last.returned.Load():
		return l.last.ended("its row is being given back")
	case l.last != nil:
		return l.last.ended("its work is returning")
	case s.err != nil:
		return Status{State: SelfStandby, Err: s.err, Reason: "cannot read the lock: " +
			s.err.Error()}
	case s.after != nil:
		return s.after.ended("it has not looked at the lock since")
	case !s.looked:
		return Status{State: SelfStarting, Reason: "has not looked at the lock yet"}
	case s.claim != nil && s.view.Blocker == "":
		return Status{State: SelfStandby, Err: s.claim, Reason: "cannot take the lock: " +
			s.claim.Error()}
	}
	return Status{State: SelfStandby, Reason: l.standbyReason(s)}
}

// ended is the status of a replica whose newest lease is this, and has ended.
func (l *Lease) ended(now string) Status {
	err := l.Err()
	if err == nil { // its context is being cancelled at this moment
		err = ErrNotLeader
	}
	return Status{State: SelfStandby, Err: err,
		Reason: fmt.Sprintf("its lease of term %d has ended (%v); %s", l.ref.Term, err, now)}
}

func (l *Lock) standbyReason(s standby) string {
	now := l.clock.Now()
	left := max(l.watch.Remaining(s.judged.TTL, now), 0).Round(100 * time.Millisecond)
	r := s.view.Row
	if other := l.other(s.view, s.judged); other != nil {
		return l.otherWords(other)
	}
	switch {
	case s.view.Blocker != "":
		return fmt.Sprintf("pid %d on host %q (term %d) gives no sign of life, "+
			"but its row is locked: %s", r.PID, r.Hostname, r.Term, s.view.Blocker)
	case s.view.FailedOver && r == nil:
		return fmt.Sprintf("the server has failed over and may have lost the newest term: "+
			"waits %v more for its TTL", left)
	case s.judged.Verdict == rules.Free:
		return "the lock is free; about to take it"
	case r == nil && s.judged.Verdict == rules.Gone:
		return fmt.Sprintf("there is no lock row, and the holder of term %d, which has no end, "+
			"is dead; about to take over", s.judged.Key.Newest)
	case r == nil && s.view.Sign == driver.SignAlive:
		return fmt.Sprintf("there is no lock row, but a process still holds "+
			"what only a leader holds; waits %v more", left)
	case r == nil:
		return fmt.Sprintf("there is no lock row, but term %d has no end: "+
			"waits %v more for its TTL", s.judged.Key.Newest, left)
	case s.judged.Verdict == rules.Gone:
		return fmt.Sprintf("pid %d on host %q is gone; about to take over", r.PID, r.Hostname)
	case s.judged.Grace > 0:
		left = max(min(left, l.silence.Remaining(max(s.judged.Grace, l.grace), now)),
			0).Round(100 * time.Millisecond)
		return fmt.Sprintf("the database session of pid %d on host %q (term %d) has ended; "+
			"takes over after %v unless it comes back",
			r.PID, r.Hostname, r.Term, left)
	}
	age := s.view.Now.Sub(r.HeartbeatAt) + now.Sub(s.at)
	next := fmt.Sprintf("takes over if no heartbeat arrives for %v", left)
	if !l.campaigning.Taken() {
		next = "this replica does not campaign at the moment"
	}
	return fmt.Sprintf("pid %d on host %q leads (term %d), last heartbeat %v ago; %s",
		r.PID, r.Hostname, r.Term, rules.RoundAge(age), next)
}
