package statuspage

import (
	"cmp"
	"slices"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// day is how far back the page counts failures.
const day = 24 * time.Hour

// tiles are the numbers beside who leads.
type tiles struct {
	Failed  int  // runs of the last day that failed or were abandoned, of those that were read
	AtLeast bool // older runs of that day were not read
	Again   bool // a run that is none of those is under way again, after an attempt without success
	Last    *ledger.Run
	Jobs    []jobFailures // most failures first
	More    bool          // jobs that failed are left out
	Next    *nextRun      // nil: none is due
	Paused  bool          // the whole scheduler is
}

// jobFailures is how many of the failures are of one job, and of one kind.
type jobFailures struct {
	Job    string
	Status ledger.Status
	Count  int
}

// standbys is how many could take over, as far as replicas tell of themselves.
type standbys struct {
	Told  bool // they do
	Ready int
}

func newStandbys(s *snapshot) standbys {
	return standbys{len(s.replicas) > 0, ledger.Ready(s.replicas)}
}

// nextRun is what starts next.
type nextRun struct {
	Job   string
	At    time.Time
	Again bool // it is another attempt
}

// or is the sooner one of it, which may be nil, and another.
func (n *nextRun) or(job string, at time.Time, again bool) *nextRun {
	if at.IsZero() || n != nil && !at.Before(n.At) {
		return n
	}
	return &nextRun{job, at, again}
}

func newTiles(s *snapshot) tiles {
	t := tiles{Paused: s.pause != nil, AtLeast: s.more > 0, Next: s.next}
	from := s.now.Add(-day)
	counts := map[jobFailures]int{} // with Count 0
	for i := range s.jobs {
		j := &s.jobs[i]
		for r := range j.runs {
			run := &j.runs[r]
			t.Again = t.Again || run.Status == ledger.InProgress && run.Attempt > 1
			if run.ScheduledAt.Before(from) {
				break
			}
			if run.Status == ledger.Failed || run.Status == ledger.Abandoned {
				t.Failed++
				counts[jobFailures{Job: j.Name, Status: run.Status}]++
				if t.Last == nil || run.FinishedAt.After(t.Last.FinishedAt) {
					t.Last = run
				}
			}
			if r+1 == j.read {
				t.AtLeast = true
			}
		}
		if j.Pause == nil {
			for _, run := range j.runs {
				t.Next = t.Next.or(j.Name, run.RetryAt, true)
			}
		}
	}
	for f, n := range counts {
		f.Count = n
		t.Jobs = append(t.Jobs, f)
	}
	slices.SortFunc(t.Jobs, func(a, b jobFailures) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Job, b.Job), cmp.Compare(a.Status, b.Status))
	})
	const most = 3
	t.More = len(t.Jobs) > most
	t.Jobs = t.Jobs[:min(len(t.Jobs), most)]
	return t
}

// strip is how many runs of each job are shown as squares.
func (s *snapshot) strip() int { return min(maxStrip, maxRuns/max(len(s.jobs), 1)) }
