package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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

// What waits for a long transaction of an app uses up neither the connections of the scheduler's
// runs nor all that named locks need.
func TestTasksThatWaitLeaveAConnectionToNamedLocks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, watcher := open(t, url), session(t, url)
	q, token := s.Queue(), driver.NewToken()
	ref := acquire(t, s, time.Minute)
	lock := takeNamed(t, s.Named(), namedClaim(lockA, time.Minute))
	var added atomic.Int32
	for name, wait := range map[string]func(ctx context.Context, ids []string){
		"Add": func(ctx context.Context, ids []string) {
			ours, _ := q.Add(ctx, "q", 0, ids)
			added.Add(int32(len(ours)))
		},
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
			app := begin(t, url, pgx.TxOptions{})
			inTheWay := func() ([]string, error) { return q.AddTx(ctx, app, "q", 0, ids) }
			if name != "Add" {
				addTasks(t, q, 0, name)
				eventually(t, "the task is ours", func() bool {
					tasks, err := q.Capture(ctx, "q", token, time.Hour, 1)
					return err == nil && len(tasks) == 1 && tasks[0].ID == name
				})
				inTheWay = func() ([]string, error) {
					return q.DoneTx(ctx, app, "q", token, time.Hour, ids)
				}
			}
			done, err := inTheWay()
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
			for i := range 20 {
				bounded, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				require.Less(t, value[int](t, watcher, sqlWaiting), 4, "all connections wait")
				key, at := fmt.Sprint(name, i), tick.Add(time.Duration(i)*time.Second)
				_, started, err := s.Decide(bounded, ref, ledger.Decision{Job: key, Spec: "s",
					To: at, Start: at})
				require.NoError(t, err, "the scheduler's runs go on")
				require.True(t, started)
				ours, err := s.Named().Extend(bounded, lock, time.Minute)
				require.NoError(t, err, "a lock of another name is kept")
				require.True(t, ours)
				_, _, err = q.Get(bounded, "q", name)
				require.NoError(t, err)
				if name == "Add" { // Take has its turn after those that wait for a second each
					takeNamed(t, s.Named(), namedClaim(lockNamed(key), time.Minute))
				}
			}
			if name == "Add" {
				require.Zero(t, added.Load(), "nobody can tell yet whether the task is new")
				require.NoError(t, app.Rollback(ctx))
				eventually(t, "it is added", func() bool { return added.Load() > 0 })
				cancel()
				all.Wait()
				require.EqualValues(t, 1, added.Load(), "once")
			}
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
