package faults

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What a process writes down of tasks, in the log of its named locks. Job is
// the id of the task, Attempt the number of the capture.
const (
	KindAdding Kind = "adding" // is about to add it; Attempt is how many retries it has
	KindAdded  Kind = "added"  // has
	// Tick is the time before the call; Term is 1 if it was certainly held at At
	KindCaptured Kind = "captured"
	KindWorks    Kind = "works" // a time at which it was certainly held
	// is about to end it (Term is 1 if its time-out has certainly passed) as done,
	KindDoing     Kind = "doing"
	KindFailing   Kind = "failing"   // as failed,
	KindReleasing Kind = "releasing" // or as not worked on
	KindEnded     Kind = "ended"     // has
	KindGone      Kind = "gone"      // was told that it has lost the task
	KindUnsure    Kind = "unsure"    // another error was the answer: it may have been ended, or not
)

// The rules of queues.
const (
	RuleOneWorker = "one worker" // no two hold a task at once, and no capture is given twice
	// nobody ends a task when its time-out has passed, or another has captured it
	RuleTaskEnds = "ends of tasks"
	RuleDoneOnce = "done once" // a task is done once at most, and not captured after that
	// it is attempted 1 + retries times at most, and not given up before
	RuleRetries = "retries"
	// the table has every task that was added, and says of it what was done
	RuleNoTaskLost = "no task lost"
)

// A Work is one capture of a task, as its process wrote it down.
type Work struct {
	Process string
	Task    string
	Attempt int
	Sent    time.Duration // before it was captured
	Span                  // for which it was certainly held, as that of a Hold; zero: for no time
	End     Kind          // how it was to be ended; "": it was not
	Asked   time.Duration // when that was to be
	Late    bool          // the time-out had certainly passed
	Ended   time.Duration // when the answer was that it is; 0: never
}

// String names the capture as a message does.
func (w Work) String() string {
	return fmt.Sprintf("capture %d of task %s by %s (sent %v, held from %v to %v, %s, ended %v)",
		w.Attempt, w.Task, w.Process, w.Sent, w.From, w.To, cmp.Or(w.End, "not ended"), w.Ended)
}

// An Added is a task, as the process that added it wrote it down.
type Added struct {
	Task    string
	Retries int
	Asked   time.Duration // before it was added
	Granted time.Duration // 0: with an error, or never
}

// A TaskRow is one row of queue_tasks.
type TaskRow struct {
	Task        string
	State       string
	Attempts    int
	RetriesLeft int
}

// worksOf makes captures of the records of one process.
func worksOf(process string, records []Record) []Work {
	type key struct {
		task    string
		attempt int
	}
	var works []Work
	open := map[key]int{}
	for _, r := range records {
		k := key{r.Job, r.Attempt}
		i, known := open[k]
		switch {
		case r.Kind == KindCaptured:
			open[k] = len(works)
			w := Work{Process: process, Task: r.Job, Attempt: r.Attempt,
				Sent: time.Duration(r.Tick)}
			if r.Term == 1 {
				w.Span = Span{r.At, w.Sent}
			}
			works = append(works, w)
		case !known:
		case r.Kind == KindWorks && works[i].From > 0:
			works[i].To = max(r.At, works[i].To)
		case r.Kind == KindDoing || r.Kind == KindFailing || r.Kind == KindReleasing:
			works[i].End, works[i].Asked, works[i].Late = r.Kind, r.At, r.Term == 1
		case r.Kind == KindEnded:
			works[i].Ended = r.At
		}
	}
	return works
}

// addedOf returns the tasks that one process added.
func addedOf(records []Record) []Added {
	var added []Added
	open := map[string]int{}
	for _, r := range records {
		switch i, known := open[r.Job]; {
		case r.Kind == KindAdding:
			open[r.Job] = len(added)
			added = append(added, Added{Task: r.Job, Retries: r.Attempt, Asked: r.At})
		case known && r.Kind == KindAdded:
			added[i].Granted = r.At
		}
	}
	return added
}

// worksByTask returns the captures of each task, in the order in which they
// were sent.
func (h *History) worksByTask() map[string][]Work {
	by := map[string][]Work{}
	for _, w := range sortedBy(h.Works, func(w Work) time.Duration { return w.Sent }) {
		by[w.Task] = append(by[w.Task], w)
	}
	return by
}

func oneWorker(h *History) (vs []Violation) {
	for _, works := range h.worksByTask() {
		for i, b := range works {
			for _, a := range works[:i] {
				// From is 0 if it was never certain to have it.
				if h.unproven(min(a.Sent, b.Sent), max(a.From, b.From, b.Sent)) {
					continue
				}
				if a.Attempt == b.Attempt || a.overlaps(b.Span) {
					vs = append(vs, violation(RuleOneWorker, b.Sent, "%v; %v", a, b))
				}
			}
		}
	}
	return vs
}

// taskEnds: a later capture proves that the one before was over.
func taskEnds(h *History) (vs []Violation) {
	for _, works := range h.worksByTask() {
		for _, a := range works {
			if a.Late && a.Ended > 0 && !h.unproven(a.Sent, a.Ended) {
				vs = append(vs, violation(RuleTaskEnds, a.Ended, "after its time-out: %v", a))
			}
			for _, b := range works {
				if a.Ended > 0 && b.Attempt > a.Attempt && b.From > 0 && b.From < a.Asked &&
					!h.unproven(min(a.Sent, b.Sent), a.Ended) {
					vs = append(vs, violation(RuleTaskEnds, a.Ended, "%v, although %v", a, b))
				}
			}
		}
	}
	return vs
}

func doneOnce(h *History) (vs []Violation) {
	for _, works := range h.worksByTask() {
		for _, a := range works {
			if a.End != KindDoing || a.Ended == 0 {
				continue
			}
			for _, b := range works {
				if b.Sent > a.Ended && !h.forgotBetween(a.Sent, b.Sent) {
					vs = append(vs, violation(RuleDoneOnce, b.Sent, "it was done: %v; %v", a, b))
				} else if b.End == KindDoing && b.Ended > a.Ended &&
					!h.forgotBetween(a.Sent, b.Ended) {
					vs = append(vs, violation(RuleDoneOnce, b.Ended, "done twice: %v; %v", a, b))
				}
			}
		}
	}
	return vs
}

// retriesKept: what is released costs nothing. Whether it was, only the database
// knows if no answer came.
func retriesKept(h *History) (vs []Violation) {
	retries, rows := map[string]int{}, map[string]TaskRow{}
	for _, a := range h.Added {
		retries[a.Task] = a.Retries
	}
	for _, row := range h.Tasks {
		rows[row.Task] = row
	}
	works := h.worksByTask()
	for task, retries := range retries {
		free, costly := 0, 0
		for _, w := range works[task] {
			if w.End == KindReleasing {
				free++
			} else {
				costly++
			}
		}
		n := len(works[task])
		if costly > 1+retries && !h.forgotBetween(works[task][0].Sent, works[task][n-1].Sent) {
			vs = append(vs, violation(RuleRetries, works[task][n-1].Sent,
				"task %s has %d retries: %v", task, retries, works[task]))
		}
		row, there := rows[task]
		switch {
		case !there:
		case row.Attempts > 1+retries+free:
			vs = append(vs, violation(RuleRetries, 0,
				"task %s has %d retries and was released %d times at most: %+v", task, retries,
				free, row))
		case row.State == "failed" && (row.Attempts < 1+retries || row.RetriesLeft > 0):
			vs = append(vs, violation(RuleRetries, 0,
				"task %s has %d retries, and was given up before: %+v", task, retries, row))
		}
	}
	return vs
}

func noTaskLost(h *History) (vs []Violation) {
	if h.Tasks == nil {
		return nil
	}
	since := h.forgotAt()
	rows, works, known := map[string]TaskRow{}, h.worksByTask(), map[string]bool{}
	for _, row := range h.Tasks {
		rows[row.Task] = row
	}
	for _, a := range h.Added {
		known[a.Task] = true
		if _, there := rows[a.Task]; !there && a.Granted > 0 && a.Asked > since {
			vs = append(vs, violation(RuleNoTaskLost, a.Asked, "not in queue_tasks: %+v", a))
		}
	}
	for _, w := range h.Works {
		if w.End == KindDoing && w.Ended > 0 && w.Sent > since && rows[w.Task].State != "done" {
			vs = append(vs, violation(RuleNoTaskLost, w.Ended,
				"it was done: %v; %+v", w, rows[w.Task]))
		}
	}
	for _, row := range h.Tasks {
		done := slices.ContainsFunc(works[row.Task], func(w Work) bool {
			return w.End == KindDoing
		})
		switch {
		case !known[row.Task]:
			vs = append(vs, violation(RuleNoTaskLost, 0, "nobody has added %+v", row))
		case row.State == "done" && !done:
			vs = append(vs, violation(RuleNoTaskLost, 0, "nobody has done %+v", row))
		case !slices.Contains([]string{"pending", "in_progress", "done", "failed"}, row.State):
			vs = append(vs, violation(RuleNoTaskLost, 0, "no state: %+v", row))
		}
	}
	return vs
}
