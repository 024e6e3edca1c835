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

// A hangingStore is a database that can stop to answer.
type hangingStore struct {
	*memory.Store
	hangs atomic.Bool
}

func (s *hangingStore) answer(ctx context.Context) error {
	if !s.hangs.Load() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *hangingStore) Look(ctx context.Context) (driver.Snapshot, error) {
	if err := s.answer(ctx); err != nil {
		return driver.Snapshot{}, err
	}
	return s.Store.Look(ctx)
}

func (s *hangingStore) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	if err := s.answer(ctx); err != nil {
		return driver.Renewal{}, err
	}
	return s.Store.Heartbeat(ctx, ref, state)
}

func (s *hangingStore) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (bool, error) {
	if err := s.answer(ctx); err != nil {
		return false, err
	}
	return s.Store.Release(ctx, ref, reason)
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
		store := &hangingStore{Store: memory.New()}
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

		store.hangs.Store(true)
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
		store.hangs.Store(false)
	})
}

func TestReplicasWhoseDatabaseHangsAreAliveButNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hangingStore{Store: memory.New()}
		leader, standby := joinStore(t, store), joinStore(t, store)
		require.Equal(t, schedlock.SelfLeading, leader.sched.Lock().Status().State)
		require.Equal(t, schedlock.SelfStandby, standby.sched.Lock().Status().State)

		store.hangs.Store(true)
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
		store.hangs.Store(false)
	})
}
