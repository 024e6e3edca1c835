// Package ledger has the words of the run ledger: which job ran for which
// scheduled time (tick), under which term, and how it ended. It is what
// package tasks asks of a database; schedlock/sqlite answers.
package ledger

import (
	"context"
	"time"

	"example.com/schedlock/schedlock"
)

// Status is the state of a run.
type Status string

// The states of a run.
const (
	InProgress Status = "in_progress"
	Done       Status = "done"
	Failed     Status = "failed"
	Abandoned  Status = "abandoned" // its leader died, or lost the lock, before it ended
	Skipped    Status = "skipped"   // never started; Error says why
)

// Reasons for which ticks are skipped.
const (
	Missed  = "missed"  // nobody led when it was due
	Overlap = "overlap" // the run before it had not ended
	Paused  = "paused"
)

// Run is one row of scheduler_runs: an execution of a job for one tick, or a
// range of ticks that were skipped.
type Run struct {
	ID          int64
	Job         string
	ScheduledAt time.Time
	StartedAt   time.Time // zero: it was skipped
	FinishedAt  time.Time // zero: it has not ended
	Status      Status
	Term        int64
	PID         int
	Hostname    string
	Attempt     int
	Error       string
	Until       time.Time // of a skipped range its last tick, else zero
	Count       int64     // of a skipped range the number of ticks, else 0
}

// Job is one row of scheduler_jobs. Cursor is the newest tick that was
// decided, run or skipped.
type Job struct {
	Name   string
	Spec   string
	Cursor time.Time
}

// Skip is a range of ticks that are not run.
type Skip struct {
	First, Last time.Time
	Count       int64
	Reason      string
}

// Decision is what a leader decided about the ticks of one job: the cursor
// moves from From to To, and what it passes is started or skipped.
type Decision struct {
	Job     string
	Spec    string
	From    time.Time // the cursor as it was read; zero: the job has no row yet
	To      time.Time // not before From
	Start   time.Time // the tick to run; zero: none
	Skipped []Skip
}

// Store keeps the ledger, in the database that has the lock row. All methods
// are safe for concurrent use and honour the end of their context.
type Store interface {
	// Jobs returns all jobs that have a row.
	Jobs(ctx context.Context) ([]Job, error)

	// Decide writes a decision in one durable transaction, which the lock row
	// guards: it returns an error that wraps schedlock.ErrLost, and writes
	// nothing, unless ref holds the lock, and schedlock.ErrMoved unless the
	// cursor stands at From. started is false if the tick to run is in the
	// ledger already; the cursor moves all the same.
	Decide(ctx context.Context, ref schedlock.Ref, d Decision) (run Run, started bool, err error)

	// Finish writes the end of a run: status Done or Failed, with the error's
	// text. It changes only a row that is still in progress for that term and
	// attempt; written tells whether there was one.
	Finish(ctx context.Context, run Run, status Status, errText string) (written bool, err error)

	// Abandon marks the runs that other terms left in progress, guarded by the
	// lock row as Decide is, and returns them.
	Abandon(ctx context.Context, ref schedlock.Ref) ([]Run, error)

	// Runs returns the newest runs, newest scheduled time first, at most
	// limit; of one job, or of all if job is "".
	Runs(ctx context.Context, job string, limit int) ([]Run, error)
}
