package simulate

import (
	"context"
	"errors"
	"time"

	"example.com/schedlock/internal/faults"
	"example.com/schedlock/tasks"
)

// The jobs of each replica, one for each way to catch up.
const (
	jobTick = "tick" // each tick: one fenced write
	jobSlow = "slow" // takes long, and then writes whatever its lease says
	jobOdd  = "odd"  // fails now and then
	jobOnce = "once" // takes a while, and must not be repeated
)

const tick = 3 * time.Second // of jobTick; the others have multiples

func (p *process) jobs() []tasks.Job {
	return []tasks.Job{
		{Name: jobTick, Spec: tasks.Every(tick), Do: p.job(p.write)},
		{Name: jobSlow, Spec: tasks.Every(5 * tick), Do: p.job(p.doSlow),
			Overlap: tasks.OverlapQueue},
		{Name: jobOdd, Spec: tasks.Every(3 * tick), Do: p.job(p.doOdd), CatchUp: tasks.All(3),
			Retry: tasks.Retry{Attempts: 3, Backoff: tick / 2, MaxBackoff: tick}},
		{Name: jobOnce, Spec: tasks.Every(4 * tick), Do: p.job(p.doOnce), CatchUp: tasks.Skip,
			AtMostOnce: true},
	}
}

// job writes down when a run starts, when its context ends, and when it returns.
func (p *process) job(do func(context.Context, tasks.Run) error) func(context.Context,
	tasks.Run) error {
	w := p.w
	return func(ctx context.Context, run tasks.Run) error {
		if !p.cached.Load() && !p.crashed() {
			w.violate("order of the stages", "%s runs %s without its cache", p.name, run.Job)
		}
		w.mu.Lock()
		i := len(w.history.Runs)
		w.history.Runs = append(w.history.Runs, faults.Run{Process: p.name, Term: run.Term,
			Job: run.Job, Tick: run.ScheduledAt.UnixMicro(), Attempt: run.Attempt, Start: w.at()})
		w.mu.Unlock()
		mark := func(at func(*faults.Run) *time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if p.died == 0 {
				*at(&w.history.Runs[i]) = w.at()
			}
		}
		defer context.AfterFunc(ctx, func() {
			mark(func(r *faults.Run) *time.Duration { return &r.Cancelled })
		})()
		defer mark(func(r *faults.Run) *time.Duration { return &r.End })
		return do(ctx, run)
	}
}

// takes lasts for d, or until the run is told to end, which it may not hear.
func (p *process) takes(ctx context.Context, d time.Duration) {
	done := ctx.Done()
	if left := p.w.during(deaf, p.replica); left > 0 {
		done, d = nil, max(d, left)
	}
	select {
	case <-done:
	case <-p.dead:
	case <-time.After(d):
	}
	p.standStill()
}

func (p *process) doSlow(ctx context.Context, run tasks.Run) error {
	p.takes(ctx, 4*tick)
	return p.write(ctx, run)
}

var errTold = errors.New("told to fail")

// doOdd fails in every second run, once, twice, or until it is given up.
func (p *process) doOdd(_ context.Context, run tasks.Run) error {
	n := run.ScheduledAt.UnixMicro() / (3 * tick).Microseconds() % 6
	if int64(run.Attempt) <= n-2 {
		return errTold
	}
	return nil
}

func (p *process) doOnce(ctx context.Context, run tasks.Run) error {
	p.takes(ctx, tick)
	return p.write(ctx, run)
}

// writeTakes is how long a fenced transaction is open.
const writeTakes = 50 * time.Millisecond

// write tries one fenced write. Where the context has ended it asks the database's own fence,
// past what the lease knows, as a job would that stood still just before its write.
func (p *process) write(ctx context.Context, run tasks.Run) error {
	w := p.w
	p.standStill()
	tx := w.db.Begin()
	defer tx.Rollback()
	w.mu.Lock()
	p.open[tx] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(p.open, tx)
	}()
	if p.crashed() {
		return errCrashed
	}
	err := ctx.Err()
	if err == nil {
		err = run.Lease.Fence(ctx, tx)
	} else if !p.crashed() {
		err = w.db.Fence(context.Background(), tx, run.Lease.Ref())
	}
	if err != nil {
		return err
	}
	time.Sleep(writeTakes)
	p.standStill()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := tx.Commit(); err != nil {
		return err
	}
	w.history.Writes = append(w.history.Writes, faults.Write{Term: run.Term})
	return nil
}
