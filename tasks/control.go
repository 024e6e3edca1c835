package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// What can be asked of the scheduler from any replica, leading or not. All of
// it goes through the database; the leader looks four times a second.

// A RunEvent is something that happened to the runs of a job on this replica,
// while it led.
type RunEvent struct {
	Run // of what was skipped: only its Job

	// Status is ledger.InProgress: an attempt starts; ledger.Done or
	// ledger.Failed: it has ended, one such event for each that started, also
	// if that could not be written down; ledger.Abandoned: a leader before had
	// died, or lost the lock; ledger.Skipped: a tick, or a request, was not run.
	Status  ledger.Status
	Reason  string        // of what was skipped: ledger.Missed, …
	Count   int64         // ticks that were skipped; else 1
	Late    time.Duration // in progress: from when the run was due for the first time to this start
	Took    time.Duration // done, failed
	Err     error         // failed, abandoned; else nil
	RetryAt time.Time     // failed, abandoned: when the next attempt is due; zero: there is none
}

// HandOver tells whichever replica leads to leave, so that another does; see
// [schedlock.Revoke]. If that is this replica, it does so at once. term is the
// one that by has seen leading: another one is left alone.
func (r *Runner) HandOver(ctx context.Context, term int64, by,
	reason string) (schedlock.Revocation, error) {
	revoked, err := schedlock.Revoke(ctx, r.lock.Store(), term, by, reason)
	if err != nil {
		return revoked, fmt.Errorf("hand over: %w", err)
	}
	if t := r.term.Load(); t != nil && t.lease.Term() == term {
		t.beat.now()
	}
	return revoked, nil
}

// Trigger asks the leader to run a job now, and returns without waiting for
// it. by says who asks (required), reason why; both are kept with the run. The
// run starts within a second while somebody leads, else as soon as somebody
// does, once, also if the leader dies in between. If a run of the job is under
// way, its Overlap decides.
//
// The error wraps [ledger.ErrNoJob] if no leader has had the job yet; it is a
// [*ledger.PausedError] while the job is paused, and a [*ledger.BacklogError] if
// a thousand requests for it wait already.
func (r *Runner) Trigger(ctx context.Context, job, by, reason string) (ledger.Request, error) {
	request, err := r.ledger.Trigger(ctx, ledger.Action{Job: job, By: by, Reason: reason})
	if err != nil {
		return request, fmt.Errorf("trigger job %q: %w", job, err)
	}
	r.look()
	return request, nil
}

// Await waits until the run of a request has ended for good, its retries
// included; see [ledger.Await]. A shutdown does not wait for who waits: once this
// Runner has stopped the error wraps schedlock.ErrStopped.
func (r *Runner) Await(ctx context.Context, request ledger.Request) (ledger.Run, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-r.done:
			cancel(schedlock.ErrStopped)
		case <-ctx.Done():
		}
	}()
	return ledger.Await(ctx, r.ledger, request.Job, request.At)
}

// Pause keeps a job from starting. Once it has returned the job starts no more,
// whoever leads; what runs goes on. Ticks that are due meanwhile are missed ones,
// for which the job's CatchUp decides when it is resumed. by says who pauses
// (required), reason why. If it is paused already, the pause that is in force is
// returned. A job without a name is an error: every job is [Runner.PauseAll].
func (r *Runner) Pause(ctx context.Context, job, by, reason string) (ledger.Pause, error) {
	if job == "" {
		return ledger.Pause{},
			errors.New("pause: the name of the job is empty: PauseAll pauses every job")
	}
	return r.pause(ctx, job, by, reason)
}

// PauseAll is Pause for every job, as one pause of the whole scheduler.
func (r *Runner) PauseAll(ctx context.Context, by, reason string) (ledger.Pause, error) {
	return r.pause(ctx, "", by, reason)
}

func (r *Runner) pause(ctx context.Context, job, by, reason string) (ledger.Pause, error) {
	pause, err := r.ledger.Pause(ctx, ledger.Action{Job: job, By: by, Reason: reason})
	if err != nil {
		return pause, fmt.Errorf("pause job %q: %w", job, err)
	}
	r.look()
	return pause, nil
}

// Resume ends the pause of a job, and not that of the whole scheduler. resumed is
// false if there was none. A job without a name is an error, as with Pause.
func (r *Runner) Resume(ctx context.Context, job, by string) (resumed bool, err error) {
	if job == "" {
		return false,
			errors.New("resume: the name of the job is empty: ResumeAll ends the pause of the whole " +
				"scheduler")
	}
	return r.resume(ctx, job, by)
}

// ResumeAll ends what PauseAll has begun, and not the pauses of single jobs.
func (r *Runner) ResumeAll(ctx context.Context, by string) (resumed bool, err error) {
	return r.resume(ctx, "", by)
}

func (r *Runner) resume(ctx context.Context, job, by string) (resumed bool, err error) {
	if resumed, err = r.ledger.Resume(ctx, job, by); err != nil {
		return false, fmt.Errorf("resume job %q: %w", job, err)
	}
	r.look()
	return resumed, nil
}

// look lets this replica, if it leads, look for requests and pauses at once.
func (r *Runner) look() {
	if t := r.term.Load(); t != nil {
		select {
		case t.poke <- struct{}{}:
		default:
		}
	}
}

// JobInfo is what a person wants to know of a job.
type JobInfo struct {
	ledger.Job
	Known bool // this replica's code has the job
	// the oldest tick that is not decided; in the past while a run is under way that it overlaps,
	// if nobody has led since, or during a pause; zero: there is none
	Next  time.Time
	Pause *ledger.Pause // that keeps it from starting; nil: none
}

// Jobs returns every job that the database or this replica knows, by name.
func (r *Runner) Jobs(ctx context.Context) ([]JobInfo, error) {
	rows, err := r.ledger.Jobs(ctx)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	inbox, err := r.ledger.Pending(ctx)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	known := map[string]bool{}
	for _, j := range r.jobs {
		known[j.Name] = true
		if findJob(rows, j.Name) == nil {
			rows = append(rows, ledger.Job{Name: j.Name, Spec: j.Spec.ForJob(j.Name).String()})
		}
	}
	infos := make([]JobInfo, len(rows))
	for i, row := range rows {
		infos[i] = JobInfo{Job: row, Known: known[row.Name], Pause: inbox.Paused(row.Name)}
		if !row.Cursor.IsZero() {
			infos[i].Next = ParseSpec(row.Spec).Next(row.Cursor)
		}
	}
	slices.SortFunc(infos, func(a, b JobInfo) int { return cmp.Compare(a.Name, b.Name) })
	return infos, nil
}
