package ledger

import "time"

// The orders that an [AuditEntry] tells of.
const (
	OrderPause       = "pause"
	OrderResume      = "resume"
	OrderRun         = "run"
	OrderHandOver    = "hand-over" // the leader was told to leave: driver.Store.Revoke
	OrderResetCursor = "reset-cursor"
)

// KeepAudit is how many entries stay: each order deletes those before.
const KeepAudit = 1000

// An AuditEntry is one line of scheduler_audit: an order that was carried out, by
// whom and why. A store writes it together with the order, so that neither is
// without the other. An order that was refused, or that has changed nothing, such
// as a second pause, has none.
type AuditEntry struct {
	ID     int64     // grows with every order
	At     time.Time // by the database's clock
	What   string    // OrderPause and so on
	Action           // Job is "" for every job, and for a hand-over
}
