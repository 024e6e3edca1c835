package schedlock

import (
	"log/slog"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock/driver"
)

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
	// its session with the database has ended: starts nothing
	EventSuspended EventKind = "suspended"
	// a heartbeat on a new session has succeeded
	EventResumed        EventKind = "resumed"
	EventLost           EventKind = "lost"            // the lease ended without a release
	EventReleased       EventKind = "released"        // the row is gone, the end is written
	EventReleaseFailed  EventKind = "release failed"  // the row may still be there
	EventStoreFailed    EventKind = "store failed"    // a standby could not look
	EventStoreRecovered EventKind = "store recovered" // it can again
)

// A LossReason says how a lease was lost.
type LossReason string

// The ways to lose a lease.
const (
	LossDeadline LossReason = "deadline" // no heartbeat succeeded within the renew deadline
	// a heartbeat found that the row, or the database file, is not ours any more
	LossRow LossReason = "row"
	// the database session ended, and none followed in time
	LossSession LossReason = "session"
	// the owner could not do a leader's work: damage, or a wedged scheduler
	LossSteppedDown LossReason = "stepped down"
)

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	Kind EventKind
	Term int64
	Took time.Duration // of the statement behind the event
	Err  error
	// standby: who leads. elected: whom we replaced. revoked: ourselves, and in Revoked who has
	// told us to leave; nil: not known. lost: whom we found in our place
	Holder *LockInfo
	// elected: how the term before ended, "" if there was none. released: how our own term ended
	Reason driver.EndReason
	Loss   LossReason // lost: how

	// Gap is for how long nobody led, at the most, by the database's clock:
	// elected: from the last sign of life of the holder before (its heartbeat,
	// or the end that was written of its term) to our acquisition.
	Gap time.Duration
}

// observerLimit is how long an observer may take for one event before the log
// says so.
const observerLimit = 10 * time.Second

// patient keeps an observer of the app out of the way of heartbeats, campaign
// and release, whatever it does: it may block, panic, or end its goroutine.
type patient struct {
	to    func(Event)
	log   *slog.Logger
	queue bounded.Queue
}

func patiently(to func(Event), log *slog.Logger) *patient {
	return &patient{to: to, log: log, queue: bounded.Queue{Missed: func(n int) {
		log.Warn("an observer did not keep up: it was not told of everything", "missed", n)
	}}}
}

func (p *patient) observe(e Event) { p.queue.Do(func() { p.tell(e) }) }

func (p *patient) tell(e Event) {
	late := time.AfterFunc(observerLimit, func() {
		p.log.Error("an observer does not return: it is told of nothing more until it does",
			"event", string(e.Kind), "term", e.Term)
	})
	defer late.Stop()
	defer func() {
		if panicked := recover(); panicked != nil {
			p.log.Error("an observer has panicked", "event", string(e.Kind), "term", e.Term,
				"panic", panicked)
		}
	}()
	p.to(e)
}
