//go:build linux

package faults

import (
	"context"
	"errors"
	"strconv"
	"time"

	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

// A process under load has all of this at once: a thousand requests of a paused
// job wait, and users go on asking for another one; lockers wait for one named
// lock, and workers work off a queue, all on the scheduler's own database; stderr
// is a full pipe that nobody reads; and OnRun never returns when told of a failure.
const (
	loadLockers = 60
	loadWorkers = 8

	jobFailing = "failing" // at each tick
	jobAsked   = "asked"   // has the thousand requests
	jobWanted  = "wanted"  // users go on asking for it

	loadAsk   = 300 * time.Millisecond // between two requests of a user
	loadSlow  = 200 * time.Millisecond // of the job with the thousand requests
	loadRest  = 100 * time.Millisecond // after an error
	loadFirst = 1_000_000              // the number of the first order
)

// KindHung is written down when OnRun is told of a failure, and never returns.
const KindHung Kind = "hung"

func (p *program) loadJobs() []tasks.Job {
	return []tasks.Job{
		// Whatever holds up one run, the next one is late, but not left out.
		{Name: jobTick, Spec: tasks.Every(p.Tick), Do: p.job(p.doTick), CatchUp: tasks.All(100),
			Overlap: tasks.OverlapQueue},
		{Name: jobFailing, Spec: tasks.Every(p.Tick),
			Do: p.job(func(context.Context, tasks.Run) error {
				return errTold
			})},
		{Name: jobWanted, Spec: tasks.Every(time.Hour),
			Do: p.job(func(context.Context, tasks.Run) error {
				return nil
			}), Overlap: tasks.OverlapQueue},
		{Name: jobAsked, Spec: tasks.Every(time.Hour), Do: p.job(doAsked),
			Overlap: tasks.OverlapQueue},
	}
}

func doAsked(ctx context.Context, _ tasks.Run) error {
	sleep(ctx, loadSlow)
	return ctx.Err()
}

func (p *program) onRun() func(tasks.RunEvent) {
	if !p.Load {
		return nil
	}
	return func(e tasks.RunEvent) {
		if e.Err == nil {
			return
		}
		p.record(Record{Kind: KindHung, Term: e.Term, Job: e.Job, Tick: e.ScheduledAt.UnixMicro(),
			Attempt: e.Attempt})
		select {}
	}
}

// fill asks for runs until no more may wait, and pauses the job then.
func (u *lockUser) fill(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		err := u.call(ctx, func(ctx context.Context) error {
			_, err := u.app.Runner().Trigger(ctx, jobAsked, u.Name, strconv.Itoa(n))
			return err
		})
		if _, full := errors.AsType[*ledger.BacklogError](err); full {
			err = u.call(ctx, func(ctx context.Context) error {
				_, err := u.app.Runner().Pause(ctx, jobAsked, u.Name, "it has too many requests")
				return err
			})
		}
		if _, paused := errors.AsType[*ledger.PausedError](err); paused {
			return
		}
		if err != nil {
			sleep(ctx, loadRest)
		}
	}
}

// askOn asks for runs as users do.
func (u *lockUser) askOn(ctx context.Context) {
	for n := loadFirst; sleep(ctx, loadAsk); n++ {
		u.give(Order{Number: n, Kind: KindAsking, Job: jobWanted})
	}
}
