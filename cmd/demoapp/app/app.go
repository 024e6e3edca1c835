package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"example.com/schedlock/cmd/demoapp/bans"
	"example.com/schedlock/cmd/demoapp/blocklists"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

const (
	importInterval = 10 * time.Minute
	expireInterval = 5 * time.Minute

	importAttempts = 3
	importBackoff  = 5 * time.Second
	importTimeout  = 5 * time.Minute
)

// app is the demo app: its own tables, its jobs, and what startup does around
// them.
type app struct {
	cfg     Config
	log     *slog.Logger
	metrics *prom.Metrics
	sched   *startup.App

	database *database
	unfenced sync.Once
}

// New makes the app; its Run starts it. It touches no database.
func New(cfg Config, log *slog.Logger) (*startup.App, error) {
	a := &app{cfg: cfg, log: log}
	jobs := a.jobs()
	a.metrics = prom.New(prom.WithJobs(jobs))
	sched, err := startup.NewApp(startup.Config{
		Open:    openLock(cfg.lockDatabaseURL, log),
		Strict:  cfg.mode == modeStrict,
		Workers: cfg.workers,
		Lock: []schedlock.Option{
			schedlock.WithTTL(cfg.timing.TTL),
			schedlock.WithHeartbeatInterval(cfg.timing.HeartbeatInterval),
		},
		Drain:    cfg.drain,
		Presence: cfg.presence,
		OnStuck:  func([]tasks.Run) { os.Exit(1) },
		Metrics:  a.metrics,
		Jobs:     jobs,
		Stages: []startup.Stage{{
			Name: "bans", After: []string{startup.StageDatabase}, Start: a.openBans,
			Stop: a.closeBans,
		}},
		Server: a.server,
		Log:    log,
	})
	a.sched = sched
	return sched, err
}

// openBans opens the app's own database, on connections that are not the
// lock's.
func (a *app) openBans(ctx context.Context) (err error) {
	a.database, err = openDatabase(ctx, a.cfg.databaseURL, a.cfg.timing.RenewDeadline)
	return err
}

func (a *app) closeBans(context.Context) error { return a.database.close() }

func (a *app) jobs() []tasks.Job {
	return []tasks.Job{
		{
			Name: "tick", Spec: tasks.Every(a.cfg.tick), Do: a.tick,
			CatchUp: a.cfg.tickCatchUp, Overlap: a.cfg.tickOverlap,
			Retry:      tasks.Retry{Attempts: a.cfg.tickAttempts},
			AtMostOnce: a.cfg.tickAtMostOnce, Timeout: a.cfg.tickTimeout,
		},
		{
			Name: "import", Spec: tasks.Every(importInterval), AtOnce: true, Do: a.importLists,
			CatchUp: tasks.Latest, Overlap: tasks.OverlapSkip,
			Retry: tasks.Retry{Attempts: importAttempts,
				Backoff: importBackoff}, Timeout: importTimeout,
		},
		{Name: "expire", Spec: tasks.Every(expireInterval), Do: a.expireBans,
			CatchUp: tasks.Latest},
	}
}

// tick takes as long as it was told to, unless it is told to stop, and fails
// as often as it was told to.
func (a *app) tick(ctx context.Context, run tasks.Run) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(a.cfg.jobDuration):
	}
	if run.Attempt <= a.cfg.tickFail {
		return fmt.Errorf("told to fail by %s=%d", variable("tick-fail"), a.cfg.tickFail)
	}
	return nil
}

func (a *app) importLists(ctx context.Context, run tasks.Run) error {
	fence, err := a.fence(ctx, run.Lease)
	if err != nil {
		return err
	}
	lists, done, err := a.lists()
	if err != nil {
		return err
	}
	defer done()
	report, err := a.database.bans.Import(ctx, lists, fence, time.Now())
	if err != nil {
		return err
	}
	a.log.Info("block lists imported", "report", report.String())
	for _, f := range report.Files {
		if f.Garbage > 0 || f.Err != nil {
			a.log.Warn("block list has faults", "list", f.Name, "report", f.String())
		}
	}
	if n := report.Errors(); n > 0 {
		return fmt.Errorf("%d lists could not be read: %s", n, report)
	}
	return nil
}

func (a *app) expireBans(ctx context.Context, run tasks.Run) error {
	fence, err := a.fence(ctx, run.Lease)
	if err != nil {
		return err
	}
	n, err := a.database.bans.Expire(ctx, time.Now(), fence)
	if n > 0 {
		a.log.Info("bans expired", "count", n)
	}
	return err
}

// lists is the folder of block lists, or the samples if there is no folder.
// done closes it.
func (a *app) lists() (lists fs.FS, done func(), err error) {
	folder, err := bans.OpenFolder(a.cfg.blocklists)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return blocklists.FS, func() {}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("block lists: %w", err)
	}
	return folder, func() { _ = folder.Close() }, nil
}

// fence guards the app's own transactions by the lock row. That works only in
// the lock's database; with another one it says so, once, and writes unfenced.
func (a *app) fence(ctx context.Context, lease *schedlock.Lease) (bans.Fence, error) {
	same := a.cfg.databaseURL == a.cfg.lockDatabaseURL
	if !same {
		var err error
		if same, err = a.database.holds(ctx, a.sched.Store()); err != nil {
			return nil, err
		}
	}
	if same {
		return func(ctx context.Context, tx *sql.Tx) error { return lease.Fence(ctx, tx) }, nil
	}
	a.unfenced.Do(func() {
		a.log.Warn("the importer writes unfenced", "err", schedlock.ErrNoFence)
	})
	return func(context.Context, *sql.Tx) error { return lease.Err() }, nil
}

func (a *app) server(*startup.App) *http.Server {
	return &http.Server{
		Addr:              a.cfg.addr,
		Handler:           a.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}
}
