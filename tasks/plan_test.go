package tasks

import (
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
	hourly := Every(time.Hour).Offset(0)
	noon := utc("2026-03-01T12:00:00Z")
	cursor := func(spec Spec, at time.Time) *ledger.Job {
		return &ledger.Job{Name: "j", Spec: spec.String(), Cursor: at}
	}
	h := func(n int) time.Time { return noon.Add(time.Duration(n) * time.Hour) }
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

		catchUp CatchUp
		overlap Overlap
		live    time.Time // default: long ago
		began   time.Time
		say     time.Time
		ended   time.Time
		owed    time.Time
		pauses  []ledger.Pause
		owes    time.Time // wanted
	}{
		{name: "a new job starts at now, whatever came before", now: noon,
			want: ledger.Decision{To: noon}},
		{name: "a new job with a tick at once", atOnce: true, now: noon,
			want: ledger.Decision{To: noon, Start: noon}},
		{name: "the ledger keeps microseconds, in UTC", atOnce: true,
			now: noon.Add(1999).In(time.FixedZone("", 3600)),
			want: ledger.Decision{To: noon.Add(time.Microsecond),
				Start: noon.Add(time.Microsecond)}},
		{name: "at once is for new jobs only", atOnce: true, row: cursor(hourly, noon),
			now: noon.Add(time.Minute), nothing: true},
		{name: "a changed spec starts at now: nothing that the old one missed is made up",
			row:  cursor(Every(time.Minute).Offset(0), noon.Add(-5*time.Hour)),
			now:  noon.Add(time.Minute),
			want: ledger.Decision{From: noon.Add(-5 * time.Hour), To: noon.Add(time.Minute)}},
		{name: "nor does it have a tick at once", atOnce: true,
			row: cursor(Every(time.Minute).Offset(0), noon.Add(-time.Hour)), now: noon,
			want: ledger.Decision{From: noon.Add(-time.Hour), To: noon}},
		{name: "a changed spec with the cursor in the future keeps the cursor",
			row: cursor(Every(time.Minute).Offset(0), noon.Add(time.Hour)), now: noon,
			want: ledger.Decision{From: noon.Add(time.Hour), To: noon.Add(time.Hour)}},
		{name: "no tick since the cursor", row: cursor(hourly, noon),
			now: noon.Add(time.Hour - time.Microsecond), nothing: true},
		{name: "the cursor is in the future: the clock was set back",
			row: cursor(hourly, noon.Add(time.Hour)), now: noon, nothing: true},
		{name: "one tick", row: cursor(hourly, noon), now: noon.Add(time.Hour),
			want: ledger.Decision{From: noon, To: noon.Add(time.Hour), Start: noon.Add(time.Hour)}},
		{name: "the cursor moves to the tick, not to now", row: cursor(hourly, noon),
			now:  noon.Add(time.Hour + time.Minute),
			want: ledger.Decision{From: noon, To: noon.Add(time.Hour), Start: noon.Add(time.Hour)}},
		{name: "two ticks: the latest runs, the other was missed", row: cursor(hourly, noon),
			now: noon.Add(2 * time.Hour),
			want: ledger.Decision{From: noon, To: noon.Add(2 * time.Hour),
				Start:   noon.Add(2 * time.Hour),
				Skipped: skip(noon.Add(time.Hour), noon.Add(time.Hour), 1, ledger.Missed)}},
		{name: "many ticks: the latest runs, the others were missed",
			row: cursor(hourly, noon.Add(-time.Minute)), now: noon.Add(10*time.Hour + time.Second),
			want: ledger.Decision{From: noon.Add(-time.Minute), To: noon.Add(10 * time.Hour),
				Start:   noon.Add(10 * time.Hour),
				Skipped: skip(noon, noon.Add(9*time.Hour), 10, ledger.Missed)}},
		{name: "while a run is under way nothing is decided", row: cursor(hourly, noon), say: h(4),
			now: h(3), running: true, nothing: true},
		{name: "until it has been under way for a while", row: cursor(hourly, noon), began: noon,
			say: h(3), now: h(3), running: true,
			want: ledger.Decision{From: noon, To: h(3),
				Skipped: skip(h(1), h(3), 3, ledger.Overlap)}},
		{name: "and when it has ended, what it overlapped is one row", row: cursor(hourly, noon),
			began: noon, ended: h(3), now: h(3),
			want: ledger.Decision{From: noon, To: h(3),
				Skipped: skip(h(1), h(3), 3, ledger.Overlap)}},
		{name: "All: the newest run, the oldest of them first; the others were missed",
			catchUp: All(3), row: cursor(hourly, noon), now: h(10),
			want: ledger.Decision{From: noon, To: h(8), Start: h(8),
				Skipped: skip(h(1), h(7), 7, ledger.Missed)}, owes: h(10)},
		{name: "All: fewer than it may run", catchUp: All(3), row: cursor(hourly, noon), now: h(2),
			want: ledger.Decision{From: noon, To: h(1), Start: h(1)}, owes: h(2)},
		{name: "All: the next one it owes", catchUp: All(3), row: cursor(hourly, h(8)), owed: h(10),
			now:  h(11),
			want: ledger.Decision{From: h(8), To: h(9), Start: h(9)}, owes: h(10)},
		{name: "All: what it owes waits for the run under way, and so does what comes after",
			catchUp: All(3), row: cursor(hourly, h(8)),
			owed: h(10), now: h(11), running: true, nothing: true, owes: h(10)},
		{name: "All: with overlaps allowed nothing waits", catchUp: All(3), overlap: OverlapAllow,
			row: cursor(hourly, h(8)), owed: h(10), ended: h(9), now: h(10),
			want: ledger.Decision{From: h(8), To: h(9), Start: h(9)}, owes: h(10)},
		{name: "All: what came while the last of them ran overlapped", catchUp: All(3),
			row: cursor(hourly, h(10)), owed: h(10), ended: h(12), now: h(12),
			want: ledger.Decision{From: h(10), To: h(12),
				Skipped: skip(h(11), h(12), 2, ledger.Overlap)}},
		{name: "All: what came after that runs", catchUp: All(3), row: cursor(hourly, h(10)),
			owed: h(10), ended: h(12), now: h(13),
			want: ledger.Decision{From: h(10), To: h(13), Start: h(13),
				Skipped: skip(h(11), h(12), 2, ledger.Overlap)}},
		{name: "All(1) is Latest", catchUp: All(1), row: cursor(hourly, noon), now: h(3),
			want: ledger.Decision{From: noon, To: h(3), Start: h(3),
				Skipped: skip(h(1), h(2), 2, ledger.Missed)}},
		{name: "Skip: what was due before this leader led is not run", catchUp: Skip,
			row: cursor(hourly, noon), live: h(3), now: h(3).Add(time.Second),
			want: ledger.Decision{From: noon, To: h(3),
				Skipped: skip(h(1), h(3), 3, ledger.Missed)}},
		{name: "Skip: what was due since is", catchUp: Skip, row: cursor(hourly, noon),
			live: h(2).Add(time.Second), now: h(3),
			want: ledger.Decision{From: noon, To: h(3), Start: h(3),
				Skipped: skip(h(1), h(2), 2, ledger.Missed)}},
		{name: "queue: while a run is under way nothing is decided", overlap: OverlapQueue,
			row: cursor(hourly, noon), now: h(2), running: true, nothing: true},
		{name: "queue: then the newest that came meanwhile runs", overlap: OverlapQueue,
			row: cursor(hourly, noon), ended: h(4), now: h(4),
			want: ledger.Decision{From: noon, To: h(4), Start: h(4),
				Skipped: skip(h(1), h(3), 3, ledger.Overlap)}},
		{name: "queue: one waits, also if all that were missed would run", catchUp: All(3),
			overlap: OverlapQueue, row: cursor(hourly, noon), ended: h(4), now: h(4),
			want: ledger.Decision{From: noon, To: h(4), Start: h(4),
				Skipped: skip(h(1), h(3), 3, ledger.Overlap)}},
		{name: "allow: a run that ended is no concern", overlap: OverlapAllow,
			row: cursor(hourly, noon), ended: h(4), now: h(2),
			want: ledger.Decision{From: noon, To: h(2), Start: h(2),
				Skipped: skip(h(1), h(1), 1, ledger.Missed)}},
		{name: "skip: a tick that came before the run had ended, decided after",
			row: cursor(hourly, noon), ended: h(1).Add(time.Second), now: h(1).Add(time.Minute),
			want: ledger.Decision{From: noon, To: h(1),
				Skipped: skip(h(1), h(1), 1, ledger.Overlap)}},
		{name: "another run began before they were decided: they wait", row: cursor(hourly, noon),
			began: h(2), now: h(3), running: true, nothing: true},
		{name: "and then the newest of them runs: what came while it ran overlapped",
			row: cursor(hourly, noon), began: h(2), ended: h(4), now: h(4),
			want: ledger.Decision{From: noon, To: h(4), Start: h(2), Skipped: []ledger.Skip{
				{First: h(1), Last: h(1), Count: 1, Reason: ledger.Missed}, {First: h(3),
					Last: h(4), Count: 2, Reason: ledger.Overlap}}}},
		{name: "unless one has come since", row: cursor(hourly, noon), began: h(2), ended: h(4),
			now: h(5),
			want: ledger.Decision{From: noon, To: h(5), Start: h(5), Skipped: []ledger.Skip{
				{First: h(1), Last: h(2), Count: 2, Reason: ledger.Missed}, {First: h(3),
					Last: h(4), Count: 2, Reason: ledger.Overlap}}}},
		{name: "All: those that waited come before the one that has come since", catchUp: All(2),
			row: cursor(hourly, noon), began: h(2), ended: h(4), now: h(5),
			want: ledger.Decision{From: noon, To: h(4), Start: h(2), Skipped: []ledger.Skip{
				{First: h(1), Last: h(1), Count: 1, Reason: ledger.Missed}, {First: h(3),
					Last: h(4), Count: 2, Reason: ledger.Overlap}}}},
		{name: "All: several that waited are owed", catchUp: All(3), row: cursor(hourly, noon),
			began: h(2), ended: h(4), now: h(4),
			want: ledger.Decision{From: noon, To: h(1), Start: h(1)}, owes: h(2)},
		{name: "Skip: one that waited runs if it was due since", catchUp: Skip, live: h(1),
			row: cursor(hourly, noon), began: h(2), ended: h(3), now: h(3),
			want: ledger.Decision{From: noon, To: h(3), Start: h(2), Skipped: []ledger.Skip{
				{First: h(1), Last: h(1), Count: 1, Reason: ledger.Missed}, {First: h(3),
					Last: h(3), Count: 1, Reason: ledger.Overlap}}}},
		{name: "a pause: the reason changes with it, and the newest runs",
			row: cursor(hourly, noon), live: h(6).Add(time.Second), now: h(7),
			pauses: []ledger.Pause{{Since: h(3), Resumed: h(6).Add(time.Second)}},
			want: ledger.Decision{From: noon, To: h(7), Start: h(7), Skipped: []ledger.Skip{
				{First: h(1), Last: h(2), Count: 2, Reason: ledger.Missed}, {First: h(3),
					Last: h(6), Count: 4, Reason: ledger.Paused}}}},
		{name: "two pauses, of the job and of all, that overlap", catchUp: Skip,
			row: cursor(hourly, noon), live: h(6), now: h(6),
			pauses: []ledger.Pause{{Since: h(2), Resumed: h(4)}, {Since: h(3), Resumed: h(5)}},
			want: ledger.Decision{From: noon, To: h(6),
				Skipped: []ledger.Skip{{First: h(1), Last: h(1), Count: 1, Reason: ledger.Missed},
					{First: h(2), Last: h(5), Count: 4, Reason: ledger.Paused}, {First: h(6),
						Last: h(6), Count: 1, Reason: ledger.Missed}}}},
		{name: "a pause that was over before the cursor", row: cursor(hourly, h(5)), now: h(7),
			pauses: []ledger.Pause{{Since: h(2), Resumed: h(4)}},
			want: ledger.Decision{From: h(5), To: h(7), Start: h(7),
				Skipped: skip(h(6), h(6), 1, ledger.Missed)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, owed, ok := plan(Job{Name: "j", AtOnce: tc.atOnce, CatchUp: tc.catchUp,
				Overlap: tc.overlap}, hourly, tc.row,
				moment{now: tc.now, leadingSince: tc.live, busy: tc.running, overlapsAt: tc.say,
					busyFrom: tc.began, busyUntil: tc.ended, catchUpTo: tc.owed,
					pauses: tc.pauses})
			require.Equal(t, !tc.nothing, ok)
			assert.Equal(t, tc.owes, owed)
			if ok {
				tc.want.Job, tc.want.Spec = "j", hourly.String()
				assert.Equal(t, tc.want, d)
			}
		})
	}
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
