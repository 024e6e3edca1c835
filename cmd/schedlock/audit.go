package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"example.com/schedlock/schedlock/ledger"
)

const auditHelp = `The orders that were carried out: pause, resume, run, hand-over (the leader was
told to leave) and reset-cursor. With JOB only those for that job: an order for
every job is not among them. The newest 1,000 are kept.

Examples:
  schedlock audit
  schedlock audit import -n 5
`

// An auditJSON is an order that was carried out.
type auditJSON struct {
	ID     int64     `json:"id"`
	At     timestamp `json:"at"`
	What   string    `json:"what"` // pause, resume, run, hand-over, reset-cursor
	Job    string    `json:"job"`  // "": every job, or not about a job
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

func newAuditJSON(a ledger.AuditEntry) auditJSON {
	return auditJSON{a.ID, timestamp(a.At), a.What, a.Job, a.By, a.Reason}
}

func audit(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	n := limitFlag(flags, "how many, newest first")
	return func(ctx context.Context) (int, error) {
		none := "nobody has given an order"
		if t.job() != "" {
			none += fmt.Sprintf(" for job %q", t.job())
		}
		return list(ctx, t, func(ctx context.Context, s store) ([]ledger.AuditEntry, error) {
			entries, err := s.Audit(ctx, t.job(), *n)
			if err == nil && len(entries) == 0 && t.job() != "" {
				err = t.knownJob(ctx, s, t.job())
			}
			return entries, err
		}, newAuditJSON, none, t.showAudit)
	}
}

func (t *tool) showAudit(list []ledger.AuditEntry) {
	b := newTable(fixed("at"), fixed("order"), cutting("job"), cutting("by"), cutting("reason"))
	for _, a := range list {
		job := a.Job
		if job == "" && a.What != ledger.OrderHandOver {
			job = "(all)"
		}
		b.add("", t.cell(a.At), a.What, job, a.By, a.Reason)
	}
	t.table(b)
}
