package statuspage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

const (
	maxLanes = 12 // jobs that are drawn; page.html has as many places

	// laneRuns is how many runs of all lanes together are read, and laneMost how many of one.
	laneRuns = 900
	laneMost = 300
)

// lane is a job below the timeline: its runs on the same axis.
type lane struct {
	Job    string
	Bars   []runBar
	Unread float64 // older runs than those right of it were not read
	Label  string  // the drawing in a sentence
}

// runBar is a run, or several that lie too close to be drawn alone.
type runBar struct {
	X, Width float64
	Class    string // of the worst of them
	Sign     string // what tells it apart without colours; "": there is no room, or no need
	Title    string
	Link     string
}

// Middle is where the sign stands.
func (b runBar) Middle() float64 { return b.X + b.Width/2 }

// later is the part of a drawing that lies in the future. It hides how bars go on that have not
// ended. Its place is not part of what is compared: it moves with the clock (words.go, page.js).
type later struct{ From, To int64 }

func newLater(from, to time.Time) later { return later{from.UnixMilli(), to.UnixMilli()} }

// inLanes names the jobs that are drawn: those that fail, then those that ran last.
func inLanes(jobs []job) map[string]bool {
	ran := func(j job) time.Time { return latest(latest(j.Cursor, j.LastDone), j.LastFailed) }
	order := slices.Clone(jobs)
	slices.SortStableFunc(order, func(a, b job) int {
		return cmp.Or(failsFirst(a, b), ran(b).Compare(ran(a)))
	})
	names := map[string]bool{}
	for _, j := range order[:min(len(order), maxLanes)] {
		names[j.Name] = true
	}
	return names
}

// laneJobs are the jobs that are drawn, those that fail first, the others by name: a lane keeps
// its place when another job has run.
func laneJobs(s *snapshot) (jobs []job) {
	for _, j := range s.jobs {
		if j.lane {
			jobs = append(jobs, j)
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int {
		return cmp.Or(failsFirst(a, b), strings.Compare(a.Name, b.Name))
	})
	return jobs
}

func failsFirst(a, b job) int { return cmp.Compare(min(b.Streak, 1), min(a.Streak, 1)) }

func newLane(j job, from, to time.Time) lane {
	l := lane{Job: j.Name}
	counts := map[ledger.Status]int{}
	var shown []ledger.Run
	for _, r := range j.runs {
		if begin, end := drawn(r, to); end.After(from) && begin.Before(to) {
			shown = append(shown, r)
			counts[r.Status]++
		}
	}
	l.Bars = runBars(j.Name, shown, from, to)
	if n := len(j.runs); n > 0 && n == j.read {
		begin, _ := drawn(j.runs[n-1], to)
		l.Unread = percent(begin, from, to)
	}
	l.Label = j.Name + ": no runs in this window"
	if len(shown) > 0 {
		l.Label = j.Name + ": " + summary(counts, len(shown))
	}
	return l
}

// drawings are the lanes as they were drawn for the pages that are open. Most of them stand still
// for a while, and to draw them costs more than all the rest of an update.
type drawings struct {
	mu    sync.Mutex
	texts map[laneKey]string
}

// laneKey is what a drawing depends on. Runs that were read are not changed, so the newest one,
// by its address, stands for all of them.
type laneKey struct {
	job      string
	newest   *ledger.Run
	n, read  int
	from, to time.Time
}

// lane returns the drawing of a job; a nil receiver keeps none.
func (d *drawings) lane(h *Handler, j job, from, to time.Time) string {
	if d == nil {
		return h.execute("lane", newLane(j, from, to))
	}
	key := laneKey{j.Name, nil, len(j.runs), j.read, from, to}
	if len(j.runs) > 0 {
		key.newest = &j.runs[0]
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	text, found := d.texts[key]
	if found {
		return text
	}
	text = h.execute("lane", newLane(j, from, to))
	if d.texts == nil || len(d.texts) > 2*maxLanes*len(spans) {
		d.texts = map[laneKey]string{}
	}
	d.texts[key] = text
	return text
}

// drawn is from when to when a run is drawn: its latest attempt, or the ticks that were skipped.
func drawn(r ledger.Run, to time.Time) (begin, end time.Time) {
	switch begin = r.StartedAt; {
	case begin.IsZero():
		begin = r.ScheduledAt
		end = latest(begin, r.Until)
	case r.FinishedAt.IsZero():
		end = to
	default:
		end = latest(begin, r.FinishedAt)
	}
	return begin, end
}

// runBars draws runs, whatever their order. Those that are narrow share a bar with those whose
// begin lies in the same cell of a grid: one more run changes one bar, and none beside it.
func runBars(job string, runs []ledger.Run, from, to time.Time) (list []runBar) {
	type place struct {
		run    ledger.Run
		x0, x1 float64
		cell   int
	}
	places := make([]place, len(runs))
	for i, r := range runs {
		begin, end := drawn(r, to)
		p := place{run: r, x0: percent(begin, from, to), x1: percent(end, from, to), cell: -1}
		if p.x1-p.x0 < narrow {
			p.cell = int(p.x0 / narrow)
		}
		places[i] = p
	}
	slices.SortStableFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.x0, b.x0), a.run.ScheduledAt.Compare(b.run.ScheduledAt))
	})
	cells := map[int]int{} // which bar has the cell
	var groups [][]ledger.Run
	for _, p := range places {
		i, found := cells[p.cell]
		if !found || p.cell < 0 {
			i = len(list)
			list, groups = append(list, runBar{X: p.x0}), append(groups, nil)
			if p.cell >= 0 {
				cells[p.cell] = i
			}
		}
		list[i].Width = max(list[i].Width, p.x1-list[i].X, narrow/2)
		groups[i] = append(groups[i], p.run)
	}
	signed := -100.0
	for i := range list {
		b, group := &list[i], groups[i]
		worst := slices.MaxFunc(group, func(a, b ledger.Run) int {
			return badness(a.Status) - badness(b.Status)
		}).Status
		b.Class = squareClass(worst)
		if sign := signs[worst]; sign != "" && b.Middle()-signed >= 2*narrow {
			b.Sign, signed = sign, b.Middle()
		}
		b.Title, b.Link = titleOf(group), runsLink(job, group)
	}
	return list
}

// signs stand above a bar. What is done needs none.
var signs = map[ledger.Status]string{ledger.Failed: "×", ledger.Abandoned: "!",
	ledger.Skipped: "–", ledger.InProgress: "›"}

// badness says which state a bar of several runs shows.
func badness(s ledger.Status) int {
	return slices.Index([]ledger.Status{ledger.Done, ledger.InProgress, ledger.Skipped,
		ledger.Abandoned, ledger.Failed}, s)
}

// titleOf has no errors: there can be a thousand bars. They are where the bar leads.
func titleOf(group []ledger.Run) string {
	if len(group) == 1 {
		r := group[0]
		r.Error = ""
		return describeRun(r)
	}
	counts := map[ledger.Status]int{}
	for _, r := range group {
		counts[r.Status]++
	}
	const layout = "15:04:05"
	first, last := ticksOf(group)
	return fmt.Sprintf("%s – %s: %s", first.UTC().Format("2 Jan "+layout),
		last.UTC().Format(layout), summary(counts, len(group)))
}

func ticksOf(group []ledger.Run) (first, last time.Time) {
	byTick := func(a, b ledger.Run) int { return a.ScheduledAt.Compare(b.ScheduledAt) }
	return slices.MinFunc(group, byTick).ScheduledAt, slices.MaxFunc(group, byTick).ScheduledAt
}

// runsLink leads to the runs of a bar: to one of them, with its attempts if there are several, else
// with what came before; or to all of several.
func runsLink(job string, group []ledger.Run) string {
	first, last := ticksOf(group)
	q := runsQuery{job: job, until: last}
	if len(group) > 1 || group[0].Attempt > 1 {
		q.since = first
	}
	return q.link()
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
