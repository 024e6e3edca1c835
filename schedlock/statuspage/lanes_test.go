package statuspage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

// ran is a run that began so long before noon, and took so long; took below 0: it has not ended.
func ran(status ledger.Status, ago, took time.Duration) ledger.Run {
	r := ledger.Run{ID: int64(1e12 - ago), Job: "import", Status: status, Attempt: 1,
		ScheduledAt: noon.Add(-ago), StartedAt: noon.Add(-ago)}
	if took >= 0 {
		r.FinishedAt = r.StartedAt.Add(took)
	}
	if status == ledger.Skipped {
		r.StartedAt, r.FinishedAt, r.Attempt = time.Time{}, time.Time{}, 0
		r.Until, r.Count = r.ScheduledAt.Add(took), 2
	}
	return r
}

// drawnJob is a job in a lane with these runs, newest first.
func drawnJob(name string, runs ...ledger.Run) job {
	return job{JobInfo: tasks.JobInfo{Job: ledger.Job{Name: name}, Known: true}, runs: runs,
		read: laneMost, lane: true}
}

func TestRunsAreDrawnOnTheAxisOfTheTerms(t *testing.T) {
	t.Parallel()
	min := time.Minute
	s := &snapshot{now: noon, terms: []driver.Term{held("b", 5*min, -1, ""),
		held("a", 14*min, 6*min, driver.EndExpired)}}
	j := drawnJob("import", ran(ledger.InProgress, 2*min, -1), ran(ledger.Done, 4*min, min),
		ran(ledger.Skipped, 6*min, min), ran(ledger.Abandoned, 8*min, 2*min),
		ran(ledger.Failed, 10*min, min))
	s.jobs = []job{j}
	from, to := window("15m", s.terms, noon)
	line := newTimeline(s, "15m")
	draw := func() lane { return newLane(s.jobs[0], from, to) }
	l := draw()
	var looks []string
	for _, b := range l.Bars {
		looks = append(looks, b.Class+b.Sign)
	}
	assert.Equal(t, []string{"f×", "a!", "s–", "d", "p›"}, looks, "each looks in a way of its own")
	bars := l.Bars
	assert.InDelta(t, percent(noon.Add(-10*min), from, to), bars[0].X, 0.001)
	assert.InDelta(t, 100*float64(min)/float64(to.Sub(from)), bars[0].Width, 0.001)
	assert.InDelta(t, 100, bars[4].X+bars[4].Width, 0.001, "it goes on")
	assert.InDelta(t, line.Bars[0].X+line.Bars[0].Width, bars[2].X, 0.001,
		"nothing started when the leader had gone")
	assert.Contains(t, bars[0].Title, "11:50:00: failed, 1 min")
	assert.Equal(t, "job-runs?job=import&until=2026-11-21T11%3A50%3A00Z", bars[0].Link)
	assert.Zero(t, l.Unread)
	assert.Equal(t, "import: 5 runs: 1 in progress, 1 done, 1 failed, 1 abandoned, 1 skipped",
		l.Label)

	s.jobs[0].read = 5
	assert.InDelta(t, bars[0].X, draw().Unread, 0.001, "there may be older ones")
}

func TestManyRunsAreASmallDrawing(t *testing.T) {
	t.Parallel()
	var runs []ledger.Run
	for i := range 1000 {
		status := ledger.Done
		if i == 500 {
			status = ledger.Failed
		}
		runs = append(runs, ran(status, time.Duration(i+1)*900*time.Millisecond,
			100*time.Millisecond))
	}
	from, to := noon.Add(-15*time.Minute), noon.Add(time.Minute)
	bars := runBars("import", runs, from, to)
	assert.Less(t, len(bars), 170)
	assert.Greater(t, len(bars), 100)
	failed := 0
	for _, b := range bars {
		if b.Class == "f" {
			failed++
			assert.Equal(t, "×", b.Sign)
			assert.Regexp(t, `: \d+ runs: \d+ done, 1 failed$`, b.Title, "the worst wins")
			assert.Regexp(t, `^job-runs\?job=import&since=2026-11-21T11.*&until=2026-11-21T11`, b.Link)
		}
	}
	assert.Equal(t, 1, failed)

	newer := append([]ledger.Run{ran(ledger.Done, 0, 0)}, runs[:len(runs)-1]...)
	again := runBars("import", newer, from, to)
	again = slices.DeleteFunc(again, func(b runBar) bool { return slices.Contains(bars, b) })
	assert.LessOrEqual(t, len(again), 2, "one more run leaves the other bars as they are")
}

func TestTheLanesAreThoseOfJobsThatFailOrRanLast(t *testing.T) {
	t.Parallel()
	s := &snapshot{now: noon}
	for i := range 100 {
		j := drawnJob(fmt.Sprintf("job %02d", i))
		j.Cursor = noon.Add(-time.Duration(i) * time.Minute)
		s.jobs = append(s.jobs, j)
	}
	s.jobs[77].Streak = 2
	names := inLanes(s.jobs)
	for i := range s.jobs {
		s.jobs[i].lane = names[s.jobs[i].Name]
	}
	var got []string
	for _, j := range laneJobs(s) {
		got = append(got, strings.TrimPrefix(j.Name, "job "))
	}
	assert.Equal(t, "77 00 01 02 03 04 05 06 07 08 09 10", strings.Join(got, " "))
	page := newUpdate(newHandler(t, newDatabase(), nil), s, nil).timeline(usualSpan)
	assert.Contains(t, page[partLegend], "Drawn are 12 jobs")
	assert.Contains(t, page[partLegend], "88 more are not drawn")
	assert.Contains(t, page[partLane+"0"], "job-runs?job=job%2077")
}

func TestOneMoreRunOfALaneIsReadAlone(t *testing.T) {
	t.Parallel()
	db := before(t, time.Hour)
	db.leads("web-1", 41, "")
	run := func() {
		db.pass(time.Second)
		db.job("tick", ledger.Done, 0, "")
	}
	for range laneMost + 20 {
		run()
	}
	h := newHandler(t, db, nil)
	s := h.read(ctx, nil, true)
	require.Len(t, s.jobs[0].runs, laneMost)
	db.runsRead.Store(0)
	run()
	s = h.read(ctx, s, true)
	assert.LessOrEqual(t, db.runsRead.Load(), int64(newRuns+maxStrip))
	assert.Equal(t, h.read(ctx, nil, true).jobs, s.jobs)
}

// What a page sends of a leader whose jobs rest: heartbeats, and a drawing now and then.
func TestAnIdlePageSendsLittleWhateverItsHistory(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	for _, n := range []int{300, 5} {
		if n == 5 && !missing.Full() {
			break
		}
		var terms []driver.Term
		for i := range n {
			d := time.Duration(i) * 10 * time.Minute
			terms = append(terms, held(fmt.Sprint("web-", i%3), d+10*time.Minute, d, "released"))
		}
		terms[0].EndedAt, terms[0].EndReason = time.Time{}, ""
		s := &snapshot{terms: terms}
		for i := range maxLanes + 1 {
			var runs []ledger.Run
			for k := range 100 {
				runs = append(runs, ran(ledger.Done, time.Duration(k+1)*7*time.Minute, time.Minute))
			}
			j := drawnJob(fmt.Sprint("job ", i), runs...)
			j.lane = i < maxLanes
			s.jobs = append(s.jobs, j)
		}
		h := newHandler(t, newDatabase(), nil)
		for _, span := range missing.Some("15m", "1h", "all") {
			var zipped counting
			to, drawn := newGzip(&zipped), &drawings{}
			sent, last := map[string]string{}, ""
			const length = 4 * time.Minute
			for at := time.Duration(0); at < length; at += 4 * pollInterval {
				now := *s
				now.now = noon.Add(at)
				now.view.Now = now.now
				now.view.Row = &driver.Row{Ref: terms[0].Ref, State: driver.StateLeading,
					CreatedAt: terms[0].AcquiredAt, Timing: timing,
					HeartbeatAt: now.now.Truncate(timing.HeartbeatInterval)}
				_, err := to.Write([]byte(newUpdate(h, &now, drawn).event(span, true, sent, &last)))
				require.NoError(t, err)
				require.NoError(t, to.Flush())
				if at == 0 {
					zipped = 0 // the page itself
				}
			}
			rate := float64(zipped) / length.Seconds()
			t.Logf("%d terms, %q: %.0f bytes a second", n, span, rate)
			assert.Less(t, rate, 1000.0, "%d terms, %q", n, span)
		}
	}
}

type counting int

func (c *counting) Write(p []byte) (int, error) { *c += counting(len(p)); return len(p), nil }
