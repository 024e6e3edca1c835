package tasks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/schedlock/schedlock/ledger"
)

func TestPlan(t *testing.T) {
	hourly := Every(time.Hour).Offset(0)
	noon := utc("2026-03-01T12:00:00Z")
	cursor := func(spec Spec, at time.Time) *ledger.Job {
		return &ledger.Job{Name: "j", Spec: spec.String(), Cursor: at}
	}
	skip := func(first, last time.Time, n int64, reason string) []ledger.Skip {
		return []ledger.Skip{{First: first, Last: last, Count: n, Reason: reason}}
	}
	for _, tc := range []struct {
		name    string
		atOnce  bool
		row     *ledger.Job
		now     time.Time
		running bool
		want    ledger.Decision // without Job and Spec
		nothing bool
	}{
		{name: "a new job starts at now, whatever came before", now: noon,
			want: ledger.Decision{To: noon}},
		{name: "a new job with a tick at once", atOnce: true, now: noon,
			want: ledger.Decision{To: noon, Start: noon}},
		{name: "the ledger keeps microseconds, in UTC", atOnce: true, now: noon.Add(1999).In(time.FixedZone("", 3600)),
			want: ledger.Decision{To: noon.Add(time.Microsecond), Start: noon.Add(time.Microsecond)}},
		{name: "at once is for new jobs only", atOnce: true, row: cursor(hourly, noon), now: noon.Add(time.Minute), nothing: true},
		{name: "a changed spec starts at now: nothing that the old one missed is made up",
			row: cursor(Every(time.Minute).Offset(0), noon.Add(-5*time.Hour)), now: noon.Add(time.Minute),
			want: ledger.Decision{From: noon.Add(-5 * time.Hour), To: noon.Add(time.Minute)}},
		{name: "nor does it have a tick at once", atOnce: true,
			row: cursor(Every(time.Minute).Offset(0), noon.Add(-time.Hour)), now: noon,
			want: ledger.Decision{From: noon.Add(-time.Hour), To: noon}},
		{name: "a changed spec with the cursor in the future keeps the cursor",
			row: cursor(Every(time.Minute).Offset(0), noon.Add(time.Hour)), now: noon,
			want: ledger.Decision{From: noon.Add(time.Hour), To: noon.Add(time.Hour)}},
		{name: "no tick since the cursor", row: cursor(hourly, noon), now: noon.Add(time.Hour - time.Microsecond), nothing: true},
		{name: "the cursor is in the future: the clock was set back", row: cursor(hourly, noon.Add(time.Hour)), now: noon, nothing: true},
		{name: "one tick", row: cursor(hourly, noon), now: noon.Add(time.Hour),
			want: ledger.Decision{From: noon, To: noon.Add(time.Hour), Start: noon.Add(time.Hour)}},
		{name: "the cursor moves to the tick, not to now", row: cursor(hourly, noon), now: noon.Add(time.Hour + time.Minute),
			want: ledger.Decision{From: noon, To: noon.Add(time.Hour), Start: noon.Add(time.Hour)}},
		{name: "two ticks: the latest runs, the other was missed", row: cursor(hourly, noon), now: noon.Add(2 * time.Hour),
			want: ledger.Decision{From: noon, To: noon.Add(2 * time.Hour), Start: noon.Add(2 * time.Hour),
				Skipped: skip(noon.Add(time.Hour), noon.Add(time.Hour), 1, ledger.Missed)}},
		{name: "many ticks: the latest runs, the others were missed", row: cursor(hourly, noon.Add(-time.Minute)), now: noon.Add(10*time.Hour + time.Second),
			want: ledger.Decision{From: noon.Add(-time.Minute), To: noon.Add(10 * time.Hour), Start: noon.Add(10 * time.Hour),
				Skipped: skip(noon, noon.Add(9*time.Hour), 10, ledger.Missed)}},
		{name: "one tick while a run is under way", row: cursor(hourly, noon), now: noon.Add(time.Hour), running: true,
			want: ledger.Decision{From: noon, To: noon.Add(time.Hour),
				Skipped: skip(noon.Add(time.Hour), noon.Add(time.Hour), 1, ledger.Overlap)}},
		{name: "many ticks while a run is under way", row: cursor(hourly, noon), now: noon.Add(3 * time.Hour), running: true,
			want: ledger.Decision{From: noon, To: noon.Add(3 * time.Hour),
				Skipped: skip(noon.Add(time.Hour), noon.Add(3*time.Hour), 3, ledger.Overlap)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, ok := plan(Job{Name: "j", AtOnce: tc.atOnce}, hourly, tc.row, tc.now, tc.running)
			require.Equal(t, !tc.nothing, ok)
			if ok {
				tc.want.Job, tc.want.Spec = "j", hourly.String()
				assert.Equal(t, tc.want, d)
			}
		})
	}
}

// Whatever the wake-ups: late, early, twice, after the clock was set back.
func TestEachTickIsDecidedExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := Every(time.Duration(rapid.Int64Range(100, 5000).Draw(t, "ms")) * time.Millisecond).ForJob("j")
		if rapid.Bool().Draw(t, "cron") {
			spec = Cron(rapid.SampledFrom([]string{"* * * * * *", "*/7 * * * * *", "0 * * * *", "30 2 * * *"}).Draw(t, "expr"), "Europe/Berlin")
		}
		now := utc("2026-03-29T00:50:00Z") // ten minutes before the clocks change
		job := Job{Name: "j", AtOnce: rapid.Bool().Draw(t, "at once")}
		var (
			row     *ledger.Job
			decided = map[time.Time]string{}
			first   time.Time
		)
		decide := func(tick time.Time, how string) {
			if was, twice := decided[tick]; twice {
				t.Fatalf("tick %v is %s and was %s", tick, how, was)
			}
			decided[tick] = how
		}
		for range rapid.IntRange(1, 12).Draw(t, "wake-ups") {
			by := time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "passed"))
			if rapid.IntRange(0, 4).Draw(t, "clock set back") == 0 {
				by = -by
			}
			now = now.Add(by)
			d, ok := plan(job, spec, row, now, rapid.Bool().Draw(t, "running"))
			if !ok {
				continue
			}
			if row == nil {
				first = d.To
			} else if !d.From.Equal(row.Cursor) || d.To.Before(row.Cursor) {
				t.Fatalf("the cursor goes from %v to %v and stands at %v", d.From, d.To, row.Cursor)
			}
			if d.To.After(now) {
				t.Fatalf("decided up to %v at %v", d.To, now)
			}
			for _, s := range d.Skipped {
				n := int64(0)
				for tick := range spec.Ticks(s.First.Add(-time.Microsecond), s.Last) {
					decide(tick, s.Reason)
					n++
				}
				if n != s.Count {
					t.Fatalf("the range %v has %d ticks", s, n)
				}
			}
			if !d.Start.IsZero() {
				if row == nil && !(job.AtOnce && d.Start.Equal(d.To)) {
					t.Fatalf("a new job starts %v", d.Start)
				}
				decide(d.Start, "run")
			}
			row = &ledger.Job{Name: "j", Spec: d.Spec, Cursor: d.To}
		}
		if row == nil {
			return
		}
		if job.AtOnce {
			delete(decided, first)
		}
		// What an observer who looks once, at the end, would expect.
		for tick := range spec.Ticks(first, row.Cursor) {
			if decided[tick] == "" {
				t.Fatalf("tick %v was lost", tick)
			}
			delete(decided, tick)
		}
		if len(decided) > 0 {
			t.Fatalf("no ticks: %v", decided)
		}
		if n := len(spec.LastN(row.Cursor, now, 1)); n > 0 && now.After(row.Cursor) {
			if _, ok := plan(job, spec, row, now, false); !ok {
				t.Fatalf("a tick in (%v, %v] is not seen", row.Cursor, now)
			}
		}
	})
}
