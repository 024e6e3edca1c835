package docs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/schedlock/statuspage"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"

	_ "github.com/jackc/pgx/v5/stdlib" // the app's driver in upgrading.md
)

// The snippets of the README and of the pages in docs stand here, in the context
// that they need. TestGoSnippetsAreFromCodeThatRuns compares them.

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// patience is how long a test waits for what takes milliseconds.
const patience = time.Minute

// folder gives the test a folder of its own, where "file:app.db" is a new file,
// and silences the log.
func folder(t *testing.T) {
	t.Chdir(t.TempDir())
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { slog.SetDefault(old) })
}

// held reports whether somebody leads on the file app.db.
func held() bool {
	var info *schedlock.LockInfo
	err := sqlite.Read(context.Background(), "file:app.db", func(ctx context.Context, store *sqlite.Store) (err error) {
		info, err = schedlock.GetLockInfo(ctx, store)
		return err
	})
	return err == nil && info != nil
}

func eventually(t *testing.T, condition func() bool, what string) {
	require.Eventually(t, condition, patience, 5*time.Millisecond, what)
}

// whileHeld is a context that ends once somebody has led, as at SIGTERM.
func whileHeld(t *testing.T) context.Context {
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		for end := time.Now().Add(patience); !held() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		}
	}()
	t.Cleanup(stop)
	return ctx
}

// README.md: embed it.
func TestAnAppThatEmbedsIt(t *testing.T) {
	folder(t)
	ctx := whileHeld(t)
	cleanUp := func(context.Context) error { return nil }

	app, err := startup.NewApp(startup.Config{
		Open: sqlite.Opener("file:app.db"), // or postgres.Opener("postgres://app@db/app")
		Jobs: []tasks.Job{{
			Name: "clean-up",
			Spec: tasks.Every(time.Hour),
			Do:   func(ctx context.Context, run tasks.Run) error { return cleanUp(ctx) },
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := app.Run(ctx); err != nil { // until ctx ends; then it drains, releases and closes
		log.Fatal(err)
	}

	assert.ErrorIs(t, ctx.Err(), context.Canceled)
	assert.False(t, held(), "released")
}

// README.md: only the lock.
func TestOnlyTheLock(t *testing.T) {
	folder(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	work := func(ctx context.Context) error {
		assert.True(t, held())
		stop()
		<-ctx.Done()
		return ctx.Err()
	}
	lead := func(ctx context.Context) error {
		store, err := sqlite.Opener("file:app.db").Open(ctx)
		if err != nil {
			return err
		}
		defer store.Close()
		lock, err := schedlock.New(store)
		if err != nil {
			return err
		}
		return lock.Run(ctx, func(ctx context.Context, lease *schedlock.Lease) error {
			return work(ctx) // while this replica leads; ctx ends when it no longer does
		})
	}
	require.NoError(t, lead(ctx))
	assert.False(t, held(), "released")
}

func open(t *testing.T) *sqlite.Store {
	folder(t)
	store, err := sqlite.Opener("file:app.db").Open(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return store
}

// README.md: an existing gocron app.
func TestAGocronAppHasOneLeader(t *testing.T) {
	store, ran := open(t), make(chan struct{}, 1000)
	ctx := t.Context()
	app := func() error {
		lock, err := schedlock.New(store)
		if err != nil {
			return err
		}
		lock.Start() // campaigns in the background
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(lock))
		if err != nil {
			return err
		}
		_, err = scheduler.NewJob(gocron.DurationJob(10*time.Millisecond), gocron.NewTask(func() { ran <- struct{}{} }))
		if err != nil {
			return err
		}
		scheduler.Start()
		select {
		case <-ran:
		case <-time.After(patience):
		}
		assert.True(t, held())

		err = scheduler.Shutdown()             // first: its jobs return
		err = errors.Join(err, lock.Stop(ctx)) // last: another replica leads at once
		return err
	}
	require.NoError(t, app())
	assert.False(t, held(), "released")
}

// docs/jobs.md: a job with all its policies.
func TestAJobWithItsPolicies(t *testing.T) {
	importLists := func(context.Context, tasks.Run) error { return nil }
	job := tasks.Job{
		Name:    "import",
		Spec:    tasks.Cron("30 2 * * *", "Europe/Berlin"), // or tasks.Every(time.Hour)
		Do:      importLists,
		CatchUp: tasks.Latest,
		Overlap: tasks.OverlapSkip,
		Retry:   tasks.Retry{Attempts: 5, Backoff: 10 * time.Second},
		Timeout: 10 * time.Minute,
	}
	_, err := startup.NewApp(startup.Config{Open: sqlite.Opener("file:app.db"), Jobs: []tasks.Job{job}})
	require.NoError(t, err)
}

// start starts an app that leads, with jobs that run at once.
func start(t *testing.T, store *sqlite.Store, jobs ...tasks.Job) *startup.App {
	for i := range jobs {
		jobs[i].AtOnce = true
	}
	app, err := startup.NewApp(startup.Config{
		Open: func(context.Context) (driver.Store, error) { return keep{store}, nil },
		Jobs: jobs,
	})
	require.NoError(t, err)
	require.NoError(t, app.Start(t.Context()))
	t.Cleanup(func() { assert.NoError(t, app.Stop(context.Background())) })
	eventually(t, func() bool { return app.Lock().IsLeader(t.Context()) == nil }, "leads")
	return app
}

// keep is a store that its app does not close.
type keep struct{ *sqlite.Store }

func (keep) Close() error { return nil }

// docs/jobs.md: the fence, and a mark that no attempt repeats.
func TestAFencedJob(t *testing.T) {
	store := open(t)
	db := store.DB()
	_, err := db.ExecContext(t.Context(), `CREATE TABLE imported (job TEXT, tick INTEGER, PRIMARY KEY (job, tick))`)
	require.NoError(t, err)
	importOnce := func(ctx context.Context, run tasks.Run) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := run.Lease.Fence(ctx, tx); err != nil { // the first statement
			return err
		}
		mark, err := tx.ExecContext(ctx, `
INSERT INTO imported (job, tick) VALUES (?, ?) ON CONFLICT DO NOTHING`,
			run.Job, run.ScheduledAt.UnixMicro())
		if err != nil {
			return err
		}
		if n, err := mark.RowsAffected(); err != nil || n == 0 {
			return err // nil: an earlier attempt has done it
		}
		// … what is to happen once for this tick
		return tx.Commit()
	}
	app := start(t, store, tasks.Job{Name: "import", Spec: tasks.Every(time.Hour),
		Do: func(ctx context.Context, run tasks.Run) error {
			err := importOnce(ctx, run)
			if err == nil && run.Attempt == 1 {
				return errors.New("the answer to the commit was lost")
			}
			return err
		},
		Retry: tasks.Retry{Attempts: 2, Backoff: time.Millisecond},
	})
	eventually(t, func() bool {
		infos, err := app.Runner().Jobs(t.Context())
		return err == nil && len(infos) == 1 && infos[0].Done == 1
	}, "the second attempt finds the mark")
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM imported`).Scan(&n))
	require.Equal(t, 1, n)
}

// docs/jobs.md: from any replica.
func TestOrdersFromAnyReplica(t *testing.T) {
	app := start(t, open(t), tasks.Job{Name: "import", Spec: tasks.Every(time.Hour), Do: func(context.Context, tasks.Run) error { return nil }})
	ctx := t.Context()
	eventually(t, func() bool {
		infos, err := app.Runner().Jobs(ctx)
		return err == nil && len(infos) == 1 && infos[0].Done == 1
	}, "the leader has the job")
	runner := app.Runner()
	importNow := func() error {
		request, err := runner.Trigger(ctx, "import", "alice", "the list is new")
		if err != nil {
			return err
		}
		run, err := runner.Await(ctx, request) // its outcome, retries included
		if err != nil {
			return err
		}
		fmt.Println(run.Status, run.Error)
		return nil
	}
	require.NoError(t, importNow())
	maintain := func() error {
		pause, err := runner.Pause(ctx, "import", "alice", "the disk is full") // PauseAll: every job
		if err != nil {
			return err
		}
		fmt.Println("nothing starts since", pause.Since)
		resumed, err := runner.Resume(ctx, "import", "alice")
		if err != nil {
			return err
		}
		infos, err := runner.Jobs(ctx) // last success and failure, next tick, average, failures in a row
		if err != nil {
			return err
		}
		fmt.Println(resumed, infos[0].Next)
		return nil
	}
	require.NoError(t, maintain())
}

// docs/databases.md: PostgreSQL, and upgrading.md: tables made by an administrator.
func TestPostgreSQL(t *testing.T) {
	folder(t)
	url := pgtest.Shared(t).Database(t)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	ctx := t.Context()
	migrate := func() error {
		if err := migrations.Up(ctx, db, migrations.PostgreSQL); err != nil {
			return err
		}
		return nil
	}
	require.NoError(t, migrate())
	runOnPostgreSQL(t, url)
	runOnAPool(t, url)
}

// docs/operating.md: the page, the metrics and the probes.
func TestTheServerOfAnApp(t *testing.T) {
	folder(t)
	jobs := []tasks.Job{{Name: "import", Spec: tasks.Every(time.Hour), AtOnce: true, Do: func(context.Context, tasks.Run) error { return nil }}}
	const addr = "127.0.0.1:0"
	login := func(next http.Handler) http.Handler { return next }

	m := prom.New(prom.WithJobs(jobs))
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	mux := http.NewServeMux()
	app, err := startup.NewApp(startup.Config{
		Open:    sqlite.Opener("file:app.db"),
		Jobs:    jobs,
		Metrics: m,
		Server:  func(*startup.App) *http.Server { return &http.Server{Addr: addr, Handler: mux} },
	})
	if err != nil {
		log.Fatal(err)
	}
	page, err := statuspage.New(statuspage.Config{App: app}) // also before the app starts
	if err != nil {
		log.Fatal(err)
	}
	mux.Handle("/scheduler/", login(page)) // the login of the operators
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		if err := app.Lock().Healthy(0); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if _, err := schedlock.GetLockInfo(r.Context(), app.Store()); err != nil {
			http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		}
	})
	require.NoError(t, app.Start(t.Context()))
	defer func() { assert.NoError(t, app.Stop(context.Background())) }()
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/scheduler/"} {
		answer, err := http.Get("http://" + app.Addr().String() + path)
		require.NoError(t, err)
		assert.NoError(t, answer.Body.Close())
		assert.Equal(t, http.StatusOK, answer.StatusCode, path)
	}
}

// docs/operating.md: who leads, in code.
func TestWhoLeads(t *testing.T) {
	store := open(t)
	ctx := t.Context()
	say := func() error {
		info, err := schedlock.GetLockInfo(ctx, store)
		switch {
		case err != nil:
			return err // can't tell: this is never the same as "free"
		case info == nil:
			fmt.Println("nobody leads")
		default:
			fmt.Println(info.PID, info.Hostname, info.Age, info.HeartbeatAge, info.Term)
		}
		return nil
	}
	require.NoError(t, say())
}

// docs/upgrading.md: nobody else makes the app's tables meanwhile.
func TestTheAppsOwnTables(t *testing.T) {
	store := open(t)
	db := store.DB()
	another, err := named.New(store.Named())
	require.NoError(t, err)
	goose := func(ctx context.Context) error {
		_, err := another.TryLock(ctx, "tables")
		var held *named.HeldError
		assert.ErrorAs(t, err, &held)
		return nil
	}

	var app *startup.App
	app, err = startup.NewApp(startup.Config{
		Open: sqlite.Use(db), // goose uses db too
		Stages: []startup.Stage{{
			Name:         "tables",
			After:        []string{startup.StageDatabase},
			StartTimeout: 10 * time.Minute, // for the longest migration; default 30 s
			Start: func(ctx context.Context) error {
				return app.Locks().WithLock(ctx, "tables", func(ctx context.Context, _ *named.Lock) error {
					return goose(ctx) // one replica at a time
				})
			},
		}},
	})
	require.NoError(t, err)
	require.NoError(t, app.Start(t.Context()))
	require.NoError(t, app.Stop(t.Context()))
}
