package statuspage

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"example.com/schedlock/internal/forms"
	"example.com/schedlock/schedlock/driver"
)

// The windows of the timeline, by the name in the query; 0 is long enough for all terms.
var spans = []struct {
	name string
	d    time.Duration
}{{"15m", 15 * time.Minute}, {"1h", time.Hour}, {"24h", day}, {"7d", 7 * day}, {"all", 0}}

// usualSpan is the window that is shown unless another one is asked for. It is always the same, so
// that who looks again sees the same picture, moved on.
const usualSpan = "1h"

func spanOf(r *http.Request) (string, error) {
	v, err := forms.Query(r)
	if err != nil {
		return "", err
	}
	span, err := parseSpan(v.Get("span"))
	return cmp.Or(span, usualSpan), err
}

func parseSpan(name string) (string, error) {
	if _, found := lengthOf(name); !found && name != "" {
		return "", fmt.Errorf("span %.40q is not one of 15m, 1h, 24h, 7d, all", name)
	}
	return name, nil
}

func lengthOf(span string) (d time.Duration, found bool) {
	for _, s := range spans {
		if s.name == span {
			return s.d, true
		}
	}
	return 0, false
}

// window is from when to when the timeline reaches.
// It does not reach back beyond the first term that is known: who has just
// started an app sees more than a hair's breadth. It moves in steps, and grows in
// steps, so that the drawing stands still between them; its end lies a little after
// now. terms are newest first.
func window(span string, terms []driver.Term, now time.Time) (from, to time.Time) {
	d, _ := lengthOf(span)
	d = max(d, time.Minute)
	if len(terms) > 0 {
		known := roundUp(max(now.Sub(terms[len(terms)-1].AcquiredAt), time.Minute))
		if span == "all" || known < d {
			d = known
		}
	}
	const steps = 20
	step := max((d / steps).Truncate(time.Second), time.Second)
	to = now.Truncate(step).Add(2 * step)
	return to.Add(-d - 2*step), to
}

// roundUp is a little more than d, and the same for a while as d grows.
func roundUp(d time.Duration) time.Duration {
	unit := time.Second
	for unit*16 < d {
		unit *= 2
	}
	return d.Truncate(unit) + unit
}

// tickSteps are the distances that the marks of a time axis may have.
var tickSteps = []time.Duration{
	time.Second, 5 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour,
	30 * 24 * time.Hour, 90 * 24 * time.Hour,
}

// axisTick is a mark of the time axis.
type axisTick struct {
	X    float64
	Text string
}

func axis(from, to time.Time) (ticks []axisTick) {
	const most = 5
	d := to.Sub(from)
	step := 365 * 24 * time.Hour
	for _, s := range tickSteps {
		if d/s < most {
			step = s
			break
		}
	}
	layout := "15:04"
	switch {
	case step >= 24*time.Hour:
		layout = "2 Jan"
	case step < time.Minute:
		layout = "15:04:05"
	case d > 24*time.Hour:
		layout = "2 Jan 15:04"
	}
	for t := from.Truncate(step).Add(step); t.Before(to); t = t.Add(step) {
		if x := percent(t, from, to); x > 3 && x < 86 { // then follows "now"
			ticks = append(ticks, axisTick{x, t.UTC().Format(layout)})
		}
	}
	return ticks
}

// percent is where t lies in the window: 0 at its beginning, 100 at its end.
func percent(t, from, to time.Time) float64 {
	return min(max(100*float64(t.Sub(from))/float64(to.Sub(from)), 0), 100)
}
