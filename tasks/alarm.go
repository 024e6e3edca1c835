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
	if !at.After(last) { // gocron asks for a time strictly after
		at = last.Add(time.Millisecond)
	}
	return at
}
