package statuspage

import (
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// day is how far back the page counts failures.
const day = 24 * time.Hour

// tiles are the numbers beside who leads.
type tiles struct {
	Failed  int  // runs of the last day that failed or were abandoned, of those that were read
	AtLeast bool // older runs of that day were not read
	Last    *ledger.Run
	Next    *nextRun // nil: none is due
	Paused  bool     // the whole scheduler is
}

// nextRun is what starts next.
type nextRun struct {
	Job   string
	At    time.Time
	Again bool // it is another attempt
}

func newTiles(s *snapshot) tiles {
	t := tiles{Paused: s.pause != nil, AtLeast: s.more > 0}
	from := s.now.Add(-day)
	for i := range s.jobs {
		j := &s.jobs[i]
		for r := range j.runs {
			run := &j.runs[r]
			if run.ScheduledAt.Before(from) {
				break
			}
			if run.Status == ledger.Failed || run.Status == ledger.Abandoned {
				t.Failed++
				if t.Last == nil || run.FinishedAt.After(t.Last.FinishedAt) {
					t.Last = run
				}
			}
			if r+1 == j.read {
				t.AtLeast = true
			}
		}
		t.soonest(j)
	}
	return t
}

func (t *tiles) soonest(j *job) {
	if j.Pause != nil {
		return
	}
	next := func(at time.Time, again bool) {
		if !at.IsZero() && (t.Next == nil || at.Before(t.Next.At)) {
			t.Next = &nextRun{j.Name, at, again}
		}
	}
	next(j.Next, false)
	for _, run := range j.runs {
		next(run.RetryAt, true)
	}
}

// strip is how many runs of each job are shown as squares.
func (s *snapshot) strip() int { return min(maxStrip, maxRuns/max(len(s.jobs), 1)) }
