package statuspage

import (
	"fmt"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// recently is for how long the page shows that an order was carried out.
const recently = 10 * time.Minute

// progress is how far an order has come. It stands where the order was given.
type progress struct {
	What       string
	By, Reason string
	Steps      []string
	Now        int    // which of them
	Note       string // what else to know; may be ""
}

// runProgress tells of the newest run of a job that somebody asked for.
func runProgress(s *snapshot, j job) *progress {
	p := &progress{What: "Run", Steps: []string{"asked", "running", "done"}}
	if r, found := s.asked[j.Name]; found {
		p.By, p.Reason = r.By, r.Reason
		p.Note = "It has not started. It can't be withdrawn; a pause keeps it back."
		return p
	}
	for _, r := range j.runs {
		if r.RequestedBy == "" {
			continue
		}
		p.By, p.Reason = r.RequestedBy, r.RequestReason
		switch {
		case r.Status == ledger.InProgress:
			p.Now = 1
		case !r.Final():
			p.Steps[1], p.Now = fmt.Sprintf("attempt %d failed, to be tried again", r.Attempt), 1
		case s.now.Sub(latest(r.ScheduledAt, r.FinishedAt)) < recently:
			p.Steps[2], p.Now = statusWords(r.Status), 2
			p.Note = cut(r.Error, 120)
		default:
			return nil
		}
		return p
	}
	return nil
}

// handOverProgress tells of the order to leave that the newest leader has, or the one before had.
func handOverProgress(s *snapshot) *progress {
	p := &progress{What: "Hand-over", Steps: []string{"asked", "leaving", "another leads"}}
	if len(s.terms) == 0 {
		return nil
	}
	newest, row := s.terms[0], s.view.Row
	switch {
	case newest.Revoked.By != "":
		p.By, p.Reason = newest.Revoked.By, newest.Revoked.Reason
		if row == nil || row.State != driver.StateRevoked {
			p.Now = 1
		}
	case len(s.terms) > 1 && s.terms[1].Revoked.By != "" &&
		s.now.Sub(newest.AcquiredAt) < recently:
		p.By, p.Reason = s.terms[1].Revoked.By, s.terms[1].Revoked.Reason
		p.Steps[2], p.Now = newest.Hostname+" leads", 2
	default:
		return nil
	}
	return p
}
