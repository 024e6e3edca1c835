package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"example.com/schedlock/cmd/demoapp/bans"
	"example.com/schedlock/cmd/demoapp/blocklists"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

const (
	importInterval = 10 * time.Minute
	expireInterval = 5 * time.Minute
)

// app is the demo app: its own tables, its jobs, and what startup does around
// them.
type app struct {
	cfg     config
	log     *slog.Logger
	metrics *metrics
	sched   *startup.App

	database *sqlite.Store // the app's own connections
	bans     *bans.Store
	unfenced sync.Once
}

func newApp(cfg config, log *slog.Logger) (*startup.App, error) {
	a := &app{cfg: cfg, log: log, metrics: newMetrics()}
	sched, err := startup.NewApp(startup.Config{
		Open:    sqlite.Opener(cfg.lockDatabaseURL),
		Mode:    cfg.mode,
		Workers: cfg.workers,
		Lock: []schedlock.Option{
			schedlock.WithTTL(cfg.timing.TTL),
			schedlock.WithHeartbeatInterval(cfg.timing.HeartbeatInterval),
			schedlock.WithObserver(a.metrics),
		},
		Drain:   cfg.drain,
		OnStuck: tasks.ExitProcess,
		Jobs:    a.jobs(),
		Stages: []startup.Stage{{
			Name: "bans", After: []string{startup.StageDatabase}, Start: a.openBans, Stop: a.closeBans,
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
	if a.database, err = sqlite.Open(ctx, withBusyTimeout(a.cfg.databaseURL)); err != nil {
		return err
	}
	a.bans = bans.NewStore(a.database.DB(), bans.SQLite)
	if err := a.bans.Migrate(ctx); err != nil {
		return errors.Join(fmt.Errorf("database %s: %w", a.database.Path(), err), a.database.Close())
	}
	return nil
}

func (a *app) closeBans(context.Context) error { return a.database.Close() }

// withBusyTimeout lets the app wait longer for another writer than the lock
// does.
func withBusyTimeout(dsn string) string {
	if strings.Contains(dsn, "busy_timeout") {
		return dsn
	}
	if !strings.HasPrefix(dsn, "file:") { // a path
		uri := url.URL{Path: filepath.Clean(dsn)}
		dsn = "file:" + uri.EscapedPath()
	}
	sep := "?"
	if strings.Contains(dsn, "?") {
		sep = "&"
	}
	return dsn + sep + "_pragma=busy_timeout(5000)"
}

func (a *app) jobs() []tasks.Job {
	return []tasks.Job{
		{Name: "tick", Spec: tasks.Every(a.cfg.tick), Do: a.tick},
		{Name: "import", Spec: tasks.Every(importInterval), AtOnce: true, Do: a.importLists},
		{Name: "expire", Spec: tasks.Every(expireInterval), Do: a.expireBans},
	}
}

// tick takes as long as it was told to, unless it is told to stop.
func (a *app) tick(ctx context.Context, _ tasks.Run) error {
	if a.cfg.jobDuration == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(a.cfg.jobDuration):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *app) importLists(ctx context.Context, run tasks.Run) error {
	report, err := a.bans.Import(ctx, a.lists(), a.fence(run.Lease), bans.ImportOptions{})
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
	n, err := a.bans.Expire(ctx, time.Now(), a.fence(run.Lease))
	if n > 0 {
		a.log.Info("bans expired", "count", n)
	}
	return err
}

// lists is the folder of block lists, or the samples if there is no folder.
func (a *app) lists() fs.FS {
	if _, err := os.Stat(a.cfg.blocklists); errors.Is(err, fs.ErrNotExist) {
		return blocklists.FS
	}
	return os.DirFS(a.cfg.blocklists)
}

// fence guards the app's own transactions by the lock row. That works only in
// the lock's database; with another one it says so, once, and writes unfenced.
func (a *app) fence(lease *schedlock.Lease) bans.Fence {
	lock, ok := a.sched.Store().(*sqlite.Store)
	same := ok && lock.Path() == a.database.Path()
	return func(ctx context.Context, tx *sql.Tx) error {
		err := schedlock.ErrNoFence
		if same {
			err = lease.Fence(ctx, tx)
		}
		if errors.Is(err, schedlock.ErrNoFence) {
			a.unfenced.Do(func() {
				a.log.Warn("the importer writes unfenced", "err", err)
			})
			return nil
		}
		return err
	}
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
