package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/internal/message"
	"example.com/schedlock/schedlock/driver"
)

const watchHelp = `It prints the state, then one line for every change: who leads, its state, a
revocation, a holder that is late (it has missed two heartbeats, or its renew
deadline), silent for its TTL or dead, how a term ended, outages of the database
and their end. The first look must succeed. Changes that come and go between two
looks are not seen, except terms.

Examples:
  schedlock watch
  schedlock watch --json --interval 2s >>watch.log
`

// A change is one line of watch.
type change struct {
	At timestamp `json:"at"` // this machine's clock
	// start, leader, ended, state, revoked, verdict, late, on time, outage, recovery
	Event    string       `json:"event"`
	Verdict  verdict      `json:"verdict"`
	Term     int64        `json:"term"` // 0: none
	PID      int          `json:"pid"`
	Hostname string       `json:"hostname"`
	State    driver.State `json:"state"`
	Reason   string       `json:"reason"` // ended: how; revoked: why; outage: the error
	By       string       `json:"by"`     // revoked: who
	Message  string       `json:"message"`
}

func watch(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	interval := flags.Duration("interval", 500*time.Millisecond, "how often it looks")
	return func(ctx context.Context) (int, error) {
		if *interval < 10*time.Millisecond {
			return 0, wrong("--interval %v is below 10ms", *interval)
		}
		last, err := t.sight(ctx, 0)
		if err != nil {
			if ctx.Err() != nil {
				return exitDone, nil
			}
			return 0, err
		}
		t.tell(last.change("start", last.judged.summary))
		out := false
		ticker := time.NewTicker(*interval)
		defer ticker.Stop()
		for t.lost.err == nil {
			select {
			case <-ctx.Done():
				return exitDone, nil
			case <-ticker.C:
			}
			now, err := t.sight(ctx, last.term())
			switch {
			case ctx.Err() != nil:
				return exitDone, nil
			case err != nil:
				if !out {
					text := plain(message.OneLine(err.Error()))
					t.tell(change{Event: "outage", Reason: text, Message: "cannot tell: " + text})
				}
				out = true
				continue
			case out:
				out = false
				t.tell(now.change("recovery", "the database answers again; "+now.judged.summary))
			}
			for _, c := range t.changes(last, now) {
				t.tell(c)
			}
			last = now
		}
		return exitUnknown, nil
	}
}

// A sight is a situation with the terms since the one that was newest before.
type sight struct {
	situation
	terms []driver.Term // oldest first, the one before included
}

// sightTerms is how many terms are read if the newest has changed.
const sightTerms = 50

func (t *tool) sight(ctx context.Context, since int64) (seen sight, err error) {
	seen.situation, err = t.situation(ctx, func(ctx context.Context, s store,
		found *situation) error {
		seen.terms = nil
		switch n := found.view.Newest; {
		case n == nil && since == 0:
			return nil
		case n != nil && (n.Term == since || since == 0):
			seen.terms = []driver.Term{*n}
			return nil
		}
		terms, err := s.Terms(ctx, sightTerms)
		for _, term := range terms {
			if term.Term >= since {
				seen.terms = append([]driver.Term{term}, seen.terms...)
			}
		}
		return err
	})
	return seen, err
}

// term is the newest term, 0 if there was none.
func (s sight) term() int64 {
	if s.view.Newest == nil {
		return 0
	}
	return s.view.Newest.Term
}

func (s sight) change(event, message string) change {
	c := change{Event: event, Verdict: s.judged.verdict, Message: message}
	if r := s.view.Row; r != nil {
		c.Term, c.PID, c.Hostname, c.State = r.Term, r.PID, r.Hostname, r.State
	}
	return c
}

// changes is what has happened from one sight to the next, in its order.
func (t *tool) changes(before, now sight) (list []change) {
	earlier := map[int64]driver.Term{} // as far as before knew
	for _, term := range before.terms {
		earlier[term.Term] = term
	}
	for _, n := range now.terms {
		was, known := earlier[n.Term]
		begun := !known && n.Term > before.term()
		of := change{Verdict: now.judged.verdict, Term: n.Term, PID: n.PID, Hostname: n.Hostname}
		who := fmt.Sprintf("pid %d on host %q", n.PID, n.Hostname)
		if begun {
			c := of
			c.Event = "leader"
			c.Message = fmt.Sprintf("leader: %s leads (term %d) since %s", who, n.Term,
				t.at(n.AcquiredAt))
			list = append(list, c)
		}
		if !n.Revoked.At.IsZero() && was.Revoked.At.IsZero() {
			c := of
			c.Event, c.By, c.Reason = "revoked", n.Revoked.By, n.Revoked.Reason
			c.Message = fmt.Sprintf("revoked: %s (term %d) was told to leave by %q: %q", who, n.Term,
				c.By, c.Reason)
			list = append(list, c)
		}
		if !n.Open() && (begun || known && was.Open()) {
			c := of
			c.Event, c.Reason = "ended", string(n.EndReason)
			c.Message = fmt.Sprintf("ended: term %d of %s: %s, after %s", n.Term, who, n.EndReason,
				span(n.EndedAt.Sub(n.AcquiredAt)))
			list = append(list, c)
		}
	}
	if b, n := before.view.Row, now.view.Row; b != nil && n != nil {
		who := fmt.Sprintf("pid %d on host %q (term %d)", n.PID, n.Hostname, n.Term)
		if b.Term == n.Term && b.State != n.State && n.State != driver.StateRevoked {
			list = append(list, now.change("state", fmt.Sprintf("state: %s is %s", who, n.State)))
		}
		was, is := before.judged.lateness, now.judged.lateness
		switch {
		case b.Token != n.Token, before.judged.verdict != now.judged.verdict:
		case is > was:
			list = append(list, now.change("late", "late: "+now.judged.late))
		case is == assess.OnTime && was != assess.OnTime:
			list = append(list, now.change("on time", "on time: "+who+" sends heartbeats again"))
		}
	}
	// That the lock is held a line about a new leader has said.
	if is := now.judged.verdict; is != before.judged.verdict &&
		(is != held || len(list) == 0 || list[len(list)-1].Event != "leader") {
		list = append(list, now.change("verdict", now.judged.summary))
	}
	return list
}

func (t *tool) tell(c change) {
	now := time.Now()
	if c.At = timestamp(now); t.json {
		t.encodeWith("", c) // in one line
		return
	}
	paint := c.Verdict.colour()
	switch c.Event {
	case "revoked", "state", "late":
		paint = yellow
	case "ended":
		paint = ""
	}
	fmt.Fprintf(t.out, "%s  %s\n", now.In(t.zone()).Format("2006-01-02 15:04:05.000Z07:00"),
		t.paint(paint, plain(c.Message)))
}
