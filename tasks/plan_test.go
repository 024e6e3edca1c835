package tasks

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/schedlock/schedlock/ledger"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	hourly, minutely := Every(time.Hour).Offset(0), Every(time.Minute).Offset(0)
	h := func(n int) time.Time { return midnight.Add(time.Duration(n) * time.Hour) }
	all := func(n int) Job { return Job{CatchUp: All(n)} }
	skip, atOnce := Job{CatchUp: Skip}, Job{AtOnce: true}
	queue, allow := Job{Overlap: OverlapQueue}, Job{Overlap: OverlapAllow}
	for _, tc := range []struct {
		name   string
		job    Job
		fresh  bool      // it is not in the ledger
		was    Spec      // in the ledger; default hourly
		cursor time.Time // default midnight
		m      moment
		want   string    // "": nothing is decided
		owes   time.Time // wanted
	}{
		{name: "a new job starts at now, whatever came before", fresh: true,
			m: moment{now: h(12)}, want: "new-12:00"},
		{name: "a new job with a tick at once", job: atOnce, fresh: true,
			m: moment{now: h(12)}, want: "new-12:00: run 12:00"},
		{name: "at once is for new jobs only", job: atOnce,
			m: moment{now: h(0).Add(time.Minute)}},
		{name: "a changed spec starts at now: nothing that the old one missed is made up",
			was: minutely, m: moment{now: h(5).Add(time.Minute)}, want: "00:00-05:01"},
		{name: "nor does it have a tick at once", job: atOnce, was: minutely,
			m: moment{now: h(1)}, want: "00:00-01:00"},
		{name: "a changed spec with the cursor in the future keeps the cursor", was: minutely,
			cursor: h(2), m: moment{now: h(1)}, want: "02:00-02:00"},
		{name: "no tick since the cursor", m: moment{now: h(1).Add(-time.Microsecond)}},
		{name: "the cursor is in the future: the clock was set back", cursor: h(2),
			m: moment{now: h(1)}},
		{name: "one tick", m: moment{now: h(1)}, want: "00:00-01:00: run 01:00"},
		{name: "the cursor moves to the tick, not to now", m: moment{now: h(1).Add(time.Minute)},
			want: "00:00-01:00: run 01:00"},
		{name: "two ticks: the latest runs, the other was missed", m: moment{now: h(2)},
			want: "00:00-02:00: run 02:00, 01:00 missed"},
		{name: "many ticks: the latest runs, the others were missed",
			cursor: h(1).Add(-time.Minute), m: moment{now: h(11).Add(time.Second)},
			want: "00:59-11:00: run 11:00, 01:00-10:00 (10) missed"},
		{name: "while a run is under way nothing is decided",
			m: moment{now: h(3), busy: true, overlapsAt: h(4)}},
		{name: "until it has been under way for a while",
			m:    moment{now: h(3), busy: true, busyFrom: h(0), overlapsAt: h(3)},
			want: "00:00-03:00, 01:00-03:00 (3) overlap"},
		{name: "and when it has ended, what it overlapped is one row",
			m:    moment{now: h(3), busyFrom: h(0), busyUntil: h(3)},
			want: "00:00-03:00, 01:00-03:00 (3) overlap"},
		{name: "All: the newest run, the oldest of them first; the others were missed",
			job: all(3), m: moment{now: h(10)},
			want: "00:00-08:00: run 08:00, 01:00-07:00 (7) missed", owes: h(10)},
		{name: "All: fewer than it may run", job: all(3), m: moment{now: h(2)},
			want: "00:00-01:00: run 01:00", owes: h(2)},
		{name: "All: the next one it owes", job: all(3), cursor: h(8),
			m: moment{now: h(11), catchUpTo: h(10)}, want: "08:00-09:00: run 09:00", owes: h(10)},
		{name: "All: what it owes waits for the run under way, and so does what comes after",
			job: all(3), cursor: h(8), m: moment{now: h(11), busy: true, catchUpTo: h(10)},
			owes: h(10)},
		{name: "All: with overlaps allowed nothing waits",
			job: Job{CatchUp: All(3), Overlap: OverlapAllow}, cursor: h(8),
			m:    moment{now: h(10), busyUntil: h(9), catchUpTo: h(10)},
			want: "08:00-09:00: run 09:00", owes: h(10)},
		{name: "All: what came while the last of them ran overlapped", job: all(3), cursor: h(10),
			m:    moment{now: h(12), busyUntil: h(12), catchUpTo: h(10)},
			want: "10:00-12:00, 11:00-12:00 (2) overlap"},
		{name: "All: what came after that runs", job: all(3), cursor: h(10),
			m:    moment{now: h(13), busyUntil: h(12), catchUpTo: h(10)},
			want: "10:00-13:00: run 13:00, 11:00-12:00 (2) overlap"},
		{name: "All(1) is Latest", job: all(1), m: moment{now: h(3)},
			want: "00:00-03:00: run 03:00, 01:00-02:00 (2) missed"},
		{name: "Skip: what was due before this leader led is not run", job: skip,
			m:    moment{now: h(3).Add(time.Second), leadingSince: h(3)},
			want: "00:00-03:00, 01:00-03:00 (3) missed"},
		{name: "Skip: what was due since is", job: skip,
			m:    moment{now: h(3), leadingSince: h(2).Add(time.Second)},
			want: "00:00-03:00: run 03:00, 01:00-02:00 (2) missed"},
		{name: "queue: while a run is under way nothing is decided", job: queue,
			m: moment{now: h(2), busy: true}},
		{name: "queue: then the newest that came meanwhile runs", job: queue,
			m:    moment{now: h(4), busyUntil: h(4)},
			want: "00:00-04:00: run 04:00, 01:00-03:00 (3) overlap"},
		{name: "queue: one waits, also if all that were missed would run",
			job: Job{CatchUp: All(3), Overlap: OverlapQueue}, m: moment{now: h(4), busyUntil: h(4)},
			want: "00:00-04:00: run 04:00, 01:00-03:00 (3) overlap"},
		{name: "queue: all that were missed run, if none of them waited",
			job: Job{CatchUp: All(3), Overlap: OverlapQueue}, m: moment{now: h(4)},
			want: "00:00-02:00: run 02:00, 01:00 missed", owes: h(4)},
		{name: "allow: a run that ended is no concern", job: allow,
			m: moment{now: h(2), busyUntil: h(4)}, want: "00:00-02:00: run 02:00, 01:00 missed"},
		{name: "skip: a tick that came before the run had ended, decided after",
			m:    moment{now: h(1).Add(time.Minute), busyUntil: h(1).Add(time.Second)},
			want: "00:00-01:00, 01:00 overlap"},
		{name: "skip: and those that came after it had ended were missed",
			m:    moment{now: h(5), busyUntil: h(2)},
			want: "00:00-05:00: run 05:00, 01:00-02:00 (2) overlap, 03:00-04:00 (2) missed"},
		{name: "another run began before they were decided: they wait",
			m: moment{now: h(3), busy: true, busyFrom: h(2)}},
		{name: "and then the newest of them runs: what came while it ran overlapped",
			m:    moment{now: h(4), busyFrom: h(2), busyUntil: h(4)},
			want: "00:00-04:00: run 02:00, 01:00 missed, 03:00-04:00 (2) overlap"},
		{name: "unless one has come since", m: moment{now: h(5), busyFrom: h(2), busyUntil: h(4)},
			want: "00:00-05:00: run 05:00, 01:00-02:00 (2) missed, 03:00-04:00 (2) overlap"},
		{name: "All: those that waited come before the one that has come since", job: all(2),
			m:    moment{now: h(5), busyFrom: h(2), busyUntil: h(4)},
			want: "00:00-04:00: run 02:00, 01:00 missed, 03:00-04:00 (2) overlap"},
		{name: "All: several that waited are owed", job: all(3),
			m:    moment{now: h(4), busyFrom: h(2), busyUntil: h(4)},
			want: "00:00-01:00: run 01:00", owes: h(2)},
		{name: "Skip: one that waited runs if it was due since", job: skip,
			m:    moment{now: h(3), leadingSince: h(1), busyFrom: h(2), busyUntil: h(3)},
			want: "00:00-03:00: run 02:00, 01:00 missed, 03:00 overlap"},
		{name: "a pause: the reason changes with it, and the newest runs",
			m: moment{now: h(7), leadingSince: h(6).Add(time.Second),
				pauses: []ledger.Pause{{Since: h(3), Resumed: h(6).Add(time.Second)}}},
			want: "00:00-07:00: run 07:00, 01:00-02:00 (2) missed, 03:00-06:00 (4) paused"},
		{name: "two pauses, of the job and of all, that overlap", job: skip,
			m: moment{now: h(6), leadingSince: h(6), pauses: []ledger.Pause{
				{Since: h(2), Resumed: h(4)}, {Since: h(3), Resumed: h(5)}}},
			want: "00:00-06:00, 01:00 missed, 02:00-05:00 (4) paused, 06:00 missed"},
		{name: "a pause that was over before the cursor", cursor: h(5),
			m:    moment{now: h(7), pauses: []ledger.Pause{{Since: h(2), Resumed: h(4)}}},
			want: "05:00-07:00: run 07:00, 06:00 missed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			row := &ledger.Job{Spec: hourly.String(), Cursor: later(tc.cursor, midnight)}
			if tc.was != (Spec{}) {
				row.Spec = tc.was.String()
			}
			if tc.fresh {
				row = nil
			}
			tc.job.Name = "j"
			d, owes, ok := plan(tc.job, hourly, row, tc.m)
			assert.Equal(t, tc.owes, owes)
			require.Equal(t, tc.want != "", ok)
			if ok {
				assert.Equal(t, tc.want, decisionText(d))
				assert.Equal(t, []string{"j", hourly.String()}, []string{d.Job, d.Spec})
			}
		})
	}
	d, _, _ := plan(atOnce, hourly, nil,
		moment{now: midnight.Add(1999).In(time.FixedZone("", 3600))})
	for _, at := range []time.Time{d.To, d.Start} {
		assert.Equal(t, midnight.Add(time.Microsecond), at, "microseconds, in UTC")
	}
}

// decisionText is such as "00:00-04:00: run 02:00, 01:00 missed, 03:00-04:00 (2) overlap".
func decisionText(d ledger.Decision) string {
	clock := func(t time.Time) string {
		if t.IsZero() {
			return "new"
		}
		return t.Format("15:04")
	}
	text := clock(d.From) + "-" + clock(d.To)
	if !d.Start.IsZero() {
		text += ": run " + clock(d.Start)
	}
	for _, s := range d.Skipped {
		text += ", " + clock(s.First)
		if s.Count > 1 || !s.Last.Equal(s.First) {
			text += fmt.Sprintf("-%s (%d)", clock(s.Last), s.Count)
		}
		text += " " + s.Reason
	}
	return text
}

// Whatever the policies, and whatever the wake-ups: late, early, twice, after
// the clock was set back, with a pause, with runs that take their time, and
// with leaders that change.
func TestEachTickIsDecidedExactlyOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := Every(time.Duration(rapid.Int64Range(100, 5000).Draw(t,
			"ms")) * time.Millisecond).ForJob("j")
		if rapid.Bool().Draw(t, "cron") {
			spec = Cron(rapid.SampledFrom([]string{"* * * * * *", "*/7 * * * * *", "0 * * * *",
				"30 2 * * *"}).Draw(t, "expr"), "Europe/Berlin")
		}
		now := utc("2026-03-29T00:50:00Z") // ten minutes before the clocks change
		job := Job{
			Name:   "j",
			AtOnce: rapid.Bool().Draw(t, "at once"),
			CatchUp: rapid.SampledFrom([]CatchUp{Latest, Skip, All(1), All(3), All(100)}).Draw(t,
				"catch-up"),
			Overlap: rapid.SampledFrom([]Overlap{OverlapSkip, OverlapQueue, OverlapAllow}).Draw(t,
				"overlap"),
		}
		var (
			row     *ledger.Job
			decided = map[time.Time]string{}
			first   time.Time
			running int
			m       moment
			jumped  bool           // the clock was set back
			stretch [][2]time.Time // when runs were under way
		)
		begin := func() {
			if running++; row == nil || !m.catchUpTo.After(row.Cursor) {
				m.busyFrom = now
			}
			stretch = append(stretch, [2]time.Time{now, {}})
		}
		end := func() {
			running--
			m.busyUntil = now
			for i := range stretch {
				if stretch[i][1].IsZero() {
					stretch[i][1] = now
					break
				}
			}
		}
		decide := func(tick time.Time, how string) {
			if was, twice := decided[tick]; twice {
				t.Fatalf("tick %v is %s and was %s", tick, how, was)
			}
			decided[tick] = how
		}
		// What choose does; false: there is nothing to decide.
		step := func() bool {
			m.now, m.busy = now, running > 0 && job.Overlap != OverlapAllow
			if m.overlapsAt = now; len(decided)%2 == 0 {
				m.overlapsAt = now.Add(time.Second)
			}
			d, owed, ok := plan(job, spec, row, m)
			if !ok {
				return false
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
					if s.Reason == ledger.Overlap && !jumped &&
						!slices.ContainsFunc(stretch, func(x [2]time.Time) bool {
							return !tick.Before(x[0]) && (x[1].IsZero() || !tick.After(x[1]))
						}) {
						t.Fatalf("tick %v overlapped nothing", tick)
					}
				}
				if n != s.Count {
					t.Fatalf("the range %v has %d ticks", s, n)
				}
			}
			if len(d.Skipped) > 5 {
				t.Fatalf("%d rows of skipped ticks", len(d.Skipped))
			}
			if !d.Start.IsZero() {
				switch {
				case row == nil && !(job.AtOnce && d.Start.Equal(d.To)):
					t.Fatalf("a new job starts %v", d.Start)
				case m.busy:
					t.Fatalf("tick %v overlaps", d.Start)
				case row != nil && job.CatchUp == Skip && !d.Start.After(m.leadingSince):
					t.Fatalf("tick %v was missed, at %v", d.Start, m.leadingSince)
				}
				decide(d.Start, "run")
				begin()
			}
			m.catchUpTo = owed
			row = &ledger.Job{Name: "j", Spec: d.Spec, Cursor: d.To}
			return true
		}
		settle := func() {
			for n := 0; step(); n++ {
				if n > 1000 {
					t.Fatalf("it never comes to an end")
				}
			}
		}
		for range rapid.IntRange(1, 15).Draw(t, "wake-ups") {
			by := time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "passed"))
			if rapid.IntRange(0, 4).Draw(t, "clock set back") == 0 {
				by, jumped = -by, true
			}
			now = now.Add(by)
			switch rapid.SampledFrom([]string{"wake", "end", "end", "request", "pause",
				"another leads"}).Draw(t, "event") {
			case "end":
				if running > 0 {
					end()
				}
			case "request": // or a retry: it was due before the ticks
				if row != nil && (running == 0 || job.Overlap == OverlapAllow) {
					begin()
				}
			case "pause":
				p := ledger.Pause{Since: now}
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t,
					"paused for")))
				p.Resumed, m.leadingSince = now, now
				m.pauses = []ledger.Pause{p}
			case "another leads":
				for running > 0 {
					end()
				}
				m = moment{leadingSince: now, pauses: m.pauses}
			}
			settle()
		}
		for running > 0 {
			end()
			settle()
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
			t.Fatalf("a tick in (%v, %v] is not seen", row.Cursor, now)
		}
	})
}

// Whatever clocks the leaders have: each tick that a cursor has passed is in the
// ledger, in a row of its own or in a range. A row that is there stays.
func TestNoTickIsLostWhenACursorIsPutBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := Every(time.Second).ForJob("j")
		job := Job{Name: "j", CatchUp: rapid.SampledFrom([]CatchUp{Latest, Skip, All(3)}).Draw(t,
			"catch-up")}
		var (
			now   = utc("2026-03-29T00:50:00Z")
			row   *ledger.Job
			m     moment
			first time.Time // the job began there, or has been put back to there
			rows  = map[time.Time]bool{}
			seen  = map[time.Time]bool{} // is in the ledger
			story []string
		)
		tell := func(what string, at, to time.Time) {
			story = append(story, what+" "+at.Format("05.000000")+" "+to.Format("05.000000"))
		}
		record := func(k ledger.Skip) {
			for k := range k.Places() {
				if rows[k.First] {
					continue
				}
				tell("skip", k.First, k.Last)
				rows[k.First] = true
				for tick := range spec.Ticks(k.First.Add(-time.Microsecond), k.Last) {
					seen[tick] = true
					k.Count--
				}
				if k.Count != 0 {
					t.Fatalf("a range counts %d too many: %v", k.Count, story)
				}
				return
			}
		}
		for range rapid.IntRange(1, 15).Draw(t, "wake-ups") {
			now = now.Add(time.Duration(rapid.IntRange(-20, 20).Draw(t,
				"by")) * 700 * time.Millisecond)
			switch rapid.SampledFrom([]string{"wake", "pause", "another leads"}).Draw(t, "event") {
			case "pause":
				from := now.Add(-time.Duration(rapid.IntRange(0, 30).Draw(t, "since")) * time.Second)
				m.pauses, m.leadingSince = []ledger.Pause{{Since: from, Resumed: now}}, now
			case "another leads":
				m = moment{leadingSince: now, pauses: m.pauses}
				if tooFarAhead(spec, row, now) { // putBack
					tell("back", row.Cursor, now)
					if row.Cursor = now; now.Before(first) {
						first = now
					}
				}
			}
			for {
				m.now = now
				d, owed, ok := plan(job, spec, row, m)
				if !ok {
					break
				}
				if row == nil {
					first = d.To
				}
				for _, k := range d.Skipped {
					record(k)
				}
				if !d.Start.IsZero() {
					tell("run", d.Start, d.To)
					rows[d.Start], seen[d.Start] = true, true
				}
				m.catchUpTo, row = owed, &ledger.Job{Name: "j", Spec: d.Spec, Cursor: d.To}
			}
			for tick := range spec.Ticks(first, row.Cursor) {
				if !seen[tick] {
					t.Fatalf("%v was lost: %v", tick, story)
				}
			}
		}
	})
}
