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

// execute runs the job and writes down how it ended.
func (t *term) execute(j *termJob, r ledger.Run) {
	run := t.run(r)
	log := t.log.With("job", r.Job, "tick", r.ScheduledAt, "term", r.Term, "attempt", r.Attempt)
	log.Debug("run started", "late", r.StartedAt.Sub(r.ScheduledAt))
	t.onRun(RunEvent{Job: r.Job, Status: ledger.InProgress, Count: 1, Late: max(r.StartedAt.Sub(r.ScheduledAt), 0)})
	ctx := t.ctx
	if j.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, j.Timeout, fmt.Errorf("%w of %v", errTimeout, j.Timeout))
		defer cancel()
	}
	begin := time.Now()
	jobErr := j.call(ctx, run)
	end := ledger.End{Status: ledger.Done, Took: time.Since(begin)}
	t.mu.Lock()
	t.running[r.ID] = execution{Run: run, returned: true}
	t.mu.Unlock()
	if jobErr != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(jobErr, cause) {
			jobErr = fmt.Errorf("%w: %w", cause, jobErr)
		}
		end.Status, end.Error = ledger.Failed, jobErr.Error()
		end.RetryAt = j.retryAt(t.lease.Now(), r.Attempt, t.ctx.Err() != nil)
	}
	// The end is written even if the lease is over, for a while: the row says
	// whether it is still ours to write.
	endCtx, cancel := context.WithCancel(context.WithoutCancel(t.ctx))
	defer cancel()
	stop := context.AfterFunc(t.lease.Context(), func() { time.AfterFunc(finishLimit, cancel) })
	defer stop()
	var written bool
	err := t.retry(endCtx, func(ctx context.Context) (err error) {
		written, err = t.ledger.Finish(ctx, r, end)
		return err
	})
	t.mu.Lock()
	delete(t.running, r.ID)
	t.mu.Unlock()

	r.Status, r.Error, r.RetryAt = end.Status, end.Error, end.RetryAt
	switch {
	case err != nil:
		level := slog.LevelError
		if errors.Is(err, schedlock.ErrLost) { // the database file is not the one that was opened
			level = slog.LevelWarn
			t.beat()
		}
		log.Log(endCtx, level, "end of run not recorded", "status", string(end.Status), "err", err)
	case !written:
		log.Warn("end of run came too late: the next leader has recorded it as abandoned", "status", string(end.Status))
	case !r.RetryAt.IsZero():
		t.owe(j, t.attempt(j, r))
	}
	t.onRun(RunEvent{Job: r.Job, Status: end.Status, Count: 1, Took: end.Took})
	switch {
	case jobErr != nil:
		t.failed(r, jobErr, end.Took)
	case r.Attempt > 1 || r.RequestedBy != "":
		log.Info("run done", "took", end.Took, "requested_by", r.RequestedBy)
	default:
		log.Debug("run done", "took", end.Took)
	}
	j.mu.Lock()
	j.running--
	j.ended, j.stirred = t.lease.Now(), time.Now()
	j.mu.Unlock()
}

// errAbandoned is why a run failed whose leader did not end it.
var errAbandoned = errors.New("its leader died, or lost the lock, before it ended")

// failed reports an attempt that did not succeed.
func (t *term) failed(r ledger.Run, err error, took time.Duration) {
	log := t.log.With("job", r.Job, "tick", r.ScheduledAt, "term", r.Term, "attempt", r.Attempt)
	if !r.RetryAt.IsZero() {
		log = log.With("retry_at", r.RetryAt)
	}
	switch {
	case r.Status == ledger.Failed:
		log.Error("run failed", "took", took, "err", err)
	case r.RetryAt.IsZero():
		log.Error("run abandoned by its leader: it is not repeated")
	default:
		log.Warn("run abandoned by its leader")
	}
	if t.onFailure == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			log.Error("OnFailure has panicked", "panic", v)
		}
	}()
	t.onFailure(Failure{
		Run: t.run(r), Status: r.Status, Err: err, Took: took, RetryAt: r.RetryAt,
	})
}
