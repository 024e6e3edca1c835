package tasks

import (
	"time"

	"github.com/go-co-op/gocron/v2"
)

// alarm makes gocron ring at the ticks of a spec: a gocron.Cron whose times
// are this machine's, computed from the database's. It only rings; what is due
// the ledger says. An alarm that rings too early finds nothing due, and is
// computed anew.
type alarm struct {
	spec Spec
	now  func() time.Time // the database's time
}

var _ gocron.Cron = alarm{}

// IsValid implements gocron.Cron; the spec was validated before.
func (alarm) IsValid(string, *time.Location, time.Time) error { return nil }

// Next implements gocron.Cron.
func (a alarm) Next(last time.Time) time.Time {
	local, db := time.Now(), a.now()
	from := db
	if d := last.Sub(local); d > 0 {
		from = db.Add(d)
	}
	next := a.spec.Next(from)
	if next.IsZero() {
		return time.Time{}
	}
	at := local.Add(next.Sub(db))
	if !at.After(last) { // a time.Duration ends after 292 years
		at = last.Add(time.Millisecond)
	}
	// If the next time reads like the last one to the second, gocron takes it
	// for the second of the two hours with which summer time ends, and skips
	// it. So it is written in a zone where it does not read so.
	if at = at.UTC(); sameSecond(at, last) {
		at = at.In(aSecondAhead)
	}
	return at
}

var aSecondAhead = time.FixedZone("UTC+00:00:01", 1)

// sameSecond compares what clocks in the zones of a and b show.
func sameSecond(a, b time.Time) bool {
	return a.Format(time.DateTime) == b.Format(time.DateTime)
}
