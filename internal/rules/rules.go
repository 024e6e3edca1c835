// Package rules holds the rules of time: pure functions over values. Nothing
// here reads a clock or a database. docs/architecture.md argues why they exclude
// two leaders.
package rules

import (
	"math"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// DefaultTTL is the TTL where nobody says one.
const DefaultTTL = 60 * time.Second

// Over is the holder's rule: a lease has ended for good once the renew
// deadline has passed since the last heartbeat that succeeded (or the
// acquisition) was sent. Counting from when its answer came would let a slow
// answer stretch the lease.
func Over(sinceSent, renewDeadline time.Duration) bool {
	return sinceSent >= renewDeadline
}

// A Verdict is what a look at the database means for a replica that would like
// to lead.
type Verdict int

// The verdicts.
const (
	Wait Verdict = iota // somebody may hold it: watch it for the TTL
	Free                // nobody holds it
	Gone                // its holder has ended, provably or by its own word
)

// A Judgement is a verdict with what follows from it.
type Judgement struct {
	Verdict Verdict
	Holder  Verdict          // the same before a fail-over counts: what is known of the holder
	Reason  driver.EndReason // how the previous term ended, should this replica take over
	Key     WatchKey         // what must not change during the watch
	TTL     time.Duration    // how long the watch lasts
	// how long it lasts if its holder's session has ended for all of it; 0: no matter
	Grace time.Duration
}

// A WatchKey is what a living holder changes with each heartbeat, and all that
// would make an earlier look worthless. Stamps are no part of it: after a
// clock stepped back, two heartbeats can bear one stamp, and no edited stamp
// may shorten or lengthen a watch.
type WatchKey struct {
	Held   bool
	Token  string
	Term   int64
	Beat   int64
	Newest int64
	Open   bool
	Epoch  string

	Session string
}

// Judge says what a view means. known is the newest term that this replica has
// read or held itself: after a backup was restored the database may know less
// than we do. fallback is the TTL to use where nobody says one.
func Judge(v driver.Snapshot, known driver.Term, fallback time.Duration) Judgement {
	j := Judgement{Verdict: Wait, Reason: driver.EndExpired, Key: WatchKey{Epoch: v.Incarnation}}
	if v.Newest != nil {
		j.Key.Newest, j.Key.Open = v.Newest.Term, v.Newest.Open()
		if v.Newest.Open() {
			j.TTL = clampTTL(v.Newest.TTL)
		}
	}
	// Lost by a restored backup, or by a hand that emptied the history; a row
	// that still bears the known term speaks for itself.
	forgotten := known.Term > j.Key.Newest && known.Open() &&
		(v.Row == nil || v.Row.Term != known.Term || v.Row.Token != known.Token)
	if forgotten {
		j.TTL = max(j.TTL, clampTTL(known.TTL))
	}

	if r := v.Row; r != nil {
		j.Key.Held, j.Key.Token, j.Key.Term, j.Key.Beat = true, r.RawToken, r.Term, r.Beat
		j.Key.Session = r.Session
		j.TTL = max(j.TTL, clampTTL(r.Timing.TTL))
		switch {
		case forgotten:
		case v.Newest != nil && v.Newest.Term == r.Term && !v.Newest.Open() &&
			v.Sign != driver.SignAlive:
			// Its holder wrote the end of this very term: a leftover. Unless a hand
			// wrote it, and the holder lives.
			j.Verdict = Gone
		case v.Sign == driver.SignDead:
			j.Verdict, j.Reason = Gone, driver.EndProvenDead
		}
	} else {
		switch {
		case forgotten || v.Sign == driver.SignAlive:
		case v.Newest == nil || !v.Newest.Open():
			j.Verdict = Free
		case v.Sign == driver.SignDead:
			j.Verdict, j.Reason = Gone, driver.EndProvenDead
		}
	}
	if j.Holder = j.Verdict; v.FailedOver {
		// A later acquisition may be lost, and nobody knows its TTL: ours, or
		// the longest that is in sight.
		if v.Newest != nil {
			j.TTL = max(j.TTL, clampTTL(v.Newest.TTL))
		}
		j.TTL = max(j.TTL, clampTTL(fallback))
		j.Verdict, j.Reason = Wait, driver.EndExpired
	}
	if j.TTL <= 0 {
		j.TTL = clampTTL(fallback)
	}
	if v.Row != nil && v.Sign == driver.SignEnded && j.Verdict == Wait && !forgotten &&
		!v.FailedOver {
		j.Grace = clampTTL(v.Row.Grace)
	}
	return j
}

// clampTTL bounds a TTL that was read from a table, where anybody may have
// written anything.
func clampTTL(d time.Duration) time.Duration { return min(max(d, 0), driver.MaxTTL) }

// Fresh reports whether the row's stamp is younger than its TTL, by the
// database's clock. It is used to say "held" early, never to say "free".
func Fresh(v driver.Snapshot, ttl time.Duration) bool {
	age := v.Now.Sub(v.Row.HeartbeatAt)
	return age >= 0 && age < ttl
}

// A Watch is the standby's rule: it takes the lock of a holder that shows no
// other sign of death only if two of its own looks, the second *sent* at least
// the TTL after the first was *answered*, found the same key. The zero watch
// has seen nothing.
type Watch struct {
	key   WatchKey
	first time.Time // when the first look that found the key was answered
}

// Saw returns the watch after a look that found key and was answered at t.
func (w Watch) Saw(key WatchKey, t time.Time) Watch {
	if !w.first.IsZero() && w.key == key {
		return w
	}
	return Watch{key: key, first: t}
}

// Remaining is how long after sent, when the last look went out, the TTL is
// complete. Zero or less: it is.
func (w Watch) Remaining(ttl time.Duration, sent time.Time) time.Duration {
	if w.first.IsZero() {
		return math.MaxInt64
	}
	return ttl - sent.Sub(w.first)
}
