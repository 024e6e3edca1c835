package statuspage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const (
	// narrow is how much of the width, in percent, a term needs to be drawn
	// alone. Neighbours below it share a bar of at most this width, so that a
	// thousand terms stay a small drawing.
	narrow = 0.6

	// gapShown is from which length on it is worth a mark that nobody led. A
	// clean hand-over takes milliseconds.
	gapShown = time.Second
)

// timeline is a drawing of who led when; the lanes of jobs are below it, on the same axis. All
// places are in percent of the width.
type timeline struct {
	Links  []spanLink
	Bars   []bar
	Gaps   []gap
	Ticks  []axisTick
	Legend []holder
	Hidden int    // holders that the legend leaves out
	Later  later  // what is right of now
	Label  string // the drawing in a sentence
}

type spanLink struct {
	Name    string
	Current bool
}

// bar is a term, or several that are too narrow to be drawn alone.
type bar struct {
	X, Width float64
	Class    string
	Letter   string // "": there is no room for it
	Title    string
}

// gap is a time in which nobody led, or a leader was silent.
type gap struct {
	X, Width float64
	Title    string
}

// holder is a process that led.
type holder struct {
	Letter string
	Class  string
	Name   string
}

func holderName(o driver.Owner) string { return fmt.Sprintf("pid %d on %s", o.PID, o.Hostname) }

func newTimeline(s *snapshot, span string) *timeline {
	from, to := window(span, s.terms, s.now)
	t := &timeline{Ticks: axis(from, to), Later: newLater(from, to)}
	for _, w := range spans {
		t.Links = append(t.Links, spanLink{w.name, w.name == span})
	}
	names := newHolders(s.terms)
	var shown []driver.Term // oldest first
	for _, term := range slices.Backward(s.terms) {
		if term.Open() || term.EndedAt.After(from) {
			shown = append(shown, term)
		}
	}
	t.Bars = bars(shown, names, from, to)
	var nobody time.Duration
	var times int
	for _, g := range gaps(s) {
		if !g.to.After(from) {
			continue
		}
		if g.nobody {
			times++
			nobody += g.to.Sub(latest(g.from, from))
		}
		t.addGap(g, from, to)
	}
	t.addLegend(shown, names)
	t.Label = fmt.Sprintf("Timeline from %s to %s UTC: %s", from.UTC().Format("2 Jan 15:04"),
		to.UTC().Format("2 Jan 15:04"), count(len(shown), "term"))
	if times > 0 {
		t.Label += fmt.Sprintf("; nobody led %s, for %s in all", count(times, "time"), took(nobody))
	}
	return t
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// bars draws terms, oldest first.
func bars(terms []driver.Term, names holders, from, to time.Time) (list []bar) {
	const letterRoom = 2.6 // percent of the width
	var group []driver.Term
	var x0, x1 float64
	flush := func() {
		if len(group) == 0 {
			return
		}
		b := bar{X: x0, Width: max(x1-x0, 0.15), Class: names.class(group[0].Owner)}
		if len(group) == 1 {
			b.Title = describe(group[0], names)
			name := names.letter(group[0].Owner)
			if b.Width > letterRoom*float64(max(len(name), 1)) {
				b.Letter = name
			}
		} else {
			b.Title = fmt.Sprintf("%d terms from %s to %s", len(group),
				group[0].AcquiredAt.UTC().Format("2 Jan 15:04:05"),
				group[len(group)-1].AcquiredAt.UTC().Format("15:04:05 UTC"))
			for _, term := range group[1:] {
				if term.Owner != group[0].Owner {
					b.Class = "many"
				}
			}
		}
		list = append(list, b)
		group = group[:0]
	}
	for _, term := range terms {
		end := to
		if !term.Open() {
			end = term.EndedAt
		}
		a, b := percent(term.AcquiredAt, from, to), percent(end, from, to)
		if len(group) > 0 && (b-a >= narrow || x1-x0 >= narrow || b-x0 > narrow) {
			flush()
		}
		if len(group) == 0 {
			x0 = a
		}
		x1 = b
		group = append(group, term)
	}
	flush()
	return list
}

func describe(t driver.Term, names holders) string {
	text := fmt.Sprintf("%s: %s, term %d\nfrom %s", names.letter(t.Owner), holderName(t.Owner),
		t.Term, t.AcquiredAt.UTC().Format("2 Jan 15:04:05 UTC"))
	if t.Open() {
		return text + ", still open"
	}
	text += fmt.Sprintf(" for %s\nended: %s", took(t.EndedAt.Sub(t.AcquiredAt)), ending(t))
	return text
}

// ending is how a term ended, in words.
func ending(t driver.Term) string {
	text := string(t.EndReason)
	switch t.EndReason {
	case "":
		return "still open"
	case driver.EndExpired:
		text = fmt.Sprintf("expired, no heartbeat for its TTL of %s", took(t.TTL))
	case driver.EndProvenDead:
		text = "proven dead: its process gave no sign in the lease file"
	case driver.EndSessionEnded:
		text = "its database session ended"
	case driver.EndLost:
		text = "lost, it stepped down"
	case driver.EndRevoked:
		text = "revoked, it was told to leave"
	}
	if t.Revoked != (schedlock.Revocation{}) {
		if t.EndReason != driver.EndRevoked {
			text = string(t.EndReason) + ", told to leave"
		}
		text += " by " + cut(t.Revoked.By, 60)
		if t.Revoked.Reason != "" {
			text += ": " + cut(t.Revoked.Reason, 120)
		}
	}
	return text
}

// silence is a time in which nobody led, or in which a leader that later
// expired gave no sign of life.
type silence struct {
	from, to time.Time
	nobody   bool
	lasts    bool // it has not ended
	why      string
}

// gaps finds every one of at least gapShown, oldest first.
func gaps(s *snapshot) (list []silence) {
	var before *driver.Term
	for i := len(s.terms) - 1; i >= 0; i-- {
		t := &s.terms[i]
		if before != nil && !before.Open() && t.AcquiredAt.Sub(before.EndedAt) >= gapShown {
			list = append(list, silence{before.EndedAt, t.AcquiredAt, true, false,
				"nobody led for " + took(t.AcquiredAt.Sub(before.EndedAt))})
		}
		if t.EndReason == driver.EndExpired {
			list = append(list, silence{latest(t.AcquiredAt, t.EndedAt.Add(-t.TTL)), t.EndedAt,
				false, false, "no heartbeat for at least " + took(t.TTL)})
		}
		before = t
	}
	if before == nil {
		return list
	}
	row := s.view.Row
	switch {
	case !before.Open() && row == nil && s.now.Sub(before.EndedAt) >= gapShown:
		list = append(list, silence{before.EndedAt, s.now, true, true,
			"nobody leads since " + before.EndedAt.UTC().Format("15:04:05 UTC")})
	case row != nil && s.now.Sub(row.HeartbeatAt) > row.Timing.TTL:
		list = append(list, silence{row.HeartbeatAt, s.now, false, true,
			"no heartbeat since " + row.HeartbeatAt.UTC().Format("15:04:05 UTC")})
	}
	return list
}

// addGap marks a gap; one that would lie on the mark before becomes part of it.
func (t *timeline) addGap(g silence, from, to time.Time) {
	x0, x1 := percent(g.from, from, to), percent(g.to, from, to)
	if g.lasts {
		x1 = 100
	}
	title := fmt.Sprintf("%s\n%s – %s", g.why, g.from.UTC().Format("2 Jan 15:04:05"),
		g.to.UTC().Format("15:04:05 UTC"))
	if n := len(t.Gaps); n > 0 {
		if last := &t.Gaps[n-1]; x0-last.X < narrow && x1-last.X < 2*narrow {
			last.Width = max(last.Width, x1-last.X)
			if !strings.HasSuffix(last.Title, "…") {
				last.Title += "\nand more …"
			}
			return
		}
	}
	t.Gaps = append(t.Gaps, gap{X: x0, Width: x1 - x0, Title: title})
}

// addLegend names the holders, those that led last first.
func (t *timeline) addLegend(shown []driver.Term, names holders) {
	const most = 12
	seen := map[driver.Owner]bool{}
	for _, term := range slices.Backward(shown) {
		if seen[term.Owner] {
			continue
		}
		seen[term.Owner] = true
		if len(t.Legend) == most {
			t.Hidden++
			continue
		}
		t.Legend = append(t.Legend, newHolder(term.Owner, names))
	}
}

func newHolder(o driver.Owner, names holders) holder {
	return holder{Letter: names.letter(o), Class: names.class(o), Name: holderName(o)}
}

// termRow is a line of the table of terms.
type termRow struct {
	holder
	driver.Term
	Lasted string // "": it is open
	Ended  string
	Gap    string // before it
	Lost   string // what jobs have lost by the change of leaders; "": not known
}

func newTermRows(s *snapshot) (rows []termRow) {
	const most = 12
	names := newHolders(s.terms)
	for i, t := range s.terms[:min(most, len(s.terms))] {
		row := termRow{holder: newHolder(t.Owner, names), Term: t}
		if !t.Open() {
			row.Lasted, row.Ended = took(t.EndedAt.Sub(t.AcquiredAt)), ending(t)
		}
		if i+1 < len(s.terms) {
			row.Gap, row.Lost = gapBefore(t, s.terms[i+1]), lost(s, t, s.terms[i+1])
		}
		rows = append(rows, row)
	}
	return rows
}

// lost says which runs the leader before a term has left behind, and which ticks were missed
// until the term began, as far as runs were read. A run that was started again is not lost.
func lost(s *snapshot, t, before driver.Term) string {
	if before.Open() {
		return ""
	}
	from := before.EndedAt.Add(-before.TTL) // its end may be written by who took over
	abandoned, missed, all := 0, int64(0), s.more == 0
	for _, j := range s.jobs {
		for _, r := range j.runs {
			switch {
			case r.Status == ledger.Abandoned && r.Term == before.Term:
				abandoned++
			case r.Status == ledger.Skipped && r.Error == ledger.Missed && r.Term == t.Term &&
				r.ScheduledAt.Before(t.AcquiredAt):
				missed += max(r.Count, 1)
			}
		}
		if n := len(j.runs); n > 0 && n == j.read && j.runs[n-1].ScheduledAt.After(from) {
			all = false
		}
	}
	var parts []string
	if abandoned > 0 {
		parts = append(parts, count(abandoned, "run")+" abandoned")
	}
	if missed > 0 {
		parts = append(parts, count(int(missed), "tick")+" missed")
	}
	switch {
	case !all && len(parts) == 0:
		return ""
	case !all:
		return "at least " + strings.Join(parts, ", ")
	case len(parts) == 0:
		return "nothing abandoned or missed"
	}
	return strings.Join(parts, ", ")
}

func gapBefore(t, before driver.Term) string {
	switch gap := t.AcquiredAt.Sub(before.EndedAt); {
	case before.Open():
		return "not known"
	case before.EndReason == driver.EndExpired:
		return fmt.Sprintf("%s without a heartbeat", took(before.TTL))
	case gap < 0:
		return "–"
	case before.EndReason == driver.EndProvenDead, before.EndReason == driver.EndSessionEnded:
		return "not known" // its end was written by who took over
	case gap == 0:
		return "none"
	default:
		return took(gap)
	}
}
