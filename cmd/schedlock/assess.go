package main

import (
	"fmt"
	"time"

	"example.com/schedlock/schedlock"
)

// A verdict is what the lock is, for an operator.
type verdict string

const (
	held       verdict = "held"
	free       verdict = "free"
	stale      verdict = "stale"      // no heartbeat within its TTL
	dead       verdict = "dead"       // proven dead, or it wrote its own end
	unfinished verdict = "unfinished" // no row, but it is not free
)

func (v verdict) exitCode() int {
	switch v {
	case held:
		return exitDone
	case free:
		return exitNothing
	}
	return exitStale
}

func (v verdict) colour() colour {
	switch v {
	case held:
		return green
	case free:
		return yellow
	}
	return red
}

// An assessment is what one look means.
type assessment struct {
	verdict verdict
	summary string // one line
	advice  string // what an operator can do; "": nothing needs doing
	standby wait
}

// A wait is what a standby waits for before it leads.
type wait struct {
	text   string
	atOnce bool          // nothing: it takes the lock now
	most   time.Duration // for one that begins to watch now
}

// assess says what a view means. It follows the rules by which the standbys
// judge (package schedlock), but it has only one look: a standby takes the lock
// of a silent holder after it has watched it for the whole TTL itself.
func assess(v schedlock.View) assessment {
	if v.Row != nil {
		return assessRow(v)
	}
	return assessNoRow(v)
}

func assessRow(v schedlock.View) assessment {
	r := v.Row
	ttl := min(r.Timing.TTL, schedlock.MaxTTL)
	age := v.Now.Sub(r.HeartbeatAt)
	who := fmt.Sprintf("pid %d on host %q", r.PID, r.Hostname)
	watch := wait{
		text: fmt.Sprintf("for a release or a proof of death; else for %v without another heartbeat: %v from now at most", ttl, ttl),
		most: ttl,
	}
	if r.Grace > 0 && r.Grace < ttl {
		watch.text = fmt.Sprintf("for a release, or for %v after the end of the holder's database session; else for %v without another heartbeat: %v from now at most", r.Grace, ttl, ttl)
	}
	if left := ttl - age; age >= 0 && left > 0 {
		watch.text += fmt.Sprintf(" (%v if it has watched since the last one)", span(left))
	}
	now := wait{text: "for nothing: it takes over now", atOnce: true}
	if v.FailedOver {
		now = watch
	}
	switch {
	case v.Newest != nil && v.Newest.Term == r.Term && !v.Newest.Open():
		return assessment{dead, fmt.Sprintf("dead: %s has ended its term %d (%s), but its row is still there", who, r.Term, v.Newest.EndReason),
			"nothing to do if a standby runs: it takes over now; if none does, start one", now}
	case v.Sign == schedlock.SignDead:
		return assessment{dead, fmt.Sprintf("dead: %s held the lock (term %d), and is proven dead; its last heartbeat was %v ago", who, r.Term, span(age)),
			"nothing to do if a standby runs: it takes over now; if none does, start one", now}
	case age >= ttl && v.Sign == schedlock.SignAlive:
		return assessment{stale, fmt.Sprintf("stale: %s (term %d) lives, but its last heartbeat was %v ago (TTL %v): it is stopped, hung, or cannot write", who, r.Term, span(age), ttl),
			"resume the process (kill -CONT), or end it: a standby then takes over at once", watch}
	case age >= ttl:
		return assessment{stale, fmt.Sprintf("stale: %s holds the lock (term %d), but its last heartbeat was %v ago (TTL %v)", who, r.Term, span(age), ttl),
			"look whether that process lives; a standby that has watched it for the TTL takes over; if none runs, start one", watch}
	case age <= -ttl:
		return assessment{stale, fmt.Sprintf("stale: the last heartbeat of %s (term %d) is stamped %v in the future, so nothing can be told from it", who, r.Term, span(-age)),
			"look at the clocks; a standby counts by its own watch and does not mind", watch}
	}
	if v.Sign == schedlock.SignEnded && !v.FailedOver {
		soon := wait{text: fmt.Sprintf("for the holder to come back, for %v at most", r.Grace), most: min(r.Grace, ttl)}
		return assessment{stale, fmt.Sprintf("stale: the database session of %s (term %d) has ended; last heartbeat %v ago", who, r.Term, span(age)),
			"nothing to do if a standby runs: it takes over soon, unless the holder comes back; if none does, start one", soon}
	}
	switch r.State {
	case schedlock.StateLeading:
		return assessment{held, fmt.Sprintf("held: %s leads (term %d), last heartbeat %v ago", who, r.Term, span(age)), "", watch}
	case schedlock.StateRevoked:
		return assessment{held, fmt.Sprintf("held: %s (term %d) was told to leave, and drains; last heartbeat %v ago", who, r.Term, span(age)), "", watch}
	}
	return assessment{held, fmt.Sprintf("held: %s is %s (term %d), last heartbeat %v ago", who, r.State, r.Term, span(age)), "", watch}
}

func assessNoRow(v schedlock.View) assessment {
	n := v.Newest
	ttl := schedlock.DefaultTTL
	if n != nil && n.TTL > 0 {
		ttl = min(n.TTL, schedlock.MaxTTL)
	}
	watch := wait{text: fmt.Sprintf("%v from now at most", ttl), most: ttl}
	now := wait{text: "for nothing: it takes the lock now", atOnce: true}
	switch {
	case v.Sign == schedlock.SignAlive:
		return assessment{unfinished, "not free: there is no lock row, but a process still holds what only a leader holds",
			"do not delete rows; stop that replica, or wait until it has noticed", watch}
	case n == nil:
		return assessment{free, "free: nobody has ever held the lock", "start a replica", now}
	case n.Open() && v.Sign == schedlock.SignDead:
		return assessment{dead, fmt.Sprintf("dead: there is no lock row, and pid %d on host %q of term %d, which has no end, is proven dead", n.PID, n.Hostname, n.Term),
			"nothing to do if a standby runs: it takes over now; if none does, start one", now}
	case n.Open():
		return assessment{unfinished, fmt.Sprintf("not free: there is no lock row, but term %d of pid %d on host %q has no end: the row was deleted by hand, or a backup was restored", n.Term, n.PID, n.Hostname),
			"wait: its TTL must pass; do not delete rows to free the lock", watch}
	case v.FailedOver:
		return assessment{free, fmt.Sprintf("free: term %d was %s, but the server has failed over since and may have lost a later one", n.Term, n.EndReason), "", watch}
	}
	return assessment{free, fmt.Sprintf("free: nobody leads; term %d of pid %d on host %q was %s %v ago", n.Term, n.PID, n.Hostname, endWords(n.EndReason), span(v.Now.Sub(n.EndedAt))),
		"start a replica", now}
}

// endWords makes the end of a term a part of a sentence.
func endWords(r schedlock.EndReason) string {
	switch r {
	case schedlock.EndSessionEnded:
		return "ended with its session"
	case "":
		return "not ended"
	}
	return string(r)
}
