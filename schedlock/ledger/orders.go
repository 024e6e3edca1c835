package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock/driver"
)

// ErrNoJob says that the database has never seen the job: no leader had it.
var ErrNoJob = errors.New("no such job")

// NoJob returns an ErrNoJob that names the job.
func NoJob(job string) error { return fmt.Errorf("%w: %q", ErrNoJob, job) }

// ErrPaused says that nothing was started because of a pause.
var ErrPaused = errors.New("paused")

// A PausedError is an ErrPaused that knows by whom.
type PausedError struct{ Pause }

func (e *PausedError) Error() string { return e.Pause.String() }

// Is makes it an ErrPaused.
func (e *PausedError) Is(target error) bool { return target == ErrPaused }

// MaxPending is how many requests one job may have that nobody has answered.
// Those that come at the same moment may go beyond it.
const MaxPending = 1000

// PendingLimit is how many requests of one job a [Pending] has.
const PendingLimit = 100

// ErrBacklog says that a job has so many requests already that it gets no more.
var ErrBacklog = errors.New("too many requests")

// A BacklogError is an ErrBacklog that knows of which job.
type BacklogError struct {
	Job     string
	Pending int // requests that nobody has answered
	Limit   int
}

func (e *BacklogError) Error() string {
	return fmt.Sprintf("job %q has %d requests that were not answered, and %d are the limit: "+
		"wait until the leader has answered them",
		e.Job, e.Pending, e.Limit)
}

// Is makes it an ErrBacklog.
func (e *BacklogError) Is(target error) bool { return target == ErrBacklog }

// An Action is what somebody asks: which job, who, and why.
type Action struct {
	Job    string // "" where every job can be meant
	By     string // required: a person, or the part of the app that asks; at most 200 bytes
	Reason string // at most 1,000 bytes
}

// Validate names everything that is wrong with the action, except whether
// there is such a job. Where no job can have that name it wraps ErrNoJob.
// Names and reasons are UTF-8 without control characters (a reason may have line
// breaks and tabs) and without those that set the direction of writing.
func (o Action) Validate() error {
	err := names.CheckOrder("the name of who asks", o.By, o.Reason)
	if wrong := names.Check("the name of the job", o.Job); wrong != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", ErrNoJob, wrong))
	}
	return err
}

// A Request is a run that somebody asked for, and that has not started.
type Request struct {
	Action
	At time.Time // becomes the run's ScheduledAt
}

// A Pause keeps a job, or the whole scheduler, from starting runs.
type Pause struct {
	Action              // Job is "" for the whole scheduler
	Since     time.Time // when it began
	Resumed   time.Time // when it ended; zero: it is in force
	ResumedBy string
}

// InForce reports whether the pause has not ended.
func (p Pause) InForce() bool { return p.Resumed.IsZero() }

// String is a sentence about the pause.
func (p Pause) String() string {
	what := "the scheduler"
	if p.Job != "" {
		what = fmt.Sprintf("job %q", p.Job)
	}
	text := fmt.Sprintf("%s is paused by %s since %s", what, p.By,
		p.Since.UTC().Format(time.RFC3339))
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	if !p.InForce() {
		text = strings.Replace(text, " is paused", " was paused", 1)
		text += fmt.Sprintf(" (resumed by %s at %s)", p.ResumedBy,
			p.Resumed.UTC().Format(time.RFC3339))
	}
	return text
}

// Pending is what people have asked of the leader.
type Pending struct {
	Requests []Request      // of jobs that may start: of each the oldest, at most PendingLimit
	Pauses   []Pause        // the latest of each job, and of the whole scheduler
	Backlog  map[string]int // how many requests each job has, also if it may not start
}

// Paused returns the pause that keeps a job from starting: its own, or that
// of the whole scheduler; nil if there is none in force.
func (i Pending) Paused(job string) *Pause {
	for n := range i.Pauses { // p of a range would be copied to the heap each time
		if p := &i.Pauses[n]; (p.Job == "" || p.Job == job) && p.InForce() {
			return p
		}
	}
	return nil
}

// Await waits until a run has ended for good, and returns it: done, failed or
// abandoned without another attempt, or skipped. tick is its ScheduledAt, that
// is Request.At for what [Store.Trigger] has returned. It asks the database
// ten times a second at first and later once a second, also while it does not
// answer. Once ctx ends it returns the run as it was last seen, and an error
// that says how far it had come and wraps the cause.
func Await(ctx context.Context, s Store, job string, tick time.Time) (Run, error) {
	const first, last, limit = 100 * time.Millisecond, time.Second, 10 * time.Second
	var seen Run
	state := "nobody has started it"
	for wait := first; ; wait = min(wait+wait/10, last) {
		try, cancel := context.WithTimeout(ctx, limit) // ctx may last for as long as the run
		run, found, err := s.Run(try, job, tick)
		cancel()
		switch {
		case ctx.Err() != nil: // below
		case errors.Is(err, driver.ErrPermanent), errors.Is(err, driver.ErrCorrupt):
			return seen, err
		case err != nil:
			state = err.Error()
		case found && run.Final():
			return run, nil
		case found:
			seen, state = run, fmt.Sprintf("attempt %d is %s", run.Attempt, run.Status)
		}
		select {
		case <-ctx.Done():
			return seen, fmt.Errorf("run of job %q at %s has not ended, %s: %w", job,
				tick.UTC().Format(time.RFC3339Nano), state, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}
