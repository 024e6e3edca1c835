package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

// The ready-made stages of an App, in the order in which they start.
const (
	StageDatabase   = "database"    // opens the lock's database and migrates it
	StageWorkerMode = "worker_mode" // takes the lock, or stands by for it in the background
	StageHTTP       = "http"        // serves, also while the scheduler drains
	StageScheduler  = "scheduler"   // runs the jobs whenever this replica leads
)

// Mode says what a replica does while another holds the lock.
type Mode string

const (
	// Standby serves, and waits in the background until it leads. The default.
	Standby Mode = "standby"
	// Strict refuses to start: Start fails with a *schedlock.HeldError.
	Strict Mode = "strict"
)

// ErrTooManyWorkers is the fast check of strict mode: a process that says it
// has more than one worker is refused before the database is touched.
var ErrTooManyWorkers = errors.New("more than one worker in strict mode")

// Config is what an app says to embed it all. Only Open is required.
type Config struct {
	// Open opens the lock's database with its tables up to date:
	// sqlite.Opener("file:app.db"). If the store it returns is an io.Closer,
	// it is closed last.
	Open func(ctx context.Context) (schedlock.Store, error)

	// Jobs run on the leader. They need a store that keeps the run ledger.
	Jobs []tasks.Job

	// Mode is Standby by default.
	Mode Mode

	// Workers is how many workers the app was told to run, from a variable
	// such as WORKERS; 0: not said.
	Workers int

	// Lock holds further options of the lock, such as schedlock.WithTTL.
	// schedlock.WithSessionGrace(schedlock.DefaultSessionGrace) is given before
	// them: on PostgreSQL a leader that has died is replaced within seconds.
	Lock []schedlock.Option

	// Drain is how long a shutdown waits for running jobs before it cancels
	// them. 0 means tasks.DefaultDrain (20 s); a negative one is refused.
	Drain time.Duration

	// OnStuck is what happens when jobs do not return although they were
	// cancelled; default tasks.KeepWaiting.
	OnStuck func([]tasks.Run)

	// OnFailure is told of every run that did not succeed; see
	// tasks.WithOnFailure. nil: nobody is.
	OnFailure func(tasks.Failure)

	// OnRun is told of everything that happens to runs on this replica; see
	// tasks.WithOnRun. nil: nobody is.
	OnRun func(tasks.RunEvent)

	// KeepRuns is how many of its newest runs each job keeps in the ledger. 0
	// means tasks.DefaultKeepRuns (10,000); a negative one is refused.
	KeepRuns int

	// Server makes the server that serves while the app runs; nil: none. It is
	// called once the lock exists. Its time-outs are yours to set.
	Server func(*App) *http.Server

	// Stages are the app's own. They start after those that they name, and
	// before HTTP.
	Stages []Stage

	// Log defaults to slog.Default().
	Log *slog.Logger
}

// App is an app's start-up and shutdown: the ready-made stages around its own.
type App struct {
	cfg   Config
	graph *Graph

	store  schedlock.Store
	lock   *schedlock.Lock
	runner *tasks.Runner

	server     *http.Server
	addr       net.Addr
	endStreams context.CancelFunc
	served     chan struct{}
	failed     chan error
	stuck      bool // the runner did not stop in time
}

// NewApp checks the configuration, and says everything that is wrong with it,
// before anything starts.
func NewApp(cfg Config) (*App, error) {
	var errs []error
	if cfg.Open == nil {
		errs = append(errs, errors.New("no Open: say which database has the lock, such as sqlite.Opener(\"file:app.db\")"))
	}
	if cfg.Mode == "" {
		cfg.Mode = Standby
	}
	if cfg.Mode != Standby && cfg.Mode != Strict {
		errs = append(errs, fmt.Errorf("mode %q is neither %q nor %q", cfg.Mode, Standby, Strict))
	}
	if cfg.Workers < 0 {
		errs = append(errs, fmt.Errorf("workers %d is below 0", cfg.Workers))
	}
	if cfg.Mode == Strict && cfg.Workers > 1 {
		errs = append(errs, fmt.Errorf("%w: %d workers: run one worker, or use mode %q", ErrTooManyWorkers, cfg.Workers, Standby))
	}
	if cfg.Drain < 0 {
		errs = append(errs, fmt.Errorf("drain limit %v is below 0", cfg.Drain))
	}
	if cfg.Drain == 0 {
		cfg.Drain = tasks.DefaultDrain
	}
	if cfg.KeepRuns < 0 {
		errs = append(errs, fmt.Errorf("number of runs to keep, %d, is below 0", cfg.KeepRuns))
	}
	if cfg.KeepRuns == 0 {
		cfg.KeepRuns = tasks.DefaultKeepRuns
	}
	if cfg.OnStuck == nil {
		cfg.OnStuck = tasks.KeepWaiting
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	a := &App{cfg: cfg, served: make(chan struct{}), failed: make(chan error, 1)}
	// Both are made again on the real store; here only to check the options.
	lock, err := schedlock.New(noStore{}, a.lockOptions()...)
	if err != nil {
		errs = append(errs, err)
		lock = new(schedlock.Lock) // the jobs are checked all the same
	}
	if _, err := tasks.NewRunner(lock, noLedger{}, cfg.Jobs); err != nil {
		errs = append(errs, err)
	}
	graph, err := New(a.stages(), WithLogger(cfg.Log))
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	a.graph = graph
	return a, nil
}

// noStore stands for the store while options are checked; it is never asked.
type (
	noStore  struct{ schedlock.Store }
	noLedger struct{ ledger.Store }
)

func (a *App) lockOptions() []schedlock.Option {
	return append([]schedlock.Option{schedlock.WithLogger(a.cfg.Log), schedlock.WithSessionGrace(schedlock.DefaultSessionGrace)}, a.cfg.Lock...)
}

func (a *App) stages() []Stage {
	before := []string{StageWorkerMode}
	stages := []Stage{
		{Name: StageDatabase, Start: a.openDatabase, Stop: a.closeDatabase},
		{Name: StageWorkerMode, After: []string{StageDatabase}, Start: a.startWorkerMode, Stop: a.stopRunner,
			// Strict mode may have to watch a stale row for a whole TTL.
			StartTimeout: schedlock.MaxTTL, StopTimeout: a.stopLimit()},
	}
	for _, s := range a.cfg.Stages {
		stages = append(stages, s)
		before = append(before, s.Name)
	}
	if a.cfg.Server != nil {
		stages = append(stages, Stage{Name: StageHTTP, After: before, Start: a.startHTTP, Stop: a.stopHTTP})
		before = append(before, StageHTTP)
	}
	return append(stages, Stage{Name: StageScheduler, After: before,
		Start: a.startScheduler, Stop: a.stopRunner, StopTimeout: a.stopLimit()})
}

// stopLimit is enough for a drain, its cancelled jobs, and the release.
func (a *App) stopLimit() time.Duration { return max(a.cfg.Drain, 0) + 10*time.Second }

// StopBudget is how long Stop may need at most; an orchestrator's grace period
// should be longer.
func (a *App) StopBudget() time.Duration {
	budget := a.stopLimit() + 3*DefaultStopTimeout
	for _, s := range a.cfg.Stages {
		if s.StopTimeout > 0 {
			budget += s.StopTimeout
		} else {
			budget += DefaultStopTimeout
		}
	}
	return budget
}

// Start starts the stages: the database first, then the lock, the app's own
// stages, HTTP, and the scheduler last. If one fails, what had started is
// stopped again.
func (a *App) Start(ctx context.Context) error { return a.graph.Start(ctx) }

// Stop shuts down in reverse: the scheduler drains and releases the lock while
// the app still serves, then HTTP ends, then the database is closed. ctx is
// the budget for all of it; see StopBudget.
func (a *App) Stop(ctx context.Context) error { return a.graph.Stop(ctx) }

// Run starts the app, waits until ctx ends or the server fails, and stops it.
// That ctx ends is no error, also while the app starts.
func (a *App) Run(ctx context.Context) error {
	if err := a.Start(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			return a.Stop(context.WithoutCancel(ctx)) // the errors of its roll-back
		}
		return err
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-a.failed:
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.StopBudget())
	defer cancel()
	return errors.Join(failed, a.Stop(stopCtx))
}

// Lock returns the lock; nil until the stage "database" has started.
func (a *App) Lock() *schedlock.Lock { return a.lock }

// Runner returns what runs the jobs, to trigger, pause and watch them from any
// replica; nil until the stage "database" has started.
func (a *App) Runner() *tasks.Runner { return a.runner }

// Store returns what Open has opened; nil until the stage "database" has
// started.
func (a *App) Store() schedlock.Store { return a.store }

// Addr returns the address that the server listens on; nil until the stage
// "http" has started.
func (a *App) Addr() net.Addr { return a.addr }

func (a *App) openDatabase(ctx context.Context) error {
	store, err := a.cfg.Open(ctx)
	if err != nil {
		return err
	}
	lock, err := schedlock.New(store, a.lockOptions()...)
	if err == nil {
		runs, ok := store.(ledger.Store)
		if !ok {
			err = fmt.Errorf("the store %T keeps no run ledger: it has no methods of ledger.Store", store)
		} else {
			a.runner, err = tasks.NewRunner(lock, runs, a.cfg.Jobs, a.runnerOptions()...)
		}
	}
	if err != nil {
		return errors.Join(err, closeStore(store))
	}
	a.store, a.lock = store, lock
	return nil
}

func (a *App) runnerOptions() []tasks.Option {
	opts := []tasks.Option{tasks.WithLogger(a.cfg.Log), tasks.WithDrain(a.cfg.Drain),
		tasks.WithOnStuck(a.cfg.OnStuck), tasks.WithKeepRuns(a.cfg.KeepRuns)}
	if a.cfg.OnFailure != nil {
		opts = append(opts, tasks.WithOnFailure(a.cfg.OnFailure))
	}
	if a.cfg.OnRun != nil {
		opts = append(opts, tasks.WithOnRun(a.cfg.OnRun))
	}
	return opts
}

func (a *App) closeDatabase(context.Context) error { return closeStore(a.store) }

func closeStore(store schedlock.Store) error {
	if c, ok := store.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func (a *App) startWorkerMode(ctx context.Context) error {
	if a.cfg.Mode == Strict {
		return a.runner.Acquire(ctx)
	}
	a.runner.Campaign()
	return nil
}

func (a *App) startScheduler(context.Context) error {
	a.runner.Start()
	return nil
}

// stopRunner stops the campaign, drains and releases. It is the stop of two
// stages: of the scheduler, and of worker_mode in case that the start came no
// further.
func (a *App) stopRunner(ctx context.Context) error {
	if a.stuck { // it had its time
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Grace)
		defer cancel()
	}
	if err := a.runner.Stop(ctx); err != nil {
		a.stuck = true
		return err // jobs still run: the lock stays held
	}
	return a.lock.Stop(ctx)
}

func (a *App) startHTTP(ctx context.Context) error {
	a.server = a.cfg.Server(a)
	var base context.Context
	base, a.endStreams = context.WithCancel(context.Background())
	own := a.server.BaseContext
	a.server.BaseContext = func(l net.Listener) context.Context {
		if own == nil {
			return base
		}
		ctx, cancel := context.WithCancel(own(l))
		context.AfterFunc(base, cancel)
		return ctx
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cmp.Or(a.server.Addr, ":http")) // as net/http has it
	if err != nil {
		a.endStreams()
		return fmt.Errorf("listen on %q: %w", a.server.Addr, err)
	}
	a.addr = listener.Addr()
	go func() {
		defer close(a.served)
		if err := a.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.failed <- fmt.Errorf("serve on %s: %w", a.addr, err)
		}
	}()
	a.cfg.Log.Info("serving", "addr", a.addr.String())
	return nil
}

// stopHTTP ends open streams at once and lets requests finish.
func (a *App) stopHTTP(ctx context.Context) error {
	a.endStreams()
	err := a.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, a.server.Close())
	}
	<-a.served
	return err
}
