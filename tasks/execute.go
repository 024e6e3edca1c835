package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// errTimeout is why a run is cancelled when its time is up.
var errTimeout = errors.New("the run took longer than its time-out")

// errNotCalled is why a run failed that began in the ledger only.
var errNotCalled = errors.New("not carried out: its leader lost the lock, " +
	"or its drain passed the limit, before the job was called")

// execute runs the job and writes down how it ended.
func (t *term) execute(j *termJob, r ledger.Run) {
	run := t.run(r)
	log := t.log.With("job", r.Job, "tick", r.ScheduledAt, "term", r.Term, "attempt", r.Attempt)
	log.Debug("run started", "late", r.StartedAt.Sub(r.ScheduledAt))
	t.tell(RunEvent{Run: run, Status: ledger.InProgress, Count: 1,
		Late: max(r.StartedAt.Sub(r.ScheduledAt), 0)})
	// The process, or its log, may have stood still meanwhile: only a replica that
	// still trusts its lease calls the job. What it does not call counts as cut
	// short.
	called := t.trusted() && t.ctx.Err() == nil
	ctx := t.ctx
	if j.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, j.Timeout,
			fmt.Errorf("%w of %v", errTimeout, j.Timeout))
		defer cancel()
	}
	begin := time.Now()
	jobErr := errNotCalled
	if called {
		jobErr = j.call(ctx, run)
	}
	end := ledger.End{Status: ledger.Done, Took: time.Since(begin)}
	j.runReturned()
	t.mu.Lock()
	t.running[r.ID] = execution{Run: run, returned: true}
	t.mu.Unlock()
	if jobErr != nil {
		jobErr = shorten(jobErr, context.Cause(ctx))
		end.Status, end.Error = ledger.Failed, jobErr.Error()
		end.RetryAt = j.retryAt(t.lease.Now(), r.Attempt, !called || t.ctx.Err() != nil)
	}
	// The end is written even if the lease is over, for a while: the row says
	// whether it is still ours to write. Nor does a drain wait for it for ever: the
	// next leader marks the run as abandoned.
	endCtx, cancel := context.WithCancel(context.WithoutCancel(t.ctx))
	defer cancel()
	stop := context.AfterFunc(t.lease.Context(), func() { time.AfterFunc(finishLimit, cancel) })
	defer stop()
	stop = context.AfterFunc(t.ctx, func() { time.AfterFunc(t.lock.Timing().TTL, cancel) })
	defer stop()
	written, tries := false, 0
	err := t.retry(endCtx, func(ctx context.Context) (err error) {
		tries++
		written, err = t.ledger.Finish(ctx, r, end)
		return err
	}, "job", r.Job)
	if err == nil && !written && tries > 1 {
		written = t.wrote(endCtx, r, end)
	}
	t.mu.Lock()
	delete(t.running, r.ID)
	t.mu.Unlock()

	r.Status, r.Error, r.RetryAt = end.Status, end.Error, end.RetryAt
	switch {
	case err != nil:
		level := slog.LevelError
		if errors.Is(err, schedlock.ErrLost) { // the database file is not the one that was opened
			level = slog.LevelWarn
			t.beat.now()
		}
		log.Log(endCtx, level, "end of run not recorded", "status", string(end.Status), "err", err)
	case !written:
		log.Warn("end of run came too late: the next leader has recorded it as abandoned", "status",
			string(end.Status))
	case !r.RetryAt.IsZero():
		t.owe(j, t.attempt(j, r))
	}
	t.tell(RunEvent{Run: run, Status: end.Status, Count: 1, Took: end.Took, Err: jobErr,
		RetryAt: end.RetryAt})
	switch {
	case jobErr != nil:
		t.sayFailed(r, jobErr, end.Took)
	case r.Attempt > 1 || r.RequestedBy != "":
		log.Info("run done", "took", end.Took, "requested_by", r.RequestedBy)
	default:
		log.Debug("run done", "took", end.Took)
	}
	j.runEnded(t.lease.Now())
}

// wrote reports whether an attempt that is not in progress any more has the end that this leader
// has written, without having learnt of it. Nobody else marks an attempt of this term so. Without
// an answer it has: the ledger refuses an attempt that is not owed.
func (t *term) wrote(ctx context.Context, r ledger.Run, end ledger.End) (mine bool) {
	ctx, cancel := context.WithTimeout(ctx, finishLimit) // the job waits
	defer cancel()
	err := t.retry(ctx, func(ctx context.Context) error {
		row, _, err := t.ledger.Run(ctx, r.Job, r.ScheduledAt)
		mine = row.ID == r.ID && row.Term == r.Term && row.Attempt == r.Attempt &&
			row.Status == end.Status
		return err
	}, "job", r.Job)
	return err != nil || mine
}

// A failure is the error of an attempt, with a text that can be kept: that of
// the job, in full, may be as long as its memory allows.
type failure struct {
	text string
	errs []error
}

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return f.errs }

// shorten returns the error of a job whose context has ended with a cause (nil:
// it has not), with a text that is cut. An Error method may panic.
func shorten(err, cause error) error {
	text := ledger.Cut(fmt.Sprint(err))
	if cause == nil || errors.Is(err, cause) {
		return &failure{text, []error{err}}
	}
	return &failure{ledger.Cut(cause.Error() + ": " + text), []error{cause, err}}
}

// errAbandoned is why a run failed whose leader did not end it.
var errAbandoned = errors.New("its leader died, or lost the lock, before it ended")

// sayFailed logs an attempt that did not succeed.
func (t *term) sayFailed(r ledger.Run, err error, took time.Duration) {
	log := t.log.With("job", r.Job, "tick", r.ScheduledAt, "term", r.Term, "attempt", r.Attempt)
	level := slog.LevelError
	if !r.RetryAt.IsZero() { // the next attempt decides
		log, level = log.With("retry_at", r.RetryAt), slog.LevelWarn
	}
	switch {
	case r.Status == ledger.Failed:
		log.Log(t.ctx, level, "run failed", "took", took, "err", err)
	case r.RetryAt.IsZero():
		log.Error("run abandoned by its leader: it is not repeated")
	default:
		log.Warn("run abandoned by its leader")
	}
}
