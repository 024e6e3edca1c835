//go:build linux

package faults

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks"
)

// The jobs of the test program.
const (
	jobTick = "tick" // each tick: one fenced write
	// takes a second, obeys its context, and then tries a fenced write all the same
	jobSlow = "slow"
	jobOdd  = "odd"  // fails now and then, and misbehaves if it is told to
	jobOnce = "once" // takes a while, and must not be repeated
)

// jobs has one for each way to catch up, and to overlap but OverlapAllow.
func (p *program) jobs() []tasks.Job {
	if p.Load {
		return p.loadJobs()
	}
	return []tasks.Job{
		{Name: jobTick, Spec: tasks.Every(p.Tick), Do: p.job(p.doTick)},
		{Name: jobSlow, Spec: tasks.Every(5 * p.Tick), Do: p.job(p.doSlow),
			Overlap: tasks.OverlapQueue},
		{Name: jobOdd, Spec: tasks.Every(3 * p.Tick), Do: p.job(p.doOdd), CatchUp: tasks.All(3),
			Retry: tasks.Retry{Attempts: mostAttempts, Backoff: p.Tick / 2, MaxBackoff: p.Tick}},
		{Name: jobOnce, Spec: tasks.Every(4 * p.Tick), Do: p.job(p.doOnce), CatchUp: tasks.Skip,
			AtMostOnce: true},
	}
}

// job writes down when a run starts, when its context ends, and when it
// returns.
func (p *program) job(do func(context.Context,
	tasks.Run) error) func(context.Context, tasks.Run) error {
	return func(ctx context.Context, run tasks.Run) error {
		p.runs.Add(1)
		p.recordRun(KindStart, run)
		told := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(told)
			p.recordRun(KindCancelled, run)
		})
		defer func() { // a panic passes
			if !stop() {
				<-told
			}
			p.recordRun(KindEnd, run)
		}()
		return do(ctx, run)
	}
}

func (p *program) recordRun(k Kind, run tasks.Run) {
	p.record(Record{Kind: k, Term: run.Term, Job: run.Job, Tick: run.ScheduledAt.UnixMicro(),
		Attempt: run.Attempt})
}

func (p *program) doTick(ctx context.Context, run tasks.Run) error {
	return p.write(ctx, run, run.Lease.Fence)
}

func (p *program) doSlow(ctx context.Context, run tasks.Run) error {
	select {
	case <-ctx.Done():
	case <-time.After(4 * p.Tick):
	}
	if ctx.Err() == nil {
		return p.write(ctx, run, run.Lease.Fence)
	}
	// As a job would that was stopped just before its write: straight at the
	// database's own fence, past what the lease knows.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 200*time.Millisecond)
	defer cancel()
	return p.write(ctx, run, func(ctx context.Context, tx any) error {
		return p.backend.store.Fence(ctx, tx, run.Lease.Ref())
	})
}

func (p *program) doOdd(ctx context.Context, run tasks.Run) error {
	c := p.control.Load()
	switch {
	case c.Panic:
		panic("told to")
	case c.Ignore > 0:
		time.Sleep(c.Ignore)
	case c.Child > 0:
		// It inherits nothing and outlives us; init reaps it.
		return exec.Command("sleep", strconv.FormatFloat(c.Child.Seconds(), 'f', 3, 64)).Start()
	case c.Fail && run.Attempt == 1:
		return errTold
	}
	// Unasked too, so that there are retries under every fault: one run in two
	// fails, once, twice, or until it is given up.
	n := run.ScheduledAt.UnixMicro() / (3 * p.Tick).Microseconds() % 6
	if int64(run.Attempt) <= n-2 {
		return errTold
	}
	return nil
}

var errTold = errors.New("told to fail")

func (p *program) doOnce(ctx context.Context, run tasks.Run) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.Tick):
	}
	return p.write(ctx, run, run.Lease.Fence)
}

// write tries one fenced write, and writes down how that ended.
func (p *program) write(ctx context.Context, run tasks.Run, agreed fence) error {
	refused := false
	w := written{term: run.Term, job: run.Job, tick: run.ScheduledAt.UnixMicro()}
	err := p.backend.write(ctx, w, func(ctx context.Context, tx any) error {
		err := agreed(ctx, tx)
		refused = errors.Is(err, schedlock.ErrLost) || errors.Is(err, schedlock.ErrReleased)
		return err
	})
	switch {
	case err == nil:
		p.recordRun(KindCommitted, run)
	case refused:
		p.recordRun(KindRefused, run)
	default:
		p.recordRun(KindFailed, run)
	}
	return err
}
