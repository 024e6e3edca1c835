package startup_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
	"example.com/schedlock/tasks/queue"
)

func TestAnAppHasItsNamedLocksAndQueuesOnceItsDatabaseIsOpen(t *testing.T) {
	var d diary
	db := newDatabase(&d)
	stage := d.stage("own", nil, nil)
	stage.After = []string{startup.StageDatabase}
	owner := driver.Owner{PID: 63, Hostname: "here"}
	app := newApp(t, startup.Config{
		Open: db.open, Stages: []startup.Stage{stage},
		Lock:       []schedlock.Option{schedlock.WithOwner(owner)},
		NamedLocks: []named.Option{named.WithTTL(5 * time.Minute)},
		Queues:     []queue.Option{queue.WithTimeout(7 * time.Minute)},
	})
	require.Nil(t, app.Locks())
	require.Nil(t, app.Queues())
	require.NoError(t, app.Start(t.Context()))
	locks, queues := app.Locks(), app.Queues()
	require.Same(t, locks, app.Locks(), "one handle")
	require.Same(t, queues, app.Queues())

	lock, err := locks.TryLock(t.Context(), "import")
	require.NoError(t, err)
	info, err := locks.Info(t.Context(), named.Key{Kind: named.KindLock, Name: "import"})
	require.NoError(t, err)
	assert.Equal(t, owner, info.Owner, "the same replica in every table")
	assert.Greater(t, info.Left, 4*time.Minute)
	require.NoError(t, lock.Unlock(t.Context()))

	_, err = queues.Add(t.Context(), "mail", 0, "order-17")
	require.NoError(t, err)
	got, err := queues.Capture(t.Context(), "mail", 1)
	require.NoError(t, err)
	assert.Greater(t, got[0].Left(), 5*time.Minute)

	require.NoError(t, app.Stop(t.Context()))
	require.Same(t, locks, app.Locks(), "as long as the app is there")
}

// onlyRuns is a store that has the scheduler's lock and its ledger, no more.
type onlyRuns struct {
	lockStore
	runStore
	io.Closer
}

type (
	lockStore = driver.Store
	runStore  = ledger.Store
)

func TestAStoreMayHaveNoNamedLocksAndNoQueues(t *testing.T) {
	db := newDatabase(&diary{})
	app := newApp(t, startup.Config{Open: func(context.Context) (driver.Store, error) {
		return onlyRuns{db.Store, db.Store, db}, nil
	}})
	require.NoError(t, app.Start(t.Context()))
	assert.Nil(t, app.Locks())
	assert.Nil(t, app.Queues())
	require.NoError(t, app.Stop(t.Context()))
}

func TestAnAppTellsOfItselfOnlyIfItIsToldTo(t *testing.T) {
	for _, presence := range []bool{true, false} {
		db := newDatabase(&diary{})
		app := newApp(t, startup.Config{Open: db.open, Presence: presence, Strict: true})
		require.NoError(t, app.Start(t.Context()))
		count := func() int {
			list, err := db.Replicas(t.Context())
			require.NoError(t, err)
			return len(list)
		}
		if presence {
			waitFor(t, "its row", func() bool { return count() == 1 })
		}
		require.NoError(t, app.Stop(t.Context()))
		require.Zero(t, count())
	}
}

// broken metrics cannot watch anything.
type broken struct{}

func (broken) Observe(schedlock.Event)              {}
func (broken) OnRun(tasks.RunEvent)                 {}
func (broken) Watch(*schedlock.Lock, *tasks.Runner) { panic("no registry") }

func TestMetricsThatPanicLeaveNoDatabaseOpen(t *testing.T) {
	var d diary
	app := newApp(t, startup.Config{Open: newDatabase(&d).open, Metrics: broken{}})
	require.ErrorContains(t, app.Start(t.Context()), "no registry")
	assert.Equal(t, []string{"open", "close"}, d.read())
}

type told struct{ diary }

func (m *told) Observe(e schedlock.Event)            { m.write(string(e.Kind)) }
func (m *told) OnRun(e tasks.RunEvent)               { m.write(e.Job + " " + string(e.Status)) }
func (m *told) Watch(*schedlock.Lock, *tasks.Runner) { m.write("watch") }

func TestMetricsAreToldOfTheLockAndOfItsRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			d diary
			m told
		)
		app := newApp(t, startup.Config{Open: newDatabase(&d).open, Metrics: &m,
			Jobs: atOnce("j", func() {})})
		require.NoError(t, app.Start(t.Context()))
		synctest.Wait()
		require.NoError(t, app.Stop(t.Context()))
		assert.Subset(t, m.read(), []string{"watch", string(schedlock.EventElected),
			"j in_progress", "j done", string(schedlock.EventReleased)})
	})
}

// A pruned is a database that tells how many runs of a job are to stay.
type pruned struct {
	*memory.Store
	keep chan int
}

func (p pruned) Prune(_ context.Context, _ string, keep, _ int) (int64, error) {
	p.keep <- keep
	return 0, nil
}

func TestAnAppKeepsSoManyRuns(t *testing.T) {
	for given, want := range map[int]int{0: 10_000, 7: 7} {
		synctest.Test(t, func(t *testing.T) {
			db := pruned{memory.New(), make(chan int, 1)}
			app := newApp(t, startup.Config{KeepRuns: given, Jobs: atOnce("j", func() {}),
				Open: func(context.Context) (driver.Store, error) { return db, nil }})
			require.NoError(t, app.Start(t.Context()))
			time.Sleep(30 * time.Second)
			require.NoError(t, app.Stop(t.Context()))
			require.Len(t, db.keep, 1)
			assert.Equal(t, want, <-db.keep)
		})
	}
}
