package tasks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock"
)

// A Job is something to do on the leader, again and again.
type Job struct {
	// Name is the job's key in the ledger: unique, not empty, at most 200
	// bytes of UTF-8 without control characters and those that set the
	// direction of writing. A renamed job is a new one.
	Name string

	// Spec says when it is due.
	Spec Spec

	// Do does it. ctx ends when leadership ends, when a drain has passed its
	// limit, and after the Timeout: return soon then. An error, or a panic,
	// makes the run failed.
	Do func(ctx context.Context, run Run) error

	// CatchUp says what happens with ticks that were missed. Default Latest.
	CatchUp CatchUp

	// Overlap says what happens when a run is due while another one of this
	// job has not ended. Default OverlapSkip.
	Overlap Overlap

	// Retry says when a run that failed, or was cut short, is tried again. By
	// default only one that was cut short is.
	Retry Retry

	// AtMostOnce is for a job that must not be repeated, such as sending mail:
	// a run that fails or is cut short stays so, and is reported.
	AtMostOnce bool

	// Timeout ends the context of a run that takes longer. 0: none.
	Timeout time.Duration

	// AtOnce gives the job a tick at the moment its spec is first stored, so
	// that a new database need not wait for the first regular one.
	AtOnce bool
}

// A Run is what a job is told about one execution.
type Run struct {
	Job         string
	ScheduledAt time.Time // the tick, or when it was asked for; not the time of the start
	Attempt     int       // 1, 2, …
	Term        int64
	Lease       *schedlock.Lease // for [schedlock.Lease.Fence]

	RequestedBy   string // who asked for it; "": it is due by its schedule
	RequestReason string
}

// checkJobs names everything that is wrong with the jobs.
func checkJobs(jobs []Job) error {
	var errs []error
	seen := map[string]bool{}
	for i, j := range jobs {
		switch wrong := names.Check("the name", j.Name); {
		case strings.TrimSpace(j.Name) == "":
			errs = append(errs, fmt.Errorf("job %d of %d has no name", i+1, len(jobs)))
		case wrong != nil:
			errs = append(errs, fmt.Errorf("job %d of %d: %w", i+1, len(jobs), wrong))
		case seen[j.Name]:
			errs = append(errs, fmt.Errorf("job %q is there twice", j.Name))
		}
		seen[j.Name] = true
		if j.Do == nil {
			errs = append(errs, fmt.Errorf("job %q has nothing to do: Do is nil", j.Name))
		}
		if j.Timeout < 0 {
			errs = append(errs, fmt.Errorf("job %q: time-out %v is below 0", j.Name, j.Timeout))
		}
		if j.AtMostOnce && j.Retry.Attempts > 1 {
			errs = append(errs, fmt.Errorf("job %q: %d attempts, but it is AtMostOnce",
				j.Name, j.Retry.Attempts))
		}
		for _, err := range append(j.Retry.validate(), j.Spec.ForJob(j.Name).Validate(),
			j.CatchUp.validate(), j.Overlap.validate()) {
			if err != nil {
				errs = append(errs, fmt.Errorf("job %q: %w", j.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// call runs the job and makes an error of a panic, so that a broken job takes
// neither the web app nor the lock with it.
func (j Job) call(ctx context.Context, run Run) error {
	err := <-bounded.Go(func() error { return j.Do(ctx, run) })
	if p, panicked := errors.AsType[*bounded.Panic](err); panicked {
		return fmt.Errorf("panic: %v\n%s", p.Value, p.Stack)
	}
	return err
}
