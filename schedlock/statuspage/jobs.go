package statuspage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// overdueAfter is how late a tick may be decided before the page says so.
const overdueAfter = 2 * time.Second

// jobView is a job as the page shows it.
type jobView struct {
	job
	Overdue bool
	Again   bool      // its newest run failed, but may still succeed: it is tried again
	Asked   int       // runs that were asked for and have not started
	Order   *progress // the newest of those that were asked for; nil: none lately
	Strip   []square
	Summary string // the strip in a sentence
}

// square is a run in the strip of its job.
type square struct {
	Class string // page and style sheet have a sign for each, besides the colour
	Title string
}

// newJobViews has those first that need to be looked at.
func newJobViews(s *snapshot) (views []jobView) {
	for _, j := range s.jobs {
		v := jobView{job: j, Asked: s.requests[j.Name], Overdue: j.overdue(s.now)}
		v.Again, v.Order = j.mayStillSucceed(), runProgress(s, j)
		counts := map[ledger.Status]int{}
		newest := j.runs[:min(len(j.runs), s.strip())]
		for _, run := range slices.Backward(newest) { // the newest comes last, at the right
			counts[run.Status]++
			v.Strip = append(v.Strip, square{Class: squareClass(run.Status),
				Title: describeRun(run)})
		}
		v.Summary = "no runs yet"
		if len(newest) > 0 {
			v.Summary = "latest " + summary(counts, len(newest))
		}
		views = append(views, v)
	}
	slices.SortStableFunc(views, func(a, b jobView) int {
		return a.trouble(s.now) - b.trouble(s.now)
	})
	return views
}

// trouble orders jobs: those that fail first, then those that are late or paused.
func (j job) trouble(now time.Time) int {
	switch {
	case j.Streak > 0 && !j.mayStillSucceed():
		return 0
	case j.overdue(now):
		return 1
	case j.Pause != nil:
		return 2
	}
	return 3
}

// overdue reports whether a tick is late. While a run is under way the next one may have to wait
// for it, and nobody is late with a job that was removed: its row stays.
func (j job) overdue(now time.Time) bool {
	underWay := func(r ledger.Run) bool { return r.Status == ledger.InProgress }
	return j.Known && j.Pause == nil && !j.Next.IsZero() && now.Sub(j.Next) > overdueAfter &&
		!slices.ContainsFunc(j.runs, underWay)
}

// mayStillSucceed reports whether all failures in a row are of a run that is owed
// another attempt, or is on it, and are few: no news for an operator yet.
func (j job) mayStillSucceed() bool {
	const few = 3
	for _, r := range j.runs {
		if !r.Final() && r.Attempt > 0 {
			failed := int64(r.Attempt)
			if r.Status == ledger.InProgress {
				failed--
			}
			return failed > 0 && j.Streak <= failed && j.Streak < few
		}
	}
	return false
}

func squareClass(s ledger.Status) string {
	switch s {
	case ledger.Done:
		return "d"
	case ledger.Failed:
		return "f"
	case ledger.Abandoned:
		return "a"
	case ledger.Skipped:
		return "s"
	}
	return "p"
}

func statusWords(s ledger.Status) string { return strings.ReplaceAll(string(s), "_", " ") }

// summary says how runs have ended.
func summary(counts map[ledger.Status]int, all int) string {
	var parts []string
	for _, s := range allStatuses {
		if n := counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, statusWords(s)))
		}
	}
	return count(all, "run") + ": " + strings.Join(parts, ", ")
}

// describeRun is the tooltip of a run.
func describeRun(r ledger.Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", dayAndTime(r.ScheduledAt), statusWords(r.Status))
	if r.Count > 1 {
		fmt.Fprintf(&b, ", %d ticks until %s", r.Count, dayAndTime(r.Until))
	}
	if r.Attempt > 1 {
		fmt.Fprintf(&b, ", attempt %d", r.Attempt)
	}
	if !r.StartedAt.IsZero() && !r.FinishedAt.IsZero() {
		fmt.Fprintf(&b, ", %s", took(r.FinishedAt.Sub(r.StartedAt)))
	}
	if r.RequestedBy != "" {
		fmt.Fprintf(&b, "\nasked for by %s", cut(r.RequestedBy, 60))
		if r.RequestReason != "" {
			fmt.Fprintf(&b, ": %s", cut(r.RequestReason, 120))
		}
	}
	if r.Error != "" {
		fmt.Fprintf(&b, "\n%s", cut(r.Error, 120))
	}
	if !r.RetryAt.IsZero() {
		fmt.Fprintf(&b, "\nagain at %s", dayAndTime(r.RetryAt))
	}
	return b.String()
}
