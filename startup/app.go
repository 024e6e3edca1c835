package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/tasks"
	"example.com/schedlock/tasks/queue"
)

// The ready-made stages of an App that its own may name in After.
const (
	StageDatabase   = "database"    // opens the lock's database and migrates it
	StageWorkerMode = "worker_mode" // takes the lock, or stands by for it in the background
)

// Those that start after the app's own.
const (
	stageHTTP      = "http"      // serves, also while the scheduler drains
	stageScheduler = "scheduler" // runs the jobs whenever this replica leads
)

// ErrTooManyWorkers is the fast check of strict mode: a process that says it
// has more than one worker is refused before the database is touched.
var ErrTooManyWorkers = errors.New("more than one worker in strict mode")

// Config is what an app says to embed it all. Only Open is required.
type Config struct {
	// Open opens the lock's database with its tables up to date:
	// sqlite.Opener("file:app.db"), sqlite.Use(db), postgres.Opener(url),
	// postgres.Use(pool) or mysql.Opener(url). If the store it returns is an
	// io.Closer, it is closed last.
	Open func(ctx context.Context) (driver.Store, error)

	// Jobs run on the leader. They need a store that keeps the run ledger.
	Jobs []tasks.Job

	// Strict makes Start fail with a *schedlock.HeldError while another replica
	// holds the lock. Without it a replica is a standby: it serves, and waits in
	// the background until it leads.
	Strict bool

	// Workers is how many workers the app was told to run, from a variable
	// such as WORKERS; 0: not said.
	Workers int

	// Lock holds further options of the lock, such as schedlock.WithTTL.
	// schedlock.WithSessionGrace(5*time.Second) is given before
	// them: on PostgreSQL a leader that has died is replaced within seconds.
	Lock []schedlock.Option

	// Drain is how long a shutdown waits for running jobs before it cancels
	// them. 0 means 20 s; a negative one is refused.
	Drain time.Duration

	// OnStuck is what happens when jobs do not return although they were
	// cancelled, such as func([]tasks.Run) { os.Exit(1) }; see tasks.WithOnStuck.
	// nil: the lock stays held until they return.
	OnStuck func([]tasks.Run)

	// OnRun is told of everything that happens to runs on this replica, such as
	// that one has failed; see tasks.WithOnRun. nil: nobody is.
	OnRun func(tasks.RunEvent)

	// Metrics is what prom.New returns: it is told of the lock and of the runs,
	// and tells "starting" until the database is open. nil: there are none.
	Metrics Metrics

	// KeepRuns is how many of its newest runs each job keeps in the ledger. 0
	// means 10,000; a negative one is refused.
	KeepRuns int

	// Presence lets each replica tell of itself in the lock's database every 30 s,
	// so that operators see how many standbys are ready; see tasks.WithPresence.
	Presence bool

	// NamedLocks holds options of App.Locks, and Queues of App.Queues.
	NamedLocks []named.Option
	Queues     []queue.Option

	// Server makes the server that serves while the app runs; nil: none. It is
	// called once the lock exists. It serves on its Addr, with TLS if its TLSConfig
	// has a certificate. Its time-outs are yours to set. A stop gives
	// the requests that are under way 10 s, and only then ends their contexts.
	// What answers without end, as a stream does, must end itself: see
	// http.Server.RegisterOnShutdown. That of package statuspage does.
	Server func(*App) *http.Server

	// Stages are the app's own. They start after those that they name, and
	// before HTTP and the scheduler, whose stages are called "http" and
	// "scheduler".
	Stages []Stage

	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Metrics observe an app: its lock, its runs, and, once the database is open,
// both as they are. A *prom.Metrics is one.
type Metrics interface {
	Observe(schedlock.Event)
	OnRun(tasks.RunEvent)
	Watch(*schedlock.Lock, *tasks.Runner)
}

// App is an app's start-up and shutdown: the ready-made stages around its own.
type App struct {
	cfg   Config
	graph *Graph

	opened atomic.Pointer[opened]   // nil until the stage "database" has started
	addr   atomic.Pointer[net.Addr] // nil until the stage "http" has started

	server      *http.Server
	endRequests context.CancelFunc
	served      chan struct{}
	failed      chan error
	stuck       atomic.Bool // the runner did not stop in time
}

// opened is what the stage "database" makes, all of it at once: whoever sees
// the lock sees its runner too.
type opened struct {
	store  driver.Store
	lock   *schedlock.Lock
	runner *tasks.Runner
	locks  *named.Locks  // nil: the store has none
	queues *queue.Queues // nil: the store has none
}

// NewApp checks the configuration, and says everything that is wrong with it,
// before anything starts.
func NewApp(cfg Config) (*App, error) {
	var errs []error
	if cfg.Open == nil {
		errs = append(errs, errors.New("no Open: say which database has the lock, "+
			"such as sqlite.Opener(\"file:app.db\")"))
	}
	if cfg.Workers < 0 {
		errs = append(errs, fmt.Errorf("workers %d is below 0", cfg.Workers))
	}
	if cfg.Strict && cfg.Workers > 1 {
		errs = append(errs, fmt.Errorf("%w: %d workers: run one worker, or use standby mode",
			ErrTooManyWorkers, cfg.Workers))
	}
	if cfg.Drain == 0 {
		cfg.Drain = defaultDrain
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	cfg.Log = bounded.Log(cfg.Log)
	a := &App{cfg: cfg, served: make(chan struct{}), failed: make(chan error, 1)}
	_, err := a.open(noStore{}) // it checks the options, and says all that is wrong
	errs = append(errs, err)
	graph, err := New(a.stages(), cfg.Log)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	a.graph = graph
	return a, nil
}

// noStore stands for the store while options are checked; it is never asked.
type noStore struct {
	driver.Store
	runs
}

type runs interface{ ledger.Store }

func (noStore) Named() namedlock.Store { return struct{ namedlock.Store }{} }
func (noStore) Queue() taskqueue.Store { return struct{ taskqueue.Store }{} }

// defaultDrain is that of Config.Drain. How long a stop may take depends on it.
const defaultDrain = 20 * time.Second

// sessionGrace is short, so that on PostgreSQL another leads within seconds of a crash.
const sessionGrace = 5 * time.Second

func (a *App) lockOptions() []schedlock.Option {
	opts := []schedlock.Option{schedlock.WithLogger(a.cfg.Log),
		schedlock.WithSessionGrace(sessionGrace)}
	if a.cfg.Metrics != nil {
		opts = append(opts, schedlock.WithObserver(a.cfg.Metrics.Observe))
	}
	return append(opts, a.cfg.Lock...)
}

func (a *App) stages() []Stage {
	before := []string{StageWorkerMode}
	stages := []Stage{
		{Name: StageDatabase, Start: a.openDatabase, Stop: a.closeDatabase},
		{Name: StageWorkerMode, After: []string{StageDatabase}, Start: a.startWorkerMode,
			Stop: a.stopWorkerMode,
			// Strict mode may have to watch a stale row for a whole TTL.
			StartTimeout: driver.MaxTTL, StopTimeout: a.stopLimit()},
	}
	for _, s := range a.cfg.Stages {
		stages = append(stages, s)
		before = append(before, s.Name)
	}
	if a.cfg.Server != nil {
		stages = append(stages, Stage{Name: stageHTTP, After: before,
			Start: a.startHTTP, Stop: a.stopHTTP})
		before = append(before, stageHTTP)
	}
	return append(stages, Stage{Name: stageScheduler, After: before,
		Start: a.startScheduler, Stop: a.stopScheduler, StopTimeout: a.stopLimit()})
}

// stopLimit is enough for a drain, its cancelled jobs, and the release; and then for
// callbacks and a log that hang.
func (a *App) stopLimit() time.Duration {
	return sum(max(a.cfg.Drain, 0), tasks.StopLimit)
}

// StopBudget is how long Stop may need at most; an orchestrator's grace period
// should be longer.
func (a *App) StopBudget() time.Duration {
	budget := sum(a.stopLimit(), 3*defaultStopTimeout)
	for _, s := range a.cfg.Stages {
		budget = sum(budget, cmp.Or(s.StopTimeout, defaultStopTimeout))
	}
	return budget
}

// sum does not overflow, as a limit of math.MaxInt64 stands for none. Neither is negative.
func sum(a, b time.Duration) time.Duration { return a + min(b, math.MaxInt64-a) }

// Start starts the stages: the database first, then the lock, the app's own
// stages, HTTP, and the scheduler last. If one fails, what had started is
// stopped again.
func (a *App) Start(ctx context.Context) error { return a.graph.Start(ctx) }

// Stop shuts down in reverse: the scheduler drains and releases the lock while
// the app still serves, then HTTP ends, then the database is closed. ctx is
// the budget for all of it; see StopBudget.
func (a *App) Stop(ctx context.Context) error {
	defer bounded.FlushLog(a.cfg.Log, flushLimit)
	return a.graph.Stop(ctx)
}

// flushLimit is how long a stop waits for a log that does not keep up.
const flushLimit = time.Second

// Run starts the app, waits until ctx ends or the server fails, and stops it.
// That ctx ends is no error, also while the app starts. If somebody else stops the
// app, Run returns what that Stop does.
func (a *App) Run(ctx context.Context) error {
	if err := a.Start(ctx); err != nil {
		if errors.Is(err, context.Cause(ctx)) { // which is nil while ctx goes on
			return a.Stop(context.WithoutCancel(ctx)) // the errors of its roll-back
		}
		return err
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-a.failed:
	case <-a.graph.stopOnce.done: // by somebody else's Stop
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.StopBudget())
	defer cancel()
	return errors.Join(failed, a.Stop(stopCtx))
}

// What follows may be asked at any time, also while the app starts.

// Lock returns the lock; nil until the stage "database" has started.
func (a *App) Lock() *schedlock.Lock { return a.database().lock }

// Runner returns what runs the jobs, to trigger, pause and watch them from any
// replica; nil until the stage "database" has started.
func (a *App) Runner() *tasks.Runner { return a.database().runner }

// Store returns what Open has opened; nil until the stage "database" has
// started.
func (a *App) Store() driver.Store { return a.database().store }

// Locks returns the app's named locks, in the lock's database; nil until the
// stage "database" has started, and if the store has none. Config.NamedLocks
// sets their TTL; log and owner are those of the lock.
func (a *App) Locks() *named.Locks { return a.database().locks }

// Queues returns the app's queues, in the lock's database; nil until the stage
// "database" has started, and if the store has none.
func (a *App) Queues() *queue.Queues { return a.database().queues }

// Addr returns the address that the server listens on; nil until the stage
// "http" has started.
func (a *App) Addr() net.Addr {
	if addr := a.addr.Load(); addr != nil {
		return *addr
	}
	return nil
}

func (a *App) database() opened {
	if o := a.opened.Load(); o != nil {
		return *o
	}
	return opened{}
}

func (a *App) openDatabase(ctx context.Context) (err error) {
	store, err := a.cfg.Open(ctx)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // also if Watch has panicked
			err = errors.Join(err, closeStore(store))
		}
	}()
	o, err := a.open(store)
	if err != nil {
		return err
	}
	a.opened.Store(o)
	if a.cfg.Metrics != nil {
		a.cfg.Metrics.Watch(o.lock, o.runner)
	}
	done = true
	return nil
}

// open makes what stands on a store. Its error is all that is wrong with the
// configuration.
func (a *App) open(store driver.Store) (*opened, error) {
	runs, ok := store.(ledger.Store)
	if !ok {
		return nil,
			fmt.Errorf("the store %T keeps no run ledger: it has no methods of ledger.Store", store)
	}
	o := &opened{store: store}
	var lockErr, runnerErr, namedErr, queueErr error
	if o.lock, lockErr = schedlock.New(store, a.lockOptions()...); lockErr != nil {
		o.lock = new(schedlock.Lock) // the rest is checked all the same
	}
	o.runner, runnerErr = tasks.NewRunner(o.lock, runs, a.cfg.Jobs, a.runnerOptions()...)
	if s, ok := store.(interface{ Named() namedlock.Store }); ok {
		opts := []named.Option{named.WithLogger(a.cfg.Log)}
		if lockErr == nil {
			opts = append(opts, named.WithOwner(o.lock.Owner()))
		}
		o.locks, namedErr = named.New(s.Named(), append(opts, a.cfg.NamedLocks...)...)
	}
	if s, ok := store.(interface{ Queue() taskqueue.Store }); ok {
		o.queues, queueErr = queue.New(s.Queue(), a.cfg.Queues...)
	}
	return o, errors.Join(lockErr, runnerErr, namedErr, queueErr)
}

func (a *App) runnerOptions() []tasks.Option {
	opts := []tasks.Option{tasks.WithLogger(a.cfg.Log), tasks.WithDrain(a.cfg.Drain)}
	if a.cfg.KeepRuns != 0 {
		opts = append(opts, tasks.WithKeepRuns(a.cfg.KeepRuns))
	}
	if a.cfg.Presence {
		opts = append(opts, tasks.WithPresence())
	}
	if a.cfg.OnStuck != nil {
		opts = append(opts, tasks.WithOnStuck(a.cfg.OnStuck))
	}
	if a.cfg.Metrics != nil {
		opts = append(opts, tasks.WithOnRun(a.cfg.Metrics.OnRun))
	}
	if a.cfg.OnRun != nil {
		opts = append(opts, tasks.WithOnRun(a.cfg.OnRun))
	}
	return opts
}

func (a *App) closeDatabase(context.Context) error { return closeStore(a.Store()) }

func closeStore(store driver.Store) error {
	if c, ok := store.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func (a *App) startWorkerMode(ctx context.Context) error {
	if a.cfg.Strict {
		return a.Runner().Acquire(ctx)
	}
	if err := a.Lock().CheckApp(ctx); err != nil {
		return err
	}
	a.Runner().Campaign()
	return nil
}

func (a *App) startScheduler(context.Context) error {
	a.Runner().Start()
	return nil
}

// stopScheduler stops the campaign, drains and releases. If only the row is left
// that is no error: worker_mode tries again when HTTP has ended.
func (a *App) stopScheduler(ctx context.Context) error {
	err := a.Runner().Stop(ctx)
	switch {
	case err == nil:
		_ = a.Lock().Stop(ctx)
	case ctx.Err() != nil:
		a.stuck.Store(true)
		return err // jobs still run: the lock stays held
	}
	return nil
}

// stopWorkerMode does the same if the start came no further, or if the release
// did not succeed.
func (a *App) stopWorkerMode(ctx context.Context) error {
	if a.stuck.Load() { // it had its time
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, grace)
		defer cancel()
	}
	if err := a.Runner().Stop(ctx); err != nil {
		return err
	}
	return a.Lock().Stop(ctx)
}

func (a *App) startHTTP(ctx context.Context) error {
	if a.server = a.cfg.Server(a); a.server == nil {
		return errors.New("Config.Server has returned nil; without a server, set no Config.Server")
	}
	var base context.Context
	base, a.endRequests = context.WithCancel(context.Background())
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
		a.endRequests()
		return fmt.Errorf("listen on %q: %w", a.server.Addr, err)
	}
	addr := listener.Addr()
	a.addr.Store(&addr)
	go func() {
		defer close(a.served)
		if err := serve(a.server, listener); !errors.Is(err, http.ErrServerClosed) {
			a.cfg.Log.Error("the HTTP server has failed", "addr", addr.String(), "err", err)
			a.failed <- fmt.Errorf("serve on %s: %w", addr, err)
		}
	}()
	a.cfg.Log.Info("serving", "addr", addr.String())
	return nil
}

// serve speaks TLS where a certificate is named: by the rule of [http.Server.ServeTLS].
func serve(s *http.Server, l net.Listener) error {
	t := s.TLSConfig
	if t == nil ||
		len(t.Certificates) == 0 && t.GetCertificate == nil && t.GetConfigForClient == nil {
		return s.Serve(l)
	}
	return s.ServeTLS(l, "", "")
}

// stopHTTP lets requests finish, and ends the contexts of those that do not in time.
func (a *App) stopHTTP(ctx context.Context) error {
	defer a.endRequests()
	err := a.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, a.server.Close())
	}
	<-a.served
	return err
}
