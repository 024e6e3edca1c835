package startup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
	"example.com/schedlock/tasks/queue"
)

var (
	silence = slog.New(slog.DiscardHandler)
	tooLong = 20 * time.Second // for a condition that comes at once
)

// A database writes down what an app does to it.
type database struct {
	*memory.Store
	d *diary

	mu        sync.Mutex
	onRelease func()
	onClose   func()
}

func newDatabase(d *diary) *database { return &database{Store: memory.New(), d: d} }

func (db *database) open(context.Context) (driver.Store, error) {
	db.d.write("open")
	return db, nil
}

func (db *database) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := db.Store.Acquire(ctx, c)
	if err == nil {
		db.d.write("acquire")
	}
	return g, err
}

func (db *database) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (bool, error) {
	deleted, err := db.Store.Release(ctx, ref, reason)
	if deleted {
		db.d.write("release")
		db.call(&db.onRelease)
	}
	return deleted, err
}

func (db *database) Close() error {
	db.call(&db.onClose)
	db.d.write("close")
	return nil
}

func (db *database) call(f *func()) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if *f != nil {
		(*f)()
	}
}

// hold makes somebody else the leader.
func (db *database) hold(t *testing.T) {
	t.Helper()
	other, err := schedlock.New(db.Store, schedlock.WithLogger(silence),
		schedlock.WithOwner(driver.Owner{PID: 7, Hostname: "elsewhere"}))
	require.NoError(t, err)
	lease, err := other.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { lease.Release(context.Background()) })
}

func (db *database) info(t *testing.T) *schedlock.LockInfo {
	t.Helper()
	info, err := schedlock.GetLockInfo(context.Background(), db.Store)
	require.NoError(t, err)
	return info
}

// waitFor waits for a condition that comes soon.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(tooLong); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, tooLong)
		}
	}
}

func newApp(t *testing.T, cfg startup.Config) *startup.App {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = silence
	}
	app, err := startup.NewApp(cfg)
	require.NoError(t, err)
	return app
}

// atOnce is one job, which runs as soon as somebody leads.
func atOnce(name string, do func()) []tasks.Job {
	return []tasks.Job{{Name: name, Spec: tasks.Every(time.Hour), AtOnce: true,
		Do: func(context.Context, tasks.Run) error { do(); return nil }}}
}

// serveNothing is a server that has no page, on any port.
func serveNothing(*startup.App) *http.Server {
	return &http.Server{Addr: "127.0.0.1:0", Handler: http.NotFoundHandler()}
}

// get asks the app's server; every request has a connection of its own.
func get(url string) (int, error) {
	client := &http.Client{Timeout: tooLong, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func TestAnAppStartsAndStopsInItsOrder(t *testing.T) {
	for mode, strict := range map[string]bool{"standby": false, "strict": true} {
		t.Run(mode, func(t *testing.T) {
			var d diary
			db := newDatabase(&d)
			own := d.stage("own", nil, nil)
			first := d.stage("before own", nil, nil)
			own.After = []string{"before own"}
			ran := make(chan struct{})
			app := newApp(t, startup.Config{
				Open:   db.open,
				Strict: strict,
				Jobs: atOnce("j", func() {
					d.write("job runs")
					close(ran)
				}),
				Stages: []startup.Stage{own, first},
				Server: func(a *startup.App) *http.Server {
					assert.NotNil(t, a.Lock())
					assert.NotNil(t, a.Store())
					if !strict { // campaigns in the background
						waitFor(t, "the lock", func() bool { return a.Lock().Lease() != nil })
					}
					d.write("server made")
					return serveNothing(a)
				},
			})
			require.Nil(t, app.Lock())
			require.Nil(t, app.Addr())
			require.NoError(t, app.Start(t.Context()))
			url := "http://" + app.Addr().String()
			served := func() string {
				_, err := get(url)
				return fmt.Sprint("serves: ", err == nil)
			}
			<-ran
			db.onRelease = func() { d.write(served()) }
			db.onClose = func() { d.write(served()) }
			require.NoError(t, app.Stop(t.Context()))

			lines := d.read()
			if !strict { // not in step with the others
				at := slices.Index(lines, "acquire")
				require.Greater(t, at, slices.Index(lines, "open"))
				lines = slices.Insert(slices.Delete(slices.Clone(lines), at, at+1), 1, "acquire")
			}
			assert.Equal(t, []string{
				"open", "acquire", "start before own", "start own", "server made", "job runs",
				"release", "serves: true", "stop own", "stop before own", "serves: false", "close",
			}, lines)
		})
	}
}

func TestEveryMistakeInAConfigIsNamedAtOnce(t *testing.T) {
	_, err := startup.NewApp(startup.Config{
		Workers: -1, Drain: -time.Second, Log: silence,
		Jobs: []tasks.Job{{Name: "idle"}},
		Lock: []schedlock.Option{schedlock.WithTTL(25 * time.Hour),
			schedlock.WithOwner(driver.Owner{PID: -1, Hostname: "h"})},
		NamedLocks: []named.Option{named.WithTTL(time.Millisecond)},
		Queues:     []queue.Option{queue.WithTimeout(0)},
		Stages:     []startup.Stage{{Name: "http"}, {Name: "own", After: []string{"databse"}}},
		Server:     func(*startup.App) *http.Server { return nil },
	})
	require.Error(t, err)
	for _, want := range []string{
		"configuration: ", "no Open",
		"workers -1 is below 0", "drain limit -1s is below 0",
		"TTL 25h0m0s is above 24h0m0s", "pid -1 is not above 0",
		`job "idle" has nothing to do`, `job "idle": schedule is empty`,
		"named locks: option WithTTL: TTL 1ms is below 40ms", "queue: time-out 0s is not",
		`"http"`, `After names "databse"`,
	} {
		assert.ErrorContains(t, err, want)
	}
}

// They start before HTTP and the scheduler.
func TestAStageOfTheAppCannotWaitForHTTPOrTheScheduler(t *testing.T) {
	for _, late := range []string{"http", "scheduler"} {
		var d diary
		_, err := startup.NewApp(startup.Config{Open: newDatabase(&d).open, Log: silence,
			Server: serveNothing, Stages: []startup.Stage{{Name: "own", After: []string{late}}}})
		assert.ErrorContains(t, err, "stages wait for each other: own → "+late+" → own")
	}
}

func TestMoreThanOneWorkerIsRefusedInStrictModeBeforeTheDatabaseIsTouched(t *testing.T) {
	var d diary
	_, err := startup.NewApp(startup.Config{Open: newDatabase(&d).open, Strict: true,
		Workers: 4, Log: silence})
	require.ErrorIs(t, err, startup.ErrTooManyWorkers)
	assert.ErrorContains(t, err, "4 workers")
	assert.Empty(t, d.read())
	for _, ok := range []startup.Config{{Strict: true, Workers: 1}, {Strict: true},
		{Workers: 4}} {
		ok.Open, ok.Log = newDatabase(&d).open, silence
		_, err := startup.NewApp(ok)
		assert.NoError(t, err)
	}
}

func TestStrictModeRefusesToStartWhileAnotherHoldsTheLock(t *testing.T) {
	var d diary
	db := newDatabase(&d)
	db.hold(t)
	app := newApp(t, startup.Config{
		Open: db.open, Strict: true, Stages: []startup.Stage{d.stage("own", nil, nil)},
		Server: func(*startup.App) *http.Server {
			t.Error("no server may be made")
			return &http.Server{}
		},
	})
	err := app.Run(t.Context())
	held, ok := errors.AsType[*schedlock.HeldError](err)
	require.True(t, ok, "%v", err)
	assert.ErrorIs(t, err, schedlock.ErrHeld)
	assert.Equal(t, 7, held.Info.PID)
	stage, ok := errors.AsType[*startup.StageError](err)
	require.True(t, ok)
	assert.Equal(t, startup.StageWorkerMode, stage.Stage)
	assert.Equal(t, []string{"open", "close"}, d.read())
	assert.Equal(t, 7, db.info(t).PID, "the other still holds it")
}

func TestStandbyServesWhileAnotherHoldsTheLock(t *testing.T) {
	var d diary
	db := newDatabase(&d)
	db.hold(t)
	app := newApp(t, startup.Config{Open: db.open, Server: serveNothing})
	require.NoError(t, app.Start(t.Context()))
	status, err := get("http://" + app.Addr().String())
	assert.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, status)
	waitFor(t, "standby", func() bool { return app.Lock().Status().State == schedlock.SelfStandby })
	require.NoError(t, app.Stop(t.Context()))
	assert.Equal(t, []string{"open", "close"}, d.read())
	assert.Equal(t, schedlock.SelfStopped, app.Lock().Status().State)
}

func TestAServerWithACertificateSpeaksTLS(t *testing.T) {
	var d diary
	db := newDatabase(&d)
	other := httptest.NewTLSServer(nil) // for its certificate
	defer other.Close()
	app := newApp(t, startup.Config{Open: db.open, Strict: true,
		Server: func(*startup.App) *http.Server {
			return &http.Server{Addr: "127.0.0.1:0", TLSConfig: other.TLS.Clone()}
		}})
	require.NoError(t, app.Start(t.Context()))
	client := other.Client()
	client.Timeout = tooLong
	resp, err := client.Get("https://" + app.Addr().String())
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusNotFound, resp.StatusCode)
	status, err := get("http://" + app.Addr().String())
	assert.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, status, "nothing without TLS")
	client.CloseIdleConnections()
	require.NoError(t, app.Stop(t.Context()))
}

func TestAStageThatFailsRollsBackTheLockAndTheDatabase(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	bad := errors.New("no licence")
	for name, tc := range map[string]struct {
		cfg    startup.Config
		wants  string
		failed string
	}{
		"an own stage": {startup.Config{Stages: []startup.Stage{{Name: "own", Start: fail(bad)}}},
			`stage "own": start: no licence`, "own"},
		"a panic": {startup.Config{Stages: []startup.Stage{{Name: "own", Start: explode}}},
			"a value", "own"},
		"the address is taken": {startup.Config{Server: func(*startup.App) *http.Server {
			return &http.Server{Addr: taken.Addr().String()}
		}},
			fmt.Sprintf("listen on %q: ", taken.Addr().String()), "http"},
		"a server that cannot be made": {startup.Config{Server: func(*startup.App) *http.Server {
			panic("no certificate")
		}}, "no certificate", "http"},
		"no server": {startup.Config{Server: func(*startup.App) *http.Server { return nil }},
			"Config.Server has returned nil", "http"},
	} {
		t.Run(name, func(t *testing.T) {
			var d diary
			db := newDatabase(&d)
			tc.cfg.Open, tc.cfg.Strict = db.open, true
			tc.cfg.Jobs = atOnce("j", func() { d.write("job runs") })
			app := newApp(t, tc.cfg)
			err := app.Start(t.Context())
			require.ErrorContains(t, err, tc.wants)
			stage, ok := errors.AsType[*startup.StageError](err)
			require.True(t, ok)
			assert.Equal(t, tc.failed, stage.Stage)
			assert.Equal(t, []string{"open", "acquire", "release", "close"}, d.read())
			assert.Nil(t, db.info(t))
			assert.NoError(t, app.Stop(t.Context()))
		})
	}
}

func TestADatabaseThatCannotBeOpenedEndsTheStart(t *testing.T) {
	bad := errors.New("no such host")
	app := newApp(t, startup.Config{Open: func(context.Context) (driver.Store, error) {
		return nil, bad
	}})
	err := app.Run(t.Context())
	require.ErrorIs(t, err, bad)
	assert.ErrorContains(t, err, `stage "database": start: no such host`)
}

// lockOnly is a store without a ledger.
type lockOnly struct {
	driver.Store
	io.Closer
}

func TestAStoreWithoutALedgerIsRefusedAndClosed(t *testing.T) {
	var d diary
	db := newDatabase(&d)
	app := newApp(t, startup.Config{Open: func(context.Context) (driver.Store, error) {
		return lockOnly{db.Store, db}, nil
	}})
	assert.ErrorContains(t, app.Start(t.Context()), "keeps no run ledger")
	assert.Equal(t, []string{"close"}, d.read())
}

// An app's own probe may ask at any moment: run it with -race.
func TestAnAppMayBeAskedWhileItStartsAndStops(t *testing.T) {
	for range 20 {
		var d diary
		db := newDatabase(&d)
		app := newApp(t, startup.Config{Open: db.open, Server: serveNothing})
		ctx, cancel := context.WithCancel(t.Context())
		ask := func() (ready bool) {
			lock := app.Lock()
			if lock == nil {
				return false
			}
			assert.Equal(t, app.Store(), lock.Store(), "all of the database is there at once")
			assert.NotNil(t, app.Queues())
			_, err := app.Locks().Locked(t.Context(), "import")
			assert.NoError(t, err)
			lock.Status()
			_ = lock.Healthy(0)
			_, err = app.Runner().Jobs(t.Context())
			assert.NoError(t, err)
			return app.Addr() != nil && lock.Lease() != nil && lock.IsLeader(t.Context()) == nil
		}
		var asking sync.WaitGroup
		for range 2 {
			asking.Go(func() {
				for ctx.Err() == nil && !ask() {
					runtime.Gosched()
				}
				cancel()
				for range 100 {
					ask()
				}
			})
		}
		assert.NoError(t, app.Run(ctx))
		asking.Wait()
		cancel()
	}
}

// Two apps that were both named, on one lock: the second one says so at its start.
func TestAnAppRefusesToStartWhileAnotherLeadsWithItsLock(t *testing.T) {
	db := newDatabase(&diary{})
	appOf := func(name string, strict bool) *startup.App {
		return newApp(t, startup.Config{Open: db.open, Strict: strict,
			Lock: []schedlock.Option{schedlock.WithApp(name)}})
	}
	shop := appOf("shop", true)
	require.NoError(t, shop.Start(t.Context()))
	for _, strict := range []bool{false, true} {
		err := appOf("billing", strict).Start(t.Context())
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, `stage "worker_mode": start: needs an operator: `+
			`scheduler lock: another app, "shop", leads with this lock`)
		require.ErrorContains(t, err, `postgres.WithSchema("...")`)
	}
	replica := appOf("shop", false)
	require.NoError(t, replica.Start(t.Context()), "of the same app")
	require.NoError(t, replica.Stop(t.Context()))
	require.NoError(t, shop.Stop(t.Context()))

	billing := appOf("billing", false)
	require.NoError(t, billing.Start(t.Context()))
	waitFor(t, "the lock", func() bool { return billing.Lock().IsLeader(t.Context()) == nil })
	require.NoError(t, billing.Stop(t.Context()))
}
