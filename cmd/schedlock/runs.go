package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/message"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

const runsHelp = `What --since compares is the tick; of a skipped range it is the first. With
--attempts each attempt of a run is there, the newest 101, each with its error.

Examples:
  schedlock runs --job import -n 3
  schedlock runs --status failed,abandoned --since 12h
  schedlock runs --job import -n 1 --attempts
`

type runJSON struct {
	Job           string        `json:"job"`
	ScheduledAt   timestamp     `json:"scheduled_at"`
	attemptJSON                 // the latest
	RetryAt       timestamp     `json:"retry_at"`
	Until         timestamp     `json:"until"` // of a skipped range its last tick
	Count         int64         `json:"count"` // of a skipped range its ticks
	RequestedBy   string        `json:"requested_by"`
	RequestReason string        `json:"request_reason"`
	Attempts      []attemptJSON `json:"attempts"` // newest first; null: not asked for
}

type attemptJSON struct {
	Attempt     int           `json:"attempt"`
	StartedAt   timestamp     `json:"started_at"`
	FinishedAt  timestamp     `json:"finished_at"`
	Status      ledger.Status `json:"status"` // in_progress, done, failed, abandoned, skipped
	TookSeconds *float64      `json:"took_seconds"`
	Term        int64         `json:"term"`
	PID         int           `json:"pid"`
	Hostname    string        `json:"hostname"`
	Error       string        `json:"error"`
}

func newAttemptJSON(a ledger.Attempt) attemptJSON {
	return attemptJSON{a.Number, timestamp(a.StartedAt), timestamp(a.FinishedAt), a.Status,
		seconds(took(a.StartedAt, a.FinishedAt)), a.Term, a.PID, a.Hostname, a.Error}
}

func newRunJSON(r ledger.Run) runJSON {
	latest, _ := r.Latest()
	latest.Error = r.Error // also of an attempt before, and why it was skipped
	return runJSON{Job: r.Job, ScheduledAt: timestamp(r.ScheduledAt),
		attemptJSON: newAttemptJSON(latest), RetryAt: timestamp(r.RetryAt),
		Until: timestamp(r.Until), Count: r.Count, RequestedBy: r.RequestedBy,
		RequestReason: r.RequestReason}
}

// took is how long an attempt took; known is false while it runs, and if it never
// started.
func took(started, finished time.Time) (d time.Duration, known bool) {
	if started.IsZero() || finished.IsZero() {
		return 0, false
	}
	return finished.Sub(started), true
}

// length is how long an attempt took, in words; "": it is not known.
func length(started, finished time.Time) string {
	if d, known := took(started, finished); known {
		return span(d)
	}
	return ""
}

func runs(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	n := limitFlag(flags, "how many, newest first; all with --since")
	job := flags.String("job", "", "of the job `NAME` only")
	var status string
	choice(flags, &status, "status", "", "only these, separated by commas", allStatuses...)
	since := flags.String("since", "", sinceUsage)
	each := flags.Bool("attempts", false, "each attempt of a run")
	return func(ctx context.Context) (int, error) {
		if *since != "" && !flags.Changed("limit") {
			*n = math.MaxInt
		}
		wanted, err := statuses(status)
		if err != nil {
			return 0, err
		}
		after, err := t.since(*since)
		if err != nil {
			return 0, err
		}
		none := "there are no runs"
		if *job != "" || status != "" || *since != "" {
			none += " that match"
		}
		attempts := map[int64][]ledger.Attempt{} // by the ids of the runs
		return list(ctx, t, func(ctx context.Context, s store) ([]ledger.Run, error) {
			from, err := after(ctx, s)
			if err != nil {
				return nil, err
			}
			found, err := search(ctx, s, *job, *n, from, wanted)
			if err == nil && len(found) == 0 && *job != "" {
				err = t.knownJob(ctx, s, *job)
			}
			for i := 0; *each && err == nil && i < len(found); i++ {
				attempts[found[i].ID], err = ledger.Attempts(ctx, s, found[i])
			}
			return found, err
		}, func(r ledger.Run) runJSON {
			line := newRunJSON(r)
			if *each {
				line.Attempts = convert(attempts[r.ID], newAttemptJSON)
			}
			return line
		}, none, func(found []ledger.Run) {
			if *each {
				t.showAttempts(found, attempts)
			} else {
				t.showRuns(found)
			}
		})
	}
}

// firstSearch is how many runs a search reads first.
const firstSearch = 100

// search returns the newest n runs whose tick is not before from, with one of the
// statuses; nil: with any. What does not match is read too, so it reads four times as many
// until it has found n, or has seen all there are: the ledger is pruned.
func search(ctx context.Context, s store, job string, n int, from time.Time,
	wanted []ledger.Status) ([]ledger.Run, error) {
	limit := n
	if wanted != nil || !from.IsZero() {
		limit = firstSearch
	}
	for {
		all, err := s.Runs(ctx, job, limit)
		if err != nil {
			return nil, err
		}
		over := len(all) < limit || all[len(all)-1].ScheduledAt.Before(from)
		list := slices.DeleteFunc(all, func(r ledger.Run) bool {
			return r.ScheduledAt.Before(from) ||
				wanted != nil && !slices.Contains(wanted, r.Status)
		})
		if over || len(list) >= n {
			return list[:min(n, len(list))], nil
		}
		limit *= 4
	}
}

var allStatuses = []string{string(ledger.InProgress), string(ledger.Done), string(ledger.Failed),
	string(ledger.Abandoned), string(ledger.Skipped)}

// statuses are those of --status; nil: any.
func statuses(list string) (wanted []ledger.Status, err error) {
	if list == "" {
		return nil, nil
	}
	for _, name := range strings.Split(list, ",") {
		if !slices.Contains(allStatuses, name) {
			return nil, wrong("--status %s is none of in_progress, done, failed, abandoned and "+
				"skipped%s", message.Shown(name), didYouMean(name, "", allStatuses))
		}
		wanted = append(wanted, ledger.Status(name))
	}
	return wanted, nil
}

func (t *tool) showRuns(list []ledger.Run) {
	b := newTable(cutting("job"), fixed("tick"), fixed("status"), wideOnly("attempt"),
		wideOnly("took"), wideOnly("term"), wideOnly("asked by"), cutting("error"))
	for _, r := range list {
		status, attempt := string(r.Status), ""
		if r.Count > 1 {
			status = fmt.Sprintf("%s ×%d", r.Status, r.Count)
		}
		if r.Attempt > 0 {
			attempt = fmt.Sprint(r.Attempt)
		}
		message := r.Error
		if !r.RetryAt.IsZero() {
			message += " (next attempt " + t.at(r.RetryAt) + ")"
		}
		asked := r.RequestedBy
		if r.RequestReason != "" {
			asked += ": " + r.RequestReason
		}
		b.add(statusColour(r.Status), r.Job, t.cell(r.ScheduledAt), status, attempt,
			length(r.StartedAt, r.FinishedAt), r.Term, asked, message)
	}
	t.table(b)
}

// showAttempts writes a line for each attempt; of a skipped run there is one.
func (t *tool) showAttempts(list []ledger.Run, attempts map[int64][]ledger.Attempt) {
	b := newTable(cutting("job"), fixed("tick"), fixed("attempt"), fixed("status"),
		wideOnly("began"), wideOnly("took"), wideOnly("term"), wideOnly("host"), cutting("error"))
	for _, r := range list {
		if len(attempts[r.ID]) == 0 {
			b.add(statusColour(r.Status), r.Job, t.cell(r.ScheduledAt), "", r.Status, "", "", "",
				"", r.Error)
		}
		for _, a := range attempts[r.ID] {
			b.add(statusColour(a.Status), r.Job, t.cell(r.ScheduledAt), a.Number, a.Status,
				t.cell(a.StartedAt), length(a.StartedAt, a.FinishedAt), a.Term, a.Hostname, a.Error)
		}
	}
	t.table(b)
}

func statusColour(s ledger.Status) colour {
	switch s {
	case ledger.Failed, ledger.Abandoned:
		return red
	case ledger.Skipped:
		return yellow
	case ledger.InProgress:
		return green
	}
	return ""
}

const jobsHelp = `The next tick follows from the job's schedule and from how far its ticks were
decided; it lies in the past while nobody leads, or during a pause.

Examples:
  schedlock jobs
`

type jobJSON struct {
	Job           string     `json:"job"`
	Spec          string     `json:"spec"`
	NextTick      timestamp  `json:"next_tick"`
	LastDone      timestamp  `json:"last_done"`
	LastFailed    timestamp  `json:"last_failed"`
	LastError     string     `json:"last_error"`
	Done          int64      `json:"done"`
	Failed        int64      `json:"failed"`
	FailureStreak int64      `json:"failure_streak"`
	AverageSecs   float64    `json:"average_seconds"`
	LongestSecs   float64    `json:"longest_seconds"`
	Requests      int        `json:"requests"` // that nobody has answered
	Paused        *pauseJSON `json:"paused"`   // its own pause, or that of the whole scheduler
}

func jobs(t *tool, _ *pflag.FlagSet) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		var inbox ledger.Pending
		return list(ctx, t, func(ctx context.Context, s store) ([]ledger.Job, error) {
			found, err := s.Jobs(ctx)
			if err == nil {
				inbox, err = s.Pending(ctx)
			}
			return found, err
		}, func(j ledger.Job) jobJSON { return newJobJSON(j, inbox) }, noJobs,
			func(found []ledger.Job) { t.showJobs(found, inbox) })
	}
}

func nextTick(j ledger.Job) time.Time { return tasks.ParseSpec(j.Spec).Next(j.Cursor) }

func newJobJSON(j ledger.Job, inbox ledger.Pending) jobJSON {
	line := jobJSON{
		Job: j.Name, Spec: j.Spec, NextTick: timestamp(nextTick(j)),
		LastDone: timestamp(j.LastDone), LastFailed: timestamp(j.LastFailed),
		LastError: j.LastError, Done: j.Done, Failed: j.Failed, FailureStreak: j.Streak,
		AverageSecs: j.Average().Seconds(), LongestSecs: j.Longest.Seconds(),
	}
	line.Requests = inbox.Backlog[j.Name]
	if p := inbox.Paused(j.Name); p != nil {
		line.Paused = new(newPauseJSON(*p))
	}
	return line
}

func (t *tool) showJobs(list []ledger.Job, inbox ledger.Pending) {
	b := newTable(cutting("job"), wideOnly("spec"), fixed("next tick"), fixed("last done"),
		wideOnly("last failed"), wideOnly("failures in a row"), cutting("state"),
		wideOnly("paused"))
	for _, j := range list {
		paint, state, paused := colour(""), "", ""
		if j.Streak > 0 {
			paint, state = red, fmt.Sprintf("failed %d×", j.Streak)
		}
		if p := inbox.Paused(j.Name); p != nil {
			paint, paused = yellow, t.pauseWords(*p)
			state = strings.TrimSuffix("paused, "+state, ", ")
		}
		b.add(paint, j.Name, j.Spec, t.cell(nextTick(j)), t.cell(j.LastDone), t.cell(j.LastFailed),
			j.Streak, state, paused)
	}
	t.table(b)
	if p := inbox.Paused(""); p != nil {
		fmt.Fprintln(t.out, t.paint(yellow, plain(t.pauseWords(*p))))
	}
}
