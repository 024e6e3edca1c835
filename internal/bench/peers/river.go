//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

// These are clients of River. One leads when River's row names it, the other when its periodic
// jobs have started.
var (
	riverRow = contestant{name: "River, its row", here: onPostgres, renew: 5 * time.Second,
		settle: 700 * time.Millisecond, watched: true, setup: setUpRiver, open: openRiver(false),
		settings: "defaults: it elects every 5 s, TTL 15 s; one queue, one periodic job"}
	riverScheduler = contestant{name: "River, its scheduler", here: onPostgres,
		renew: 5 * time.Second, settle: 700 * time.Millisecond, setup: setUpRiver,
		open: openRiver(true), settings: "the same, until its periodic jobs start"}
)

func setUpRiver(ctx context.Context, env environment, lock string) error {
	if err := newSchema(ctx, env, lock); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, env.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	m, err := rivermigrate.New(riverpgxv5.New(pool),
		&rivermigrate.Config{Schema: lock, Logger: quiet})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func openRiver(scheduler bool) opener {
	return func(ctx context.Context, env environment, lock, id string) (replica, error) {
		pool, err := pgxpool.New(ctx, env.Postgres)
		if err != nil {
			return nil, err
		}
		return &riverReplica{scheduler: scheduler, pool: pool, schema: lock, id: id}, pool.Ping(ctx)
	}
}

type riverReplica struct {
	scheduler  bool
	pool       *pgxpool.Pool
	schema, id string
	client     *river.Client[pgx.Tx]
}

type tick struct{}

func (tick) Kind() string { return "tick" }

type tickWorker struct{ river.WorkerDefaults[tick] }

func (tickWorker) Work(context.Context, *river.Job[tick]) error { return nil }

func (r *riverReplica) acquire(ctx context.Context) error {
	started := make(chan struct{}, 1)
	workers := river.NewWorkers()
	river.AddWorker(workers, &tickWorker{})
	hour := river.NewPeriodicJob(river.PeriodicInterval(time.Hour),
		func() (river.JobArgs, *river.InsertOpts) { return tick{}, nil }, nil)
	hook := river.HookPeriodicJobsStartFunc(
		func(context.Context, *rivertype.HookPeriodicJobsStartParams) error {
			select {
			case started <- struct{}{}:
			default:
			}
			return nil
		})
	client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{ID: r.id,
		Schema: r.schema, Logger: quiet, Workers: workers,
		Queues:       map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}},
		PeriodicJobs: []*river.PeriodicJob{hour}, Hooks: []rivertype.Hook{hook}})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	r.client = client
	if r.scheduler {
		<-started
		return nil
	}
	return r.elected(ctx)
}

// elected looks at River's row until it names this client. It looks less often
// after a while, so that waiting costs little.
func (r *riverReplica) elected(ctx context.Context) error {
	query := "SELECT leader_id FROM " + pgx.Identifier{r.schema}.Sanitize() +
		".river_leader WHERE expires_at >= now()"
	for n := 0; ; n++ {
		var who string
		err := r.pool.QueryRow(ctx, query).Scan(&who)
		if err == nil && who == r.id {
			return nil
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if n < 400 {
			time.Sleep(500 * time.Microsecond)
		} else {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func (r *riverReplica) release(ctx context.Context) error { return r.client.Stop(ctx) }
