package statuspage

import (
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// age is how a person reads a running age or a span of more than a second:
// its two largest units. page.js has the same.
func age(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s/3600%24)
}

// took is a duration that has ended, to a tenth of what matters.
func took(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	}
	return age(d)
}

// period is a setting, such as a TTL.
func period(d time.Duration) string {
	if d%time.Second != 0 {
		return d.String()
	}
	return strings.TrimSuffix(strings.TrimSuffix(age(d), " 0 s"), " 0 min")
}

// agoTag stands for a running age. Its text is not part of what is compared
// to find out whether something has changed: fillAges sets it once, and page.js
// keeps it running.
func agoTag(t time.Time) template.HTML {
	return template.HTML(fmt.Sprintf(`<time data-ago="%d"></time>`, t.UnixMilli()))
}

// untilTag stands for the time until t: "in 3 s", or "due".
func untilTag(t time.Time) template.HTML {
	return template.HTML(fmt.Sprintf(`<time data-until="%d"></time>`, t.UnixMilli()))
}

var runningTag = regexp.MustCompile(`<time data-(ago|until)="(-?\d+)"></time>`)

// movingTag is a place on the time axis that moves with the clock: now, and what comes later.
var movingTag = regexp.MustCompile(`<svg data-from="(-?\d+)" data-to="(-?\d+)"`)

// fillAges writes the text of all running ages, and the places that move. No text from
// outside can look like one, as it is escaped.
func fillAges(html string, now time.Time) string {
	html = movingTag.ReplaceAllStringFunc(html, func(tag string) string {
		m := movingTag.FindStringSubmatch(tag)
		from, _ := strconv.ParseInt(m[1], 10, 64)
		to, _ := strconv.ParseInt(m[2], 10, 64)
		return tag + ` x="` + pct(percent(now, time.UnixMilli(from), time.UnixMilli(to))) + `"`
	})
	return runningTag.ReplaceAllStringFunc(html, func(tag string) string {
		m := runningTag.FindStringSubmatch(tag)
		ms, _ := strconv.ParseInt(m[2], 10, 64)
		d := now.Sub(time.UnixMilli(ms))
		text := age(d)
		if m[1] == "until" {
			text = "due"
			if d < 0 {
				text = "in " + age(-d)
			}
		}
		return strings.TrimSuffix(tag, "</time>") + text + "</time>"
	})
}

// pct is a place or a length in percent.
func pct(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) + "%" }

// stamp is a point in time, in UTC. The machine-readable one has all of it.
func stamp(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`, t.Format(time.RFC3339Nano),
		t.Format("2 Jan 15:04:05")))
}

// palette is how many colours style.css has for holders.
const palette = 8

// holders numbers those that led, in the order in which they first did. The
// number is the letter and the colour: neighbours differ, and one holder keeps
// both for as long as its first term is known.
type holders map[driver.Owner]int

// newHolders numbers the holders of terms, which are newest first.
func newHolders(terms []driver.Term) holders {
	h := holders{}
	for i := len(terms) - 1; i >= 0; i-- {
		if o := terms[i].Owner; !h.has(o) {
			h[o] = len(h)
		}
	}
	return h
}

func (h holders) has(o driver.Owner) bool { _, found := h[o]; return found }

// letter is A, B, …, Z, AA, …
func (h holders) letter(o driver.Owner) string { return letter(h[o]) }

func (h holders) class(o driver.Owner) string { return fmt.Sprintf("h%d", h[o]%palette) }

func letter(n int) string {
	if n < 26 {
		return string(rune('A' + n))
	}
	return letter(n/26-1) + string(rune('A'+n%26))
}

var (
	fraction = regexp.MustCompile(`( (?:\d+h)?(?:\d+m)?\d+)\.\d+s\b`)
	moment   = regexp.MustCompile(` (last confirmed|last heartbeat) (?:[\d.]+(?:ms|µs|ns)|0s) ago`)
)

// reason is what the lock says of this replica, without the digits that never
// stand still, and without what only the log may say.
func (h *Handler) reason(s *snapshot) string {
	text := s.self.PublicReason(h.cfg.PublicError)
	text = moment.ReplaceAllString(text, " $1 under 1s ago")
	return fraction.ReplaceAllString(text, "${1}s")
}

// cut shortens a text from outside.
func cut(s string, runes int) string {
	for i := range s {
		if runes--; runes < 0 {
			return s[:i] + "…"
		}
	}
	return s
}
