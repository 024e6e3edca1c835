package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

// sqlWaiting is how many sessions of stores wait for a lock of somebody else.
const sqlWaiting = `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'schedlock' AND wait_event_type = 'Lock'`

// What queues and named locks may wait for uses up neither the connections of
// the scheduler's runs nor all of their own.
func TestAddsThatWaitStopNeitherRunsNorOtherLocks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	lock := takeNamed(t, store.Named(), namedClaim(lockA, time.Minute))
	watcher := session(t, url)

	other := begin(t, url, pgx.TxOptions{})
	_, err := store.Queue().AddTx(ctx, other, "q", 0, []string{"same"})
	require.NoError(t, err)
	var adds sync.WaitGroup
	ended := make(chan string, 10)
	for range cap(ended) {
		adds.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 10*patience)
			defer cancel()
			added, err := store.Queue().Add(ctx, "q", 0, []string{"same"})
			ended <- fmt.Sprint(added, err)
		})
	}
	defer adds.Wait()
	defer other.Rollback(ctx)
	eventually(t, "some wait", func() bool { return value[int](t, watcher, sqlWaiting) > 0 })

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i := range 10 {
		at := tick.Add(time.Duration(i) * time.Second)
		_, started, err := store.Decide(ctx, ref, ledger.Decision{Job: fmt.Sprint("j", i),
			Spec: "s", To: at, Start: at})
		require.NoError(t, err, "the scheduler's runs go on")
		require.True(t, started)
		ours, err := store.Named().Extend(ctx, lock, time.Minute)
		require.NoError(t, err, "a lock of another name is kept")
		require.True(t, ours)
		_, _, err = store.Queue().Get(ctx, "q", "same")
		require.NoError(t, err)
		_, _, err = store.Named().Take(ctx,
			namedClaim(lockNamed(fmt.Sprint(i)), time.Minute))
		require.NoError(t, err)
	}
	require.Empty(t, ended, "nobody can tell yet whether the task is new")
	require.NoError(t, other.Rollback(ctx))
	adds.Wait()
	close(ended)
	added := 0
	for what := range ended {
		if what == "[same] <nil>" {
			added++
		} else {
			require.Equal(t, "[] <nil>", what)
		}
	}
	require.Equal(t, 1, added, "one of them")
}

// The tasks of a worker that ends them in a long transaction wait for it.
func TestTasksThatWaitLeaveAConnectionToNamedLocks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, watcher := open(t, url), session(t, url)
	q, token := s.Queue(), driver.NewToken()
	lock := takeNamed(t, s.Named(), namedClaim(lockA, time.Minute))
	for name, wait := range map[string]func(ctx context.Context, ids []string){
		"Extend": func(ctx context.Context, ids []string) {
			_, _ = q.Extend(ctx, "q", token, time.Hour, ids)
		},
		"Done": func(ctx context.Context, ids []string) {
			_, _ = q.Done(ctx, "q", token, ids)
		},
		"Release": func(ctx context.Context, ids []string) {
			_, _ = q.Release(ctx, "q", token, ids)
		},
		"Fail": func(ctx context.Context, ids []string) {
			_, _ = q.Fail(ctx, "q", token, ids[0], "", time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ids := []string{name}
			addTasks(t, q, 0, name)
			eventually(t, "the task is ours", func() bool {
				tasks, err := q.Capture(ctx, "q", token, time.Hour, 1)
				return err == nil && len(tasks) == 1 && tasks[0].ID == name
			})
			app := begin(t, url, pgx.TxOptions{})
			done, err := q.DoneTx(ctx, app, "q", token, time.Hour, ids)
			require.NoError(t, err)
			require.Equal(t, ids, done)
			var all sync.WaitGroup
			defer all.Wait()
			waiting, cancel := context.WithTimeout(ctx, 10*patience)
			defer cancel()
			for range 12 {
				all.Go(func() {
					for waiting.Err() == nil {
						wait(waiting, ids)
					}
				})
			}
			eventually(t, "as many wait as may", func() bool {
				return value[int](t, watcher, sqlWaiting) >= 3
			})
			for range 20 {
				require.Less(t, value[int](t, watcher, sqlWaiting), 4, "all connections wait")
				time.Sleep(10 * time.Millisecond)
			}
			ours, err := s.Named().Extend(ctx, lock, time.Minute)
			require.NoError(t, err)
			require.True(t, ours)
		})
	}
}

func TestTheSizesOfThePoolsAreChecked(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	for _, tc := range []struct {
		opt  postgres.Option
		want string
	}{
		{postgres.WithRunConnections(0), "option WithRunConnections: 0 is not from 1 to 1000"},
		{postgres.WithRunConnections(1001),
			"option WithRunConnections: 1001 is not from 1 to 1000"},
		{postgres.WithSharedConnections(1),
			"option WithSharedConnections: 1 is not from 2 to 1000"},
		{postgres.WithSharedConnections(-1),
			"option WithSharedConnections: -1 is not from 2 to 1000"},
	} {
		_, err := postgres.Open(ctx, url, silent, tc.opt)
		require.ErrorContains(t, err, tc.want)
	}
	store := open(t, url, postgres.WithRunConnections(1), postgres.WithSharedConnections(2))
	require.EqualValues(t, 2, store.Pool().Config().MaxConns)
	ref := acquire(t, store, time.Minute)
	oneRoundTripEach(t, store, ref, "j", func(what string, f func() error) {
		require.NoError(t, f(), what)
	})
	addTasks(t, store.Queue(), 0, "a")
	takeNamed(t, store.Named(), namedClaim(lockA, time.Minute))
}
