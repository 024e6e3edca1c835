package statuspage

import (
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// shortSpec leaves out of a schedule what Go's durations say of minutes and seconds that are 0.
var shortSpec = strings.NewReplacer("h0m0s", "h", "m0s", "m")

// took is how long something lasted, or shall last: its two largest units, and a tenth below a
// minute. It is never rounded up. page.js has the same for ages.
func took(d time.Duration) string {
	two := func(n int64, unit string, rest int64, small string) string {
		if rest == 0 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		return fmt.Sprintf("%d %s %d %s", n, unit, rest, small)
	}
	switch s := int64(d / time.Second); {
	case d <= 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case s < 60:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
	case s < 3600:
		return two(s/60, "min", s%60, "s")
	case s < 86400:
		return two(s/3600, "h", s/60%60, "min")
	default:
		return two(s/86400, "d", s/3600%24, "h")
	}
}

// age is a length that is still running, in whole seconds.
func age(d time.Duration) string { return took(d.Truncate(time.Second)) }

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
var movingTag = regexp.MustCompile(`<svg(?: overflow="visible")? data-from="(-?\d+)" data-to="(-?\d+)"`)

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
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`,
		t.UTC().Format(time.RFC3339Nano), dayAndTime(t)))
}

// dayAndTime has the year if people would take the day for another one without it.
func dayAndTime(t time.Time) string {
	if time.Since(t).Abs() > 300*day {
		return t.UTC().Format("2 Jan 2006 15:04:05")
	}
	return t.UTC().Format("2 Jan 15:04:05")
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
		if _, known := h[terms[i].Owner]; !known {
			h[terms[i].Owner] = len(h)
		}
	}
	return h
}

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
	length = regexp.MustCompile(`( )((?:\d+h)?(?:\d+m)?(?:\d+(?:\.\d+)?(?:s|ms|µs|ns)))\b`)
	moment = regexp.MustCompile(` (last confirmed|last heartbeat) (?:[\d.]+(?:ms|µs|ns)|0s) ago`)
	seen   = regexp.MustCompile(`^(?:the database session of )?pid (\d+) on host ("[^"]*")` +
		`(?:.*\(term (\d+)\))?`)
)

// reason is what the lock says of this replica, without the digits that never
// stand still, and without what only the log may say.
func (h *Handler) reason(s *snapshot) string {
	if outdated(s) {
		return "stands by; it has not looked at the lock since this changed"
	}
	text := s.self.PublicReason(h.cfg.PublicError)
	text = moment.ReplaceAllString(text, " $1 under 1 s ago")
	return length.ReplaceAllStringFunc(text, func(found string) string {
		d, err := time.ParseDuration(found[1:])
		if err != nil {
			return found
		}
		if d >= time.Second {
			d = d.Truncate(time.Second)
		}
		return " " + took(d)
	})
}

// outdated reports whether a standby speaks of another holder than the page has read: it looks
// once in a while, and the page may have looked since.
func outdated(s *snapshot) bool {
	if s.blind || s.self.State != schedlock.SelfStandby || s.self.Err != nil {
		return false
	}
	r, m := s.view.Row, seen.FindStringSubmatch(s.self.Reason)
	if m == nil {
		free := strings.HasPrefix(s.self.Reason, "the lock is free") ||
			strings.HasPrefix(s.self.Reason, "there is no lock row")
		return free && r != nil
	}
	return r == nil || m[1] != strconv.Itoa(r.PID) || m[2] != strconv.Quote(r.Hostname) ||
		m[3] != "" && m[3] != strconv.FormatInt(r.Term, 10)
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
