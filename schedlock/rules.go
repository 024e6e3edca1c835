package schedlock

import (
	"math"
	"time"
)

// The rules of time: pure functions over values. Nothing here reads a clock or
// a database. docs/architecture.md argues why they exclude two leaders.

// over is the holder's rule: a lease has ended for good once the renew
// deadline has passed since the last heartbeat that succeeded (or the
// acquisition) was sent. Counting from when its answer came would let a slow
// answer stretch the lease.
func over(sinceSent, renewDeadline time.Duration) bool {
	return sinceSent >= renewDeadline
}

// A verdict is what a look at the database means for a replica that would like
// to lead.
type verdict int

const (
	wait verdict = iota // somebody may hold it: watch it for the TTL
	free                // nobody holds it
	gone                // its holder has ended, provably or by its own word
)

// A judgement is a verdict with what follows from it.
type judgement struct {
	verdict verdict
	reason  EndReason     // how the previous term ended, should this replica take over
	key     watchKey      // what must not change during the watch
	ttl     time.Duration // how long the watch lasts
	grace   time.Duration // how long it lasts if its holder's session has ended for all of it; 0: no matter
}

// A watchKey is what a living holder changes with each heartbeat, and all that
// would make an earlier look worthless. Stamps are no part of it: after a
// clock stepped back, two heartbeats can bear one stamp, and no edited stamp
// may shorten or lengthen a watch.
type watchKey struct {
	held   bool
	token  string
	term   int64
	beat   int64
	newest int64
	open   bool
	epoch  string
}

// judge says what a view means. known is the newest term that this replica has
// read or held itself: after a backup was restored the database may know less
// than we do. fallback is the TTL to use where nobody says one.
func judge(v View, known Term, fallback time.Duration) judgement {
	j := judgement{verdict: wait, reason: EndExpired, key: watchKey{epoch: v.Epoch}}
	if v.Newest != nil {
		j.key.newest, j.key.open = v.Newest.Term, v.Newest.Open()
		if v.Newest.Open() {
			j.ttl = clampTTL(v.Newest.TTL)
		}
	}
	// Lost by a restored backup, or by a hand that emptied the history; a row
	// that still bears the known term speaks for itself.
	forgotten := known.Term > j.key.newest && known.Open() &&
		(v.Row == nil || v.Row.Term != known.Term || v.Row.Token != known.Token)
	if forgotten {
		j.ttl = max(j.ttl, clampTTL(known.TTL))
	}

	if r := v.Row; r != nil {
		j.key.held, j.key.token, j.key.term, j.key.beat = true, r.RawToken, r.Term, r.Beat
		j.ttl = max(j.ttl, clampTTL(r.Timing.TTL))
		switch {
		case forgotten:
		case v.Newest != nil && v.Newest.Term == r.Term && !v.Newest.Open():
			// Its holder wrote the end of this very term: a leftover.
			j.verdict = gone
		case v.Sign == SignDead:
			j.verdict, j.reason = gone, EndProvenDead
		}
	} else {
		switch {
		case forgotten || v.Sign == SignAlive:
		case v.Newest == nil || !v.Newest.Open():
			j.verdict = free
		case v.Sign == SignDead:
			j.verdict, j.reason = gone, EndProvenDead
		}
	}
	if v.FailedOver {
		// A later acquisition may be lost, and nobody knows its TTL: ours, or
		// the longest that is in sight.
		if v.Newest != nil {
			j.ttl = max(j.ttl, clampTTL(v.Newest.TTL))
		}
		j.ttl = max(j.ttl, clampTTL(fallback))
		j.verdict, j.reason = wait, EndExpired
	}
	if j.ttl <= 0 {
		j.ttl = clampTTL(fallback)
	}
	if v.Row != nil && v.Row.Grace > 0 && v.Sign == SignEnded && j.verdict == wait && !forgotten && !v.FailedOver {
		j.grace = clampTTL(v.Row.Grace)
	}
	return j
}

// clampTTL bounds a TTL that was read from a table, where anybody may have
// written anything.
func clampTTL(d time.Duration) time.Duration { return min(max(d, 0), MaxTTL) }

// fresh reports whether the row's stamp is younger than its TTL, by the
// database's clock. It is used to say "held" early, never to say "free".
func fresh(v View, ttl time.Duration) bool {
	age := v.Now.Sub(v.Row.HeartbeatAt)
	return age >= 0 && age < ttl
}

// A watch is the standby's rule: it takes the lock of a holder that shows no
// other sign of death only if two of its own looks, the second *sent* at least
// the TTL after the first was *answered*, found the same key. The zero watch
// has seen nothing.
type watch struct {
	key   watchKey
	first time.Time // when the first look that found the key was answered
}

// saw returns the watch after a look that found key and was answered at t.
func (w watch) saw(key watchKey, t time.Time) watch {
	if !w.first.IsZero() && w.key == key {
		return w
	}
	return watch{key: key, first: t}
}

// remaining is how long after sent, when the last look went out, the TTL is
// complete. Zero or less: it is.
func (w watch) remaining(ttl time.Duration, sent time.Time) time.Duration {
	if w.first.IsZero() {
		return math.MaxInt64
	}
	return ttl - sent.Sub(w.first)
}
