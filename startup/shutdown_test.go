package startup_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

func TestADrainingAppServesAndItsOpenStreamsEndAtOnce(t *testing.T) {
	var d diary
	db := newDatabase(&d)
	running, mayReturn := make(chan struct{}), make(chan struct{})
	ending := make(chan struct{})
	mux := http.NewServeMux()
	var app *startup.App
	mux.HandleFunc("/state", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, string(app.Lock().Status().State))
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello\n")
		w.(http.Flusher).Flush()
		<-ending
	})
	app = newApp(t, startup.Config{
		Open: db.open,
		Jobs: atOnce("j", func() { close(running); <-mayReturn }),
		Server: func(*startup.App) *http.Server {
			server := &http.Server{Addr: "127.0.0.1:0", Handler: mux}
			server.RegisterOnShutdown(func() { close(ending) })
			return server
		},
	})
	require.NoError(t, app.Start(t.Context()))
	url := "http://" + app.Addr().String()
	<-running
	stream,
		err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url +
		"/stream")
	require.NoError(t, err)
	defer stream.Body.Close()
	hello, err := bufio.NewReader(stream.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", hello)

	stopped := make(chan error, 1)
	go func() { stopped <- app.Stop(context.Background()) }()
	waitFor(t, "the page says that it drains", func() bool {
		resp, err := http.Get(url + "/state")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && string(body) == string(schedlock.SelfDraining)
	})
	require.NotNil(t, db.info(t), "held while the job runs")
	require.Empty(t, stopped)
	http.DefaultClient.CloseIdleConnections()
	close(mayReturn)
	begin := time.Now()
	require.NoError(t, <-stopped)
	assert.Less(t, time.Since(begin), 10*time.Second, "the stream would have lasted for ever")
	assert.Equal(t, []string{"open", "acquire", "release", "close"}, d.read())
}

// A handler that asks a database with the context of its request can still do so.
func TestAStopLetsRequestsFinish(t *testing.T) {
	began, stopping := make(chan struct{}), make(chan struct{})
	app := newApp(t, startup.Config{Open: newDatabase(&diary{}).open,
		Server: func(*startup.App) *http.Server {
			server := &http.Server{Addr: "127.0.0.1:0",
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(began)
					<-stopping
					if err := r.Context().Err(); err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
					}
				})}
			server.RegisterOnShutdown(func() { close(stopping) })
			return server
		}})
	require.NoError(t, app.Start(t.Context()))
	answered := make(chan int, 1)
	go func() {
		status, err := get("http://" + app.Addr().String())
		assert.NoError(t, err)
		answered <- status
	}()
	<-began
	require.NoError(t, app.Stop(context.Background()))
	assert.Equal(t, http.StatusOK, <-answered)
}

// The request has a body that nobody reads, so net/http does not notice the end of its
// connection.
func TestTheContextOfARequestThatOutlastsAStopEnds(t *testing.T) {
	missing.Long(t, "waits for a second")
	for name, own := range map[string]func(net.Listener) context.Context{
		"": nil,
		"with a context of its own": func(net.Listener) context.Context {
			return context.Background()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began, ended := make(chan struct{}), make(chan struct{})
			app := newApp(t, startup.Config{Open: newDatabase(&diary{}).open,
				Server: func(*startup.App) *http.Server {
					return &http.Server{Addr: "127.0.0.1:0", BaseContext: own,
						Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
							close(began)
							<-r.Context().Done()
							close(ended)
						})}
				}})
			require.NoError(t, app.Start(t.Context()))
			conn, err := net.Dial("tcp", app.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n")
			require.NoError(t, err)
			<-began
			noTime, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorContains(t, app.Stop(noTime), `stage "http": stop`)
			select {
			case <-ended:
			case <-time.After(tooLong):
				t.Error("it goes on after the stop")
			}
		})
	}
}

func TestAStuckJobKeepsTheLockThroughTheShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		db := newDatabase(&d)
		mayReturn := make(chan struct{})
		app := newApp(t, startup.Config{
			Open: db.open, Strict: true, Drain: 5 * time.Second,
			Jobs:    atOnce("deaf", func() { <-mayReturn }),
			OnStuck: func(runs []tasks.Run) { d.write("stuck: " + runs[0].Job) },
		})
		require.NoError(t, app.Start(t.Context()))
		synctest.Wait()
		budget, cancel := context.WithTimeout(t.Context(), app.StopBudget())
		defer cancel()
		begin := time.Now()
		err := app.Stop(budget)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 5*time.Second+tasks.StopLimit+grace, time.Since(begin), "not twice")
		assert.Contains(t, d.read(), "stuck: deaf")
		assert.NotContains(t, d.read(), "release")
		require.NotNil(t, db.info(t), "nobody else may lead while it runs")
		close(mayReturn)
		synctest.Wait()
		assert.Nil(t, db.info(t))
	})
}

func TestRunEndsWithItsContextAlsoWhileTheAppStarts(t *testing.T) {
	bad := errors.New("cannot stop")
	for name, why := range map[string]error{"cancelled": nil,
		"by a signal": errors.New("terminated")} {
		t.Run(name, func(t *testing.T) {
			var d diary
			db := newDatabase(&d)
			ctx, cancel := context.WithCancelCause(t.Context())
			app := newApp(t, startup.Config{Open: db.open,
				Strict: true, Stages: []startup.Stage{
					d.stage("first", nil, fail(bad)),
					d.stage("slow", func(ctx context.Context) error {
						cancel(why)
						return obey(ctx)
					}, nil),
				}})
			err := app.Run(ctx)
			assert.ErrorIs(t, err, bad, "a roll-back that fails is told")
			assert.NotErrorIs(t, err, context.Canceled)
			assert.Equal(t, []string{"open", "acquire", "start first", "start slow", "stop first",
				"release", "close"}, d.read())
		})
	}
}

func TestRunEndsWhenTheServerFails(t *testing.T) {
	var d diary
	db := newDatabase(&d)
	listening := make(chan net.Listener, 1)
	var log strings.Builder
	app := newApp(t, startup.Config{Open: db.open, Strict: true,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		Server: func(*startup.App) *http.Server {
			return &http.Server{Addr: "127.0.0.1:0",
				BaseContext: func(l net.Listener) context.Context {
					listening <- l
					return context.Background()
				}}
		}})
	ended := make(chan error, 1)
	go func() { ended <- app.Run(context.Background()) }()
	(<-listening).Close() // as if the kernel had taken it away
	select {
	case err := <-ended:
		assert.ErrorContains(t, err, "serve on 127.0.0.1:")
		assert.ErrorIs(t, err, net.ErrClosed)
	case <-time.After(tooLong):
		t.Fatal("it goes on without a server")
	}
	assert.Contains(t, log.String(), `level=ERROR msg="the HTTP server has failed"`,
		"for an app that calls Start and Stop")
	assert.Equal(t, []string{"open", "acquire", "release", "close"}, d.read())
}

func TestRunEndsWhenSomebodyElseStopsTheApp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("cannot stop")
		var d diary
		app := newApp(t, startup.Config{Open: newDatabase(&d).open, Strict: true,
			Stages: []startup.Stage{d.stage("own", nil, fail(bad))}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- app.Run(ctx) }()
		synctest.Wait()
		require.ErrorIs(t, app.Stop(context.Background()), bad)
		synctest.Wait()
		require.Len(t, ended, 1)
		assert.ErrorIs(t, <-ended, bad)
		assert.Equal(t, []string{"open", "acquire", "start own", "release", "stop own", "close"},
			d.read())
	})
}

func TestStopBudgetIsEnoughForEveryStage(t *testing.T) {
	app := newApp(t, startup.Config{Open: newDatabase(&diary{}).open, Drain: time.Minute,
		Stages: []startup.Stage{{Name: "own", StopTimeout: 7 * time.Second}, {Name: "other"}}})
	assert.Equal(t, time.Minute+7*time.Second+40*time.Second+tasks.StopLimit, app.StopBudget())
}

// The longest duration that there is stands for no limit.
func TestAStopWithoutALimitCutsNothingShort(t *testing.T) {
	for name, cfg := range map[string]startup.Config{
		"of a stage":   {Stages: []startup.Stage{{Name: "own", StopTimeout: math.MaxInt64}}},
		"of the drain": {Drain: math.MaxInt64},
	} {
		bubble(t, name, func(t *testing.T) {
			var d diary
			cfg.Open, cfg.Strict = newDatabase(&d).open, true
			cfg.Jobs = atOnce("slow", func() {
				time.Sleep(15 * time.Second)
				d.write("job ends")
			})
			app := newApp(t, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			assert.NoError(t, app.Run(ctx))
			assert.Equal(t, []string{"open", "acquire", "job ends", "release", "close"}, d.read())
		})
	}
}

func TestAnOnRunThatHangsFailsNoStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		hung := make(chan struct{})
		app := newApp(t, startup.Config{Open: newDatabase(&d).open, Strict: true,
			Drain: 5 * time.Second,
			OnRun: func(tasks.RunEvent) { <-hung },
			Jobs: []tasks.Job{{Name: "slow", Spec: tasks.Every(time.Hour), AtOnce: true,
				Do: func(ctx context.Context, _ tasks.Run) error {
					<-ctx.Done()
					time.Sleep(5 * time.Second)
					return nil
				}}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, app.Run(ctx))
		assert.Equal(t, []string{"open", "acquire", "release", "close"}, d.read())
		close(hung)
		synctest.Wait()
	})
}
