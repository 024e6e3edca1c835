package statuspage

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// held is a term that ended so long before noon, after so long; ended below 0:
// it is open.
func held(host string, began, ended time.Duration, reason driver.EndReason) driver.Term {
	t := driver.Term{Ref: driver.Ref{Owner: driver.Owner{PID: 1, Hostname: host},
		Term: int64(1e9 - began)}, AcquiredAt: noon.Add(-began), TTL: time.Minute}
	if ended >= 0 {
		t.EndedAt, t.EndReason = noon.Add(-ended), reason
	}
	return t
}

func TestATimeWithoutALeaderIsMarked(t *testing.T) {
	t.Parallel()
	min := time.Minute
	s := &snapshot{now: noon, terms: []driver.Term{
		held("d", 2*min, 1*min, driver.EndReleased), // and nobody since
		held("c", 4*min, 2*min+500*time.Millisecond, driver.EndReleased),
		held("b", 8*min, 4*min, driver.EndExpired), // silent for its TTL
		held("a", 20*min, 10*min, driver.EndLost),  // nobody for 2 min
	}}
	line := newTimeline(s, "15m")
	require.Len(t, line.Bars, 4)
	require.Len(t, line.Gaps, 3)
	assert.Equal(t, "nobody led for 2 min\n21 Nov 11:50:00 – 11:52:00 UTC", line.Gaps[0].Title)
	assert.Equal(t, "no heartbeat for at least 1 min\n21 Nov 11:55:00 – 11:56:00 UTC",
		line.Gaps[1].Title)
	assert.Contains(t, line.Gaps[2].Title, "nobody leads since 11:59:00 UTC")
	assert.InDelta(t, 100, line.Gaps[2].X+line.Gaps[2].Width, 0.001, "it goes on")
	from, to := window("15m", s.terms, noon)
	assert.InDelta(t, 100*float64(2*min)/float64(to.Sub(from)), line.Gaps[0].Width, 0.001)
	assert.Contains(t, line.Label, "4 terms; nobody led 2 times, for 3 min in all")
	assert.Equal(t, []string{"D", "C", "B", "A"}, []string{line.Legend[0].Letter,
		line.Legend[1].Letter, line.Legend[2].Letter, line.Legend[3].Letter})

	// Who leads now is not hidden by the gap just before.
	s.terms = append([]driver.Term{held("e", time.Second, -1, "")}, s.terms...)
	line = newTimeline(s, "15m")
	require.Len(t, line.Gaps, 3)
	assert.InDelta(t, line.Bars[4].X, line.Gaps[2].X+line.Gaps[2].Width, 0.001)
	s.terms = s.terms[1:]

	s.terms = append(s.terms, held("w", 25*min, 19*min, driver.EndReleased), // by another clock
		held("v", 30*min, -1, "")) // its row was deleted by hand
	rows := newTermRows(s)
	var gaps []string
	for _, r := range rows {
		gaps = append(gaps, r.Gap)
	}
	assert.Equal(t, []string{"500 ms", "1 min without a heartbeat", "2 min", "–", "not known", ""},
		gaps)

	// A row whose holder is silent.
	s = &snapshot{now: noon, terms: []driver.Term{held("a", 10*min, -1, "")}}
	s.view.Row = &driver.Row{HeartbeatAt: noon.Add(-2 * min), Timing: timing}
	line = newTimeline(s, "15m")
	require.Len(t, line.Gaps, 1)
	assert.Contains(t, line.Gaps[0].Title, "no heartbeat since 11:58:00 UTC")
	s.view.Row.HeartbeatAt = noon
	assert.Empty(t, newTimeline(s, "15m").Gaps)
}

func TestTermsThatAreTooNarrowShareABar(t *testing.T) {
	t.Parallel()
	var terms []driver.Term
	for i := range 1000 {
		d := time.Duration(i) * 15 * time.Minute // and no two of one holder
		terms = append(terms, held(fmt.Sprint("h", i), d+14*time.Minute, d, driver.EndReleased))
	}
	line := newTimeline(&snapshot{now: noon, terms: terms}, "all")
	assert.Less(t, len(line.Bars), 350)
	assert.Less(t, len(line.Gaps), 350)
	assert.Greater(t, len(line.Bars), 100)
	end := 0.0
	for _, b := range line.Bars {
		assert.GreaterOrEqual(t, b.X, end-0.2, "one after the other")
		end = b.X + b.Width
	}
	assert.Equal(t, "many", line.Bars[5].Class)
	assert.Regexp(t, `^\d+ terms from `, line.Bars[5].Title)
	assert.Len(t, line.Legend, 12)
	assert.Equal(t, 988, line.Hidden)
}

func TestAHolderKeepsItsColourAndItsLetter(t *testing.T) {
	t.Parallel()
	var terms []driver.Term
	for i := range palette + 2 {
		host := string(rune('a' + i))
		terms = append([]driver.Term{held(host, time.Duration(palette+2-i)*time.Minute, 0,
			driver.EndReleased)}, terms...)
		h := newHolders(terms)
		assert.Equal(t, letter(i), h.letter(terms[0].Owner))
		assert.Equal(t, fmt.Sprintf("h%d", i%palette), h.class(terms[0].Owner))
		assert.Equal(t, "A h0", h.letter(terms[i].Owner)+" "+h.class(terms[i].Owner),
			"the first keeps its own")
		again := newHolders(append([]driver.Term{terms[i]}, terms...))
		assert.Equal(t, h, again, "whoever leads again")
	}
	assert.Equal(t, []string{"A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"},
		[]string{letter(0), letter(25), letter(26), letter(51), letter(52), letter(701),
			letter(702)})
}

func TestTheWindowIsWhatIsKnownOfItsSpan(t *testing.T) {
	t.Parallel()
	few := []driver.Term{held("b", 20*time.Second, -1, ""),
		held("a", 3*time.Minute, 20*time.Second, driver.EndReleased)}
	old := append(few[:1:1], held("a", 1000*time.Hour, time.Minute, driver.EndReleased))
	for _, tt := range []struct {
		span        string
		terms       []driver.Term
		atLeast, at time.Duration // how far it reaches back, and at the most
	}{
		{"15m", nil, 15 * time.Minute, 17 * time.Minute},
		{"15m", old, 15 * time.Minute, 17 * time.Minute},
		{"1h", old, time.Hour, 66 * time.Minute},
		{"7d", old, 7 * day, 8 * day},
		{"all", old, 1000 * time.Hour, 1150 * time.Hour},
		{"15m", few, 3 * time.Minute, 4 * time.Minute},
		{"7d", few, 3 * time.Minute, 4 * time.Minute},
		{"all", few, 3 * time.Minute, 4 * time.Minute},
		{"15m", few[:1], time.Minute, 64 * time.Second},
	} {
		from, to := window(tt.span, tt.terms, noon)
		assert.WithinRange(t, from, noon.Add(-tt.at), noon.Add(-tt.atLeast), "%+v", tt)
		assert.WithinRange(t, to, noon.Add(1), noon.Add(tt.at/8), "%+v", tt)
		assert.LessOrEqual(t, len(axis(from, to)), 5)
		begin, again := window(tt.span, tt.terms, noon.Add(time.Second))
		assert.True(t, again.Equal(to) && begin.Equal(from), "it stands still for a while")
	}
}
