// Package ledger has the words of the run ledger: which job ran for which
// scheduled time (tick), under which term, and how it ended; what is owed
// another attempt; and what people have asked of the leader. It is what
// package tasks asks of a database; schedlock/sqlite, schedlock/postgres and
// schedlock/memory answer.
package ledger

import (
	"context"
	"iter"
	"time"

	"example.com/schedlock/schedlock/driver"
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

// Reasons for which ticks, and requests, are skipped.
const (
	Missed     = "missed"      // nobody led when it was due, or the leader came too late
	Overlap    = "overlap"     // the run before it had not ended
	Paused     = "paused"      // the job, or the whole scheduler, was paused
	UnknownJob = "unknown job" // of a request: the leader's code does not have the job
)

// Run is one row of scheduler_runs: a job for one tick, from the first attempt
// to the last, or a range of ticks that were skipped.
type Run struct {
	ID          int64
	Job         string
	ScheduledAt time.Time // the tick; of a run that was asked for, when that was
	StartedAt   time.Time // of the latest attempt; zero: it was skipped
	FinishedAt  time.Time // of the latest attempt; zero: it has not ended
	Status      Status
	Term        int64
	PID         int
	Hostname    string
	Attempt     int // 1, 2, …; 0: it was skipped
	// of a failed or abandoned attempt (while the next one runs too), or the reason of a skip
	Error   string
	RetryAt time.Time // when the next attempt is due; zero: none is
	Until   time.Time // of a skipped range its last tick, else zero
	Count   int64     // of a skipped range the number of ticks, else 0

	RequestedBy   string // who asked for it; "": it was due by its schedule
	RequestReason string
}

// Final reports whether the run has ended for good: no attempt is under way,
// and none is due.
func (r Run) Final() bool { return r.Status != InProgress && r.RetryAt.IsZero() }

// Job is one row of scheduler_jobs. Cursor is the newest tick that was
// decided, run or skipped; zero if a hand has written what is no time.
type Job struct {
	Name   string
	Spec   string
	Cursor time.Time

	// RawCursor is how the cursor stands in the table, if that is not as the
	// ledger writes it: a hand has edited it. "" as a rule.
	RawCursor string
	Stats
}

// Stats is how the attempts of a job have ended since its row was made. It
// does not shrink when old runs are pruned.
type Stats struct {
	Done       int64     // attempts that succeeded
	Failed     int64     // attempts that failed or were abandoned
	Streak     int64     // of these, since the last success
	LastDone   time.Time // when the last success ended; zero: none yet
	LastFailed time.Time // when the last failure was recorded; zero: none yet
	// of that failure, at most its first 1,000 characters; "" if it was abandoned
	LastError string
	Total     time.Duration // that the successful attempts took, in whole microseconds
	Longest   time.Duration // of them
}

// Average is how long a successful attempt took; 0 if there was none.
func (s Stats) Average() time.Duration {
	if s.Done == 0 {
		return 0
	}
	return s.Total / time.Duration(s.Done)
}

// Skip is a range of ticks that are not run.
type Skip struct {
	First, Last time.Time
	Count       int64
	Reason      string
}

// maxPlaces is how many places a range may take. A later one is needed only if a
// cursor has been put back to the same tick as often before.
const maxPlaces = 100

// Places returns how the range may be recorded, the best one first: a store takes
// the first of which the tick has no row yet. After a cursor was put back the
// range may begin with a tick that is decided already. That one stays, and the
// others are recorded from the first microsecond on that is free.
func (k Skip) Places() iter.Seq[Skip] {
	return func(yield func(Skip) bool) {
		if !yield(k) || k.Count < 2 {
			return
		}
		if k.Count == 2 {
			yield(Skip{First: k.Last, Last: k.Last, Count: 1, Reason: k.Reason})
			return
		}
		k.Count--
		for range maxPlaces - 1 {
			if k.First = k.First.Add(time.Microsecond); !yield(k) {
				return
			}
		}
	}
}

// Decision is what a leader decided about the ticks of one job: the cursor
// moves from From to To, and what it passes is started or skipped.
type Decision struct {
	Job     string
	Spec    string
	From    time.Time // the cursor as it was read; zero: the job has no row yet, or see RawFrom
	RawFrom string    // the RawCursor as it was read: if it is not "", it is what is compared
	To      time.Time // not before From, unless it goes back
	Back    bool      // the cursor may go back: it stood too far ahead
	Start   time.Time // the tick to run; zero: none
	Skipped []Skip
}

// End is how an attempt ended.
type End struct {
	Status  Status // Done or Failed
	Error   string // of a failed one
	RetryAt time.Time
	Took    time.Duration // by the leader's monotonic clock
}

// Store keeps the ledger, in the database that has the lock row. All methods
// are safe for concurrent use and honour the end of their context.
//
// A method that takes a Ref is guarded by the lock row: in the transaction in
// which it writes it checks that ref holds the lock, else it returns an error
// that wraps schedlock.ErrLost and writes nothing. A method that starts an
// attempt (Decide, Retry, Answer) returns an error that wraps [ErrPaused], and
// writes nothing, while the job or the whole scheduler is paused: once Pause
// has returned, nothing starts.
type Store interface {
	// Jobs returns all jobs that have a row. A cursor that cannot be read is the
	// zero time, with its RawCursor, and hides no other job.
	Jobs(ctx context.Context) ([]Job, error)

	// Decide writes a decision in one durable transaction. Unless the cursor
	// stands as it was read (at From, or as RawFrom), and does not go back, it
	// returns an error that wraps driver.ErrConflict, and writes nothing. started
	// is false if the tick to run is in the ledger already; the cursor moves all
	// the same. A range of skipped ticks takes the first of its Places that is
	// free. A decision that starts nothing may be written during a pause.
	Decide(ctx context.Context, ref driver.Ref, d Decision) (run Run, started bool, err error)

	// Retry starts the next attempt of a run: of the row with its ID if that
	// is failed or abandoned, has its Attempt, and is owed another one. started
	// is false, and nothing is written, if it is not. The row gets the holder's
	// term, pid and hostname, and the database's time as StartedAt; its Error
	// stays. What the row says of the attempt before goes to Attempts, in the same
	// transaction.
	Retry(ctx context.Context, ref driver.Ref, run Run) (next Run, started bool, err error)

	// GiveUp ends a run that is owed an attempt, without one: that with its ID,
	// if it has its Attempt; changed is false if it is owed none any more.
	GiveUp(ctx context.Context, ref driver.Ref, run Run) (changed bool, err error)

	// Finish writes the end of an attempt, and counts it in the Stats of the
	// job. It changes only a row that is still in progress for that ID, Term
	// and Attempt; written tells whether there was one. The error's text is
	// kept as [Cut] makes it. It needs no lock.
	Finish(ctx context.Context, run Run, end End) (written bool, err error)

	// Abandon marks the attempts that other terms left in progress, counts them
	// in the Stats of their jobs, and returns them. retryAt says when the next
	// attempt of each is due (zero: never); it must be quick and may be called
	// more than once. nil: never.
	Abandon(ctx context.Context, ref driver.Ref, retryAt func(Run) time.Time) ([]Run, error)

	// Retries returns the runs that are owed another attempt, in the order in
	// which that is due.
	Retries(ctx context.Context) ([]Run, error)

	// Run returns the row of a job's tick, with its exact scheduled time;
	// found is false if there is none. A tick inside a skipped range has none.
	Run(ctx context.Context, job string, tick time.Time) (run Run, found bool, err error)

	// Attempts returns the attempts of the run with that ID that later ones have
	// replaced, newest first: the newest [KeepAttempts]. See the function
	// [Attempts], which adds the latest. There are none of a run that was pruned.
	Attempts(ctx context.Context, runID int64) ([]Attempt, error)

	// Runs returns the newest runs, newest scheduled time first, at most
	// limit; of one job, or of all if job is "".
	Runs(ctx context.Context, job string, limit int) ([]Run, error)

	// Trigger records a request to run a job, for whoever leads. Its time is
	// the database's, moved on by a microsecond as long as the job has a run or
	// a request for it. The error wraps [ErrNoJob] if the job has no row, is a
	// [*PausedError] if it may not run, and a [*BacklogError] if it has
	// [MaxPending] requests already.
	Trigger(ctx context.Context, o Action) (Request, error)

	// Answer removes a request, and starts its run, or records it as skipped
	// (started is false then) if skip says why. The run's ScheduledAt is the
	// request's time; it keeps who asked, and why. started is false too if the
	// request is there no more, and nothing is written; and if the job has a run
	// with exactly that time by now, which then is the outcome.
	Answer(ctx context.Context, ref driver.Ref, r Request, skip string) (run Run, started bool,
		err error)

	// Pause keeps a job from starting, or every job if the action's Job is "".
	// Of a job that is paused already it returns the pause in force, with its
	// first author. The error wraps [ErrNoJob] if the job has no row.
	Pause(ctx context.Context, o Action) (Pause, error)

	// Resume ends the pause of a job, or that of the whole scheduler if job is
	// "": neither ends the other. resumed is false if there was none. by is
	// checked as that of an Action.
	Resume(ctx context.Context, job, by string) (resumed bool, err error)

	// Pending returns what people have asked of the leader: the requests of the
	// jobs that are not paused, oldest first, at most [PendingLimit] of each; how
	// many each job has; and the latest pause of each job and of the whole
	// scheduler.
	Pending(ctx context.Context) (Pending, error)

	// ResetCursor sets the cursor of a job to the database's time, wherever it
	// stood, and needs no lock: it is an operator's cure. It returns the job
	// with its new cursor, without Stats. The error wraps [ErrNoJob] if the job has no row.
	ResetCursor(ctx context.Context, o Action) (Job, error)

	// Present writes what a replica tells of itself, in the place of what its
	// instance has told before, with the database's time. With forget it deletes
	// the rows of those that were silent for longer than [ReplicaGone]. It need not
	// be durable, and waits for nothing that the lock needs.
	Present(ctx context.Context, r Replica, forget bool) error

	// Absent deletes the row of an instance, if there is one.
	Absent(ctx context.Context, instance string) error

	// Replicas returns what replicas have told, by host name, pid and instance.
	Replicas(ctx context.Context) ([]Replica, error)

	// Audit returns the newest orders, newest first, at most limit; those for one
	// job, or all if job is "". Trigger, Pause, Resume, ResetCursor and
	// driver.Store.Revoke write them: see [AuditEntry].
	Audit(ctx context.Context, job string, limit int) ([]AuditEntry, error)

	// Prune deletes the oldest rows of a job, with their Attempts, at most limit, and none of the
	// newest keep. Rows that are in progress, or owed an attempt, stay. The
	// newest row of the ledger may stay, too: no id is ever used again.
	Prune(ctx context.Context, job string, keep, limit int) (deleted int64, err error)
}
