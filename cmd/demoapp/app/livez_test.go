package app

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/wire"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

const (
	livezTTL       = 60 * time.Second
	livezHeartbeat = 10 * time.Second
)

// hanging is a database in memory that stops to answer while hangs is true.
func hanging() (store *wire.Store, hangs *atomic.Bool) {
	hangs = new(atomic.Bool)
	return &wire.Store{Store: memory.New(), On: func(s wire.Statement) (any, error) {
		if hangs.Load() {
			<-s.Ctx.Done()
			return nil, s.Ctx.Err()
		}
		return s.Do(s.Ctx)
	}}, hangs
}

// joinStore starts a replica on a store, without its HTTP server.
func joinStore(t *testing.T, store driver.Store, jobs ...tasks.Job) *app {
	t.Helper()
	a := &app{log: slog.New(slog.DiscardHandler)}
	sched, err := startup.NewApp(startup.Config{
		Open: func(context.Context) (driver.Store, error) { return store, nil },
		Lock: []schedlock.Option{schedlock.WithTTL(livezTTL),
			schedlock.WithHeartbeatInterval(livezHeartbeat)},
		Jobs: jobs, Log: a.log,
	})
	require.NoError(t, err)
	a.sched = sched
	require.NoError(t, sched.Start(t.Context()))
	t.Cleanup(func() { _ = sched.Stop(context.Background()) })
	synctest.Wait()
	return a
}

func ask(serve http.HandlerFunc) (status int, said string) {
	w := httptest.NewRecorder()
	serve(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code, w.Body.String()
}

func TestLeaderWhoseJobOutlivesItsTTLIsNotAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, hangs := hanging()
		started, release := make(chan struct{}), make(chan struct{})
		a := joinStore(t, store, tasks.Job{
			Name: "deaf", Spec: tasks.Every(time.Hour), AtOnce: true, AtMostOnce: true,
			Do: func(context.Context, tasks.Run) error {
				close(started)
				<-release // whatever its context says
				return nil
			},
		})
		requireAlive := func(when string) {
			t.Helper()
			status, said := ask(a.serveLive)
			require.Equal(t, http.StatusOK, status, "%s: %s", when, said)
			require.Equal(t, "ok\n", said)
		}
		<-started
		requireAlive("it leads")

		hangs.Store(true)
		// here and below: the fault's length, in the bubble's time
		time.Sleep(livezTTL - livezHeartbeat)
		require.False(t, a.sched.Lock().Status().Leader, "its renew deadline has passed")
		requireAlive("its TTL has not passed")

		time.Sleep(2 * livezHeartbeat)
		status, said := ask(a.serveLive)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, said, "not alive: the lease of term")
		require.Contains(t, said, "its work has not returned")

		close(release)
		time.Sleep(time.Minute) // it tries for a while to write how the job has ended
		requireAlive("its job has returned, and the database hangs still")
		hangs.Store(false)
	})
}

func TestReplicasWhoseDatabaseHangsAreAliveButNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, hangs := hanging()
		leader, standby := joinStore(t, store), joinStore(t, store)
		require.Equal(t, schedlock.SelfLeading, leader.sched.Lock().Status().State)
		require.Equal(t, schedlock.SelfStandby, standby.sched.Lock().Status().State)

		hangs.Store(true)
		// the fault's length, in the bubble's time
		for begun := time.Now(); time.Since(begun) < 3*livezTTL; time.Sleep(livezHeartbeat / 3) {
			for _, a := range []*app{leader, standby} {
				status, said := ask(a.serveLive)
				require.Equal(t, http.StatusOK, status, said)
			}
		}
		for _, a := range []*app{leader, standby} {
			require.False(t, a.sched.Lock().Status().Leader)
			status, said := ask(a.serveReady)
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.Equal(t, "not ready: the database did not answer in time\n", said)
		}
		hangs.Store(false)
	})
}
