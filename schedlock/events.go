package schedlock

import "time"

// EventKind says what happened to a Lock.
type EventKind string

// The events of a Lock, in the order of a life.
const (
	EventStandby         EventKind = "standby"          // waits for another holder; once per holder
	EventElected         EventKind = "elected"          // holds the lock from now on
	EventHeartbeat       EventKind = "heartbeat"        // a heartbeat succeeded
	EventHeartbeatFailed EventKind = "heartbeat failed" // and will be repeated
	EventDraining        EventKind = "draining"         // starts nothing new, is about to leave
	EventRevoked         EventKind = "revoked"          // an operator told this replica to leave
	EventLost            EventKind = "lost"             // the lease ended without a release
	EventReleased        EventKind = "released"         // the row is gone, the end is written
	EventReleaseFailed   EventKind = "release failed"   // the row may still be there
	EventStoreFailed     EventKind = "store failed"     // a standby could not look
	EventStoreRecovered  EventKind = "store recovered"  // it can again
)

// EventKinds are all of them.
var EventKinds = []EventKind{
	EventStandby, EventElected, EventHeartbeat, EventHeartbeatFailed, EventDraining, EventRevoked,
	EventLost, EventReleased, EventReleaseFailed, EventStoreFailed, EventStoreRecovered,
}

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	Kind   EventKind
	Term   int64
	Took   time.Duration // of the statement behind the event
	Err    error
	Holder *LockInfo // standby: who leads. elected: whom we replaced. lost: whom we found in our place
	Reason EndReason // elected: how the term before ended. released: how our own term ended
}

// An Observer is told what happens to a Lock. It is called synchronously, from
// several goroutines at once, after the change it tells of has taken effect:
// it must be safe for concurrent use and return soon. Logs and metrics are
// observers; the core has neither.
type Observer interface {
	Observe(Event)
}

// ObserverFunc makes an Observer of a function.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }
