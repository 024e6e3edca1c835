package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/cmd/schedlock/internal/words"
	"example.com/schedlock/internal/message"
	"example.com/schedlock/schedlock/driver"
)

const historyHelp = `The newest 1,000 terms are kept.

With -o wide it also shows the term, and "gap before": for how long nobody led.
That is not known (?) after a term whose end nobody wrote when it happened: a
crash, or a loss.

Examples:
  schedlock history -n 5
  schedlock history --since 12h
`

type termJSON struct {
	Term       int64        `json:"term"`
	PID        int          `json:"pid"`
	Hostname   string       `json:"hostname"`
	App        string       `json:"app"` // "": not known
	AcquiredAt timestamp    `json:"acquired_at"`
	EndedAt    timestamp    `json:"ended_at"`
	EndReason  *string      `json:"end_reason"`
	NextTerm   int64        `json:"next_term"` // 0: nobody yet
	TTLSeconds float64      `json:"ttl_seconds"`
	Revoked    *revokedJSON `json:"revoked"`
}

func newTermJSON(t driver.Term) termJSON {
	j := termJSON{Term: t.Term, PID: t.PID, Hostname: t.Hostname, App: t.App.Name,
		AcquiredAt: timestamp(t.AcquiredAt),
		EndedAt:    timestamp(t.EndedAt), NextTerm: t.NextTerm, TTLSeconds: t.TTL.Seconds(),
		Revoked: newRevokedJSON(t.Revoked)}
	if !t.Open() {
		j.EndReason = new(string(t.EndReason))
	}
	return j
}

// historyJSON is a term with what follows from its neighbours.
type historyJSON struct {
	termJSON
	LastedSeconds    float64  `json:"lasted_seconds"`     // up to now while it is open
	GapBeforeSeconds *float64 `json:"gap_before_seconds"` // null: not known, or the first term
}

// keptTerms is how many terms the history has at most.
const keptTerms = 1000

// An entry is one line of the history.
type entry struct {
	term     driver.Term
	lasted   time.Duration
	gap      time.Duration
	gapKnown bool
	first    bool // nothing is known of a term before it
}

// entries puts terms, newest first, together with the one before each.
func entries(terms []driver.Term, now time.Time) []entry {
	list := make([]entry, len(terms))
	for i, t := range terms {
		e := entry{term: t, lasted: t.EndedAt.Sub(t.AcquiredAt), first: i+1 == len(terms)}
		if t.Open() {
			e.lasted = now.Sub(t.AcquiredAt)
		}
		if !e.first {
			before := terms[i+1]
			e.gap, e.gapKnown = t.AcquiredAt.Sub(before.EndedAt), !before.Open() &&
				words.EndedByItself(before.EndReason)
		}
		list[i] = e
	}
	return list
}

func history(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	n := limitFlag(flags, "how many, newest first; all with --since")
	since := flags.String("since", "", sinceUsage)
	return func(ctx context.Context) (int, error) {
		if *since != "" && !flags.Changed("limit") {
			*n = keptTerms
		}
		after, err := t.since(*since)
		if err != nil {
			return 0, err
		}
		var (
			terms     []driver.Term
			now, from time.Time
		)
		err = t.look(ctx, func(ctx context.Context, s store) error {
			view, err := s.Look(ctx)
			if err != nil {
				return err
			}
			now = view.Now
			if from, err = after(ctx, s); err != nil {
				return err
			}
			terms, err = s.Terms(ctx, min(*n, keptTerms)+1) // one more for the gap before the last
			return err
		})
		if err != nil {
			return 0, err
		}
		list := entries(terms, now)
		list = list[:min(len(list), *n)]
		list = slices.DeleteFunc(list, func(e entry) bool {
			return !e.term.Open() && e.term.EndedAt.Before(from)
		})
		line := func(e entry) historyJSON {
			return historyJSON{newTermJSON(e.term), e.lasted.Seconds(), seconds(e.gap, e.gapKnown)}
		}
		none := "nobody has ever held the lock"
		if !from.IsZero() {
			none = "nobody has held the lock since " + t.at(from)
		}
		showList(t, list, line, none, t.showHistory)
		return exitDone, nil
	}
}

func (t *tool) showHistory(list []entry) {
	several := slices.ContainsFunc(list, func(e entry) bool {
		return e.term.App.Differs(list[0].term.App)
	})
	b := newTable(wideOnly("term"), fixed("pid"), cutting("host"), column{"app", !several, true},
		fixed("from"), fixed("lasted"), wideOnly("gap before"), cutting("ended"))
	for _, e := range list {
		end, paint := string(e.term.EndReason), colour("")
		switch {
		case e.term.Open():
			end, paint = "(open)", green
		case !words.EndedByItself(e.term.EndReason):
			paint = yellow
		}
		gap := "?"
		if e.gapKnown {
			gap = span(e.gap)
		} else if e.first {
			gap = ""
		}
		if r := e.term.Revoked; !r.At.IsZero() {
			end += fmt.Sprintf(" (handed over by %s: %s)", r.By, r.Reason)
		}
		b.add(paint, e.term.Term, e.term.PID, e.term.Hostname, e.term.App.Name,
			t.cell(e.term.AcquiredAt), span(e.lasted), gap, end)
	}
	t.table(b)
}

const sinceUsage = "not before `WHEN`: 90m, 7d, 2026-03-01, or 2026-03-01T02:00:00Z"

var days = regexp.MustCompile(`^([0-9]{1,5})d$`)

// since reads the flag --since: a span up to now, or a time, of UTC unless it says
// otherwise. What it returns asks the database's clock, as what is compared with the
// time was written by that; the zero time is "always".
func (t *tool) since(text string) (func(context.Context, store) (time.Time, error), error) {
	fixed := func(at time.Time) func(context.Context, store) (time.Time, error) {
		return func(context.Context, store) (time.Time, error) { return at, nil }
	}
	if text == "" {
		return fixed(time.Time{}), nil
	}
	span, err := time.ParseDuration(text)
	if m := days.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // it has five digits at most
		span, err = time.Duration(n)*24*time.Hour, nil
	}
	if err == nil && span >= 0 {
		return func(ctx context.Context, s store) (time.Time, error) {
			view, err := s.Look(ctx)
			return view.Now.Add(-span), err
		}, nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.ParseInLocation(form, text, t.zone()); err == nil {
			return fixed(at), nil
		}
	}
	return nil, wrong("--since %s is neither a span such as 90m or 7d, nor a time such as "+
		"2026-03-01 or 2026-03-01T02:00:00Z", message.Shown(text))
}
