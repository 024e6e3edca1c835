package schedlock

import (
	"errors"
	"log/slog"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// isNews reports whether it is something else than was said last, and remembers it.
func isNews[T comparable](l *Lock, said *T, now T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := *said != now
	*said = now
	return news
}

// textOf is the text of an error, "" of none.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// logObserver writes one line per change of state, and none per heartbeat. An
// outage gets a line when it starts, at most one every 30 s while it lasts,
// and one with its duration when it is over.
type logObserver struct {
	log    *slog.Logger
	now    func() time.Time
	outage bounded.Outage
}

func (o *logObserver) observe(e Event) {
	switch e.Kind {
	case EventHeartbeatFailed, EventStoreFailed, EventReleaseFailed:
		o.failed(e)
	case EventHeartbeat, EventStoreRecovered:
		o.recovered()
	case EventStandby:
		o.log.Info("standing by", holderAttrs(e.Holder)...)
	case EventElected:
		o.recovered()
		attrs := []any{"term", e.Term, "took", e.Took}
		if e.Reason != "" {
			attrs = append(attrs, "previous_end", string(e.Reason))
		}
		o.log.Info("leading", append(attrs, holderAttrs(e.Holder)...)...)
	case EventDraining:
		o.log.Info("draining", "term", e.Term)
	case EventRevoked:
		attrs := []any{"term", e.Term}
		if e.Holder != nil && e.Holder.Revoked.By != "" {
			attrs = append(attrs, "by", e.Holder.Revoked.By, "reason", e.Holder.Revoked.Reason)
		}
		o.log.Warn("revoked by an operator", attrs...)
	case EventSuspended:
		o.log.Warn("the database session has ended: nothing starts until a heartbeat on a new one "+
			"succeeds", "term", e.Term)
	case EventResumed:
		o.log.Info("leads on, on a new database session", "term", e.Term, "after",
			e.Took.Round(time.Microsecond))
	case EventLost:
		o.log.Warn("lost the lock", append([]any{"term", e.Term, "err", e.Err},
			holderAttrs(e.Holder)...)...)
	case EventReleased:
		o.recovered()
		o.log.Info("released", "term", e.Term, "end_reason", string(e.Reason))
	}
}

// outageOf says what an error is to an operator: "still" fits between the two.
func outageOf(err error) (subject, predicate string) {
	switch {
	case errors.Is(err, driver.ErrBlocked):
		return "lock row", "cannot be taken over"
	case errors.Is(err, driver.ErrPermanent):
		return "database", "refuses us"
	}
	return "database", "does not answer"
}

func (o *logObserver) failed(e Event) {
	subject, predicate := outageOf(e.Err)
	first := subject + " " + predicate
	if e.Kind == EventReleaseFailed {
		first = "release failed"
	}
	o.outage.Failed(o.now(), func(lasts time.Duration, failures int) {
		if failures == 1 {
			o.log.Warn(first, "term", e.Term, "err", e.Err)
			return
		}
		o.log.Warn(subject+" still "+predicate, "term", e.Term, "err", e.Err,
			"for", lasts.Round(time.Second), "failures", failures)
	})
}

func (o *logObserver) recovered() {
	o.outage.Over(o.now(), func(lasted time.Duration, failures int) {
		o.log.Info("database answers again", "after", lasted.Round(time.Millisecond),
			"failures", failures)
	})
}

func holderAttrs(i *LockInfo) []any {
	if i == nil {
		return nil
	}
	return []any{"holder_pid", i.PID, "holder_host", i.Hostname, "holder_term", i.Term,
		"held_for", rules.RoundAge(i.Age), "heartbeat_age", rules.RoundAge(i.HeartbeatAge)}
}
