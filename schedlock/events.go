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
	EventSuspended       EventKind = "suspended"        // its session with the database has ended: starts nothing
	EventResumed         EventKind = "resumed"          // a heartbeat on a new session has succeeded
	EventLost            EventKind = "lost"             // the lease ended without a release
	EventReleased        EventKind = "released"         // the row is gone, the end is written
	EventReleaseFailed   EventKind = "release failed"   // the row may still be there
	EventStoreFailed     EventKind = "store failed"     // a standby could not look
	EventStoreRecovered  EventKind = "store recovered"  // it can again
)

// EventKinds are all of them.
var EventKinds = []EventKind{
	EventStandby, EventElected, EventHeartbeat, EventHeartbeatFailed, EventDraining, EventRevoked,
	EventSuspended, EventResumed, EventLost, EventReleased, EventReleaseFailed, EventStoreFailed, EventStoreRecovered,
}

// A LossReason says how a lease was lost.
type LossReason string

// The ways to lose a lease.
const (
	LossDeadline    LossReason = "deadline"     // no heartbeat succeeded within the renew deadline
	LossRow         LossReason = "row"          // a heartbeat found that the row, or the database file, is not ours any more
	LossSession     LossReason = "session"      // the database session ended, and none followed in time
	LossSteppedDown LossReason = "stepped down" // the owner could not do a leader's work: damage, or a wedged scheduler
)

// LossReasons are all of them.
var LossReasons = []LossReason{LossDeadline, LossRow, LossSession, LossSteppedDown}

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	Kind   EventKind
	Term   int64
	Took   time.Duration // of the statement behind the event
	Err    error
	Holder *LockInfo  // standby: who leads. elected: whom we replaced. lost: whom we found in our place
	Reason EndReason  // elected: how the term before ended, "" if there was none. released: how our own term ended
	Loss   LossReason // lost: how

	// Gap is for how long nobody led, at the most, by the database's clock:
	// elected: from the last sign of life of the holder before (its heartbeat,
	// or the end that was written of its term) to our acquisition.
	Gap time.Duration
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
