package locktest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// A QueueDatabase is a new, empty database that has its tables. Every rule gets
// one of its own.
type QueueDatabase struct {
	// Open returns another handle on the database, as another replica would
	// open it. It closes the handle with t.Cleanup.
	Open func(t testing.TB) taskqueue.Store

	// Begin begins a transaction of a caller, of a kind that AddTx takes.
	Begin func(t testing.TB) Tx

	// SetBack sets the clock that judges time-outs and delays back: as seen from
	// it, all that was written so far was written later by d.
	SetBack func(t testing.TB, d time.Duration)

	// Without lists what the store under test does not have: Transactions or
	// Clocks.
	Without []Feature
}

// What a database of queues may have, or not.
const (
	Transactions Feature = "transactions" // QueueDatabase.Begin
	Clocks       Feature = "clocks"       // QueueDatabase.SetBack
)

// RunQueue tests the contract of a taskqueue.Store, each of [QueueRules] in a
// subtest of its own. fresh makes a new database for each.
func RunQueue(t *testing.T, fresh func(t testing.TB) QueueDatabase) {
	runAll(t, "rule", queueCases(), func(t testing.TB, r Rule) *queueEnv {
		return prepareQueue(t, r, fresh(t), usualPatience)
	})
}

func prepareQueue(t testing.TB, r Rule, db QueueDatabase, patience time.Duration) *queueEnv {
	r.provide(t, "QueueDatabase", db.Without, func(f Feature) string {
		switch {
		case f == Transactions && db.Begin == nil:
			return "QueueDatabase.Begin is nil"
		case f == Clocks && db.SetBack == nil:
			return "QueueDatabase.SetBack is nil"
		}
		return ""
	})
	return &queueEnv{env: base(t, patience), db: db, q: db.Open(t), name: "q"}
}

// queueEnv is what a case works with; of env it uses no database.
type queueEnv struct {
	env
	db   QueueDatabase
	q    taskqueue.Store // the first handle
	name string          // of the queue
}

// of works with another queue.
func (e *queueEnv) of(name string) *queueEnv {
	other := *e
	other.name = name
	return &other
}

// How long a task is held: longer than any test, or no longer than a test can
// wait.
const (
	long  = time.Hour
	brief = 100 * time.Millisecond
)

// mine is a worker's token.
func mine() driver.Token { return driver.NewToken() }

func (e *queueEnv) add(retries int, ids ...string) {
	e.Helper()
	added, err := e.q.Add(e.ctx, e.name, retries, ids)
	require.NoError(e, err, "Add")
	require.ElementsMatch(e, ids, added, "Add")
}

// capture must get these tasks, in this order.
func (e *queueEnv) capture(hold time.Duration, limit int,
	ids ...string) (driver.Token, []taskqueue.Info) {
	e.Helper()
	token := mine()
	tasks, err := e.q.Capture(e.ctx, e.name, token, hold, limit)
	require.NoError(e, err, "Capture")
	require.Equal(e, ids, idsOf(tasks), "Capture")
	return token, tasks
}

func idsOf(tasks []taskqueue.Info) []string {
	var ids []string
	for _, t := range tasks {
		ids = append(ids, t.ID)
	}
	return ids
}

// none captures nothing, for a reason.
func (e *queueEnv) none(why error, when string) {
	e.Helper()
	tasks, err := e.q.Capture(e.ctx, e.name, mine(), long, 10)
	require.Empty(e, tasks, "Capture, %s", when)
	require.ErrorIs(e, err, why, "Capture, %s", when)
}

// get is a task that must be there.
func (e *queueEnv) get(id string) taskqueue.Info {
	e.Helper()
	info, found, err := e.q.Get(e.ctx, e.name, id)
	require.NoError(e, err, "Get")
	require.True(e, found, "Get: task %q is not there", id)
	return info
}

// in fails unless a task is in a state, with so many retries.
func (e *queueEnv) in(id string, state taskqueue.State, retries int) taskqueue.Info {
	e.Helper()
	info := e.get(id)
	require.Equal(e, state, info.State, "task %q", id)
	require.Equal(e, retries, info.RetriesLeft, "the retries of task %q", id)
	return info
}

func (e *queueEnv) done(token driver.Token, ids ...string) {
	e.Helper()
	done, err := e.q.Done(e.ctx, e.name, token, ids)
	require.NoError(e, err, "Done")
	require.ElementsMatch(e, ids, done, "Done")
}

func (e *queueEnv) fail(token driver.Token, id, text string, delay time.Duration) {
	e.Helper()
	ended, err := e.q.Fail(e.ctx, e.name, token, id, text, delay)
	require.NoError(e, err, "Fail")
	require.True(e, ended, "Fail")
}

func (e *queueEnv) release(token driver.Token, ids ...string) {
	e.Helper()
	released, err := e.q.Release(e.ctx, e.name, token, ids)
	require.NoError(e, err, "Release")
	require.ElementsMatch(e, ids, released, "Release")
}

func (e *queueEnv) extend(token driver.Token, hold time.Duration, ids ...string) {
	e.Helper()
	extended, err := e.q.Extend(e.ctx, e.name, token, hold, ids)
	require.NoError(e, err, "Extend")
	require.ElementsMatch(e, ids, extended, "Extend")
}

func (e *queueEnv) addAfter(retries int, delay time.Duration, id string) {
	e.Helper()
	added, err := e.q.AddAfter(e.ctx, nil, e.name, retries, delay, []string{id})
	require.NoError(e, err, "AddAfter")
	require.Equal(e, []string{id}, added, "AddAfter")
}

// absent fails if there is such a task.
func (e *queueEnv) absent(id, when string) {
	e.Helper()
	_, found, err := e.q.Get(e.ctx, e.name, id)
	require.NoError(e, err, "Get")
	require.False(e, found, "Get of task %q: %s", id, when)
}

// inTx calls f in a transaction of its own, which it commits or rolls back.
func (e *queueEnv) inTx(commit bool, f func(tx any)) {
	e.Helper()
	tx := e.db.Begin(e)
	f(tx.Tx)
	if commit {
		require.NoError(e, tx.Commit())
	} else {
		require.NoError(e, tx.Rollback())
	}
}

// heeded fails unless each call, whose context has ended, returns an error, soon,
// and none writes anything to these tasks.
func (e *queueEnv) heeded(calls map[string]func() error, ids ...string) {
	e.Helper()
	e.unchanged(func() {
		for what, call := range calls {
			e.soon(what, func() {
				if err := call(); err == nil || errors.Is(err, taskqueue.ErrNone) {
					e.Errorf("%s: no error: %v", what, err)
				}
			})
		}
	}, "an ended context", ids...)
}

// lost is when nobody has extended what was captured for brief: it waits that
// out, by any clock that goes at a usual rate.
func (e *queueEnv) lost() { time.Sleep(brief + brief/5) }

// unchanged fails if f writes anything to these tasks.
func (e *queueEnv) unchanged(f func(), what string, ids ...string) {
	e.Helper()
	var before, after []taskqueue.Info
	for _, id := range ids {
		before = append(before, e.get(id))
	}
	f()
	for _, id := range ids {
		after = append(after, e.get(id))
	}
	require.Equal(e, before, after, "%s: something was written", what)
}

// refused fails if any call with this token does anything to task a of queue q.
func (e *queueEnv) refused(why, name string, token driver.Token) {
	e.Helper()
	e.unchanged(func() {
		ids, err := e.q.Done(e.ctx, name, token, []string{"a"})
		require.NoError(e, err, "Done, %s", why)
		require.Empty(e, ids, "Done, %s", why)
	}, why, "a")
	e.refusedButDone(why, name, token)
}

// refusedButDone is refused without Done.
func (e *queueEnv) refusedButDone(why, name string, token driver.Token) {
	e.Helper()
	e.unchanged(func() {
		ids, err := e.q.Extend(e.ctx, name, token, long, []string{"a"})
		require.NoError(e, err, "Extend, %s", why)
		require.Empty(e, ids, "Extend, %s", why)
		ids, err = e.q.Release(e.ctx, name, token, []string{"a"})
		require.NoError(e, err, "Release, %s", why)
		require.Empty(e, ids, "Release, %s", why)
		ended, err := e.q.Fail(e.ctx, name, token, "a", "why", 0)
		require.NoError(e, err, "Fail, %s", why)
		require.False(e, ended, "Fail, %s", why)
	}, why, "a")
}

// many calls f at the same time, each with a handle of its own.
func (e *queueEnv) many(n int, f func(i int, q taskqueue.Store)) {
	type worker struct {
		i int
		q taskqueue.Store
	}
	workers := []worker{{0, e.q}}
	for len(workers) < n {
		workers = append(workers, worker{len(workers), e.db.Open(e)})
	}
	together(workers, func(w worker) { f(w.i, w.q) })
}

// insistently repeats what fails because others are at it, as on a busy file. It
// may be called from any goroutine.
func (e *queueEnv) insistently(f func() error) (err error) {
	for begin := time.Now(); time.Since(begin) < e.patience; time.Sleep(time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

// names are n ids, in order.
func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("task %03d", i)
	}
	return ids
}

// awkward are names that a database might spoil, or take for one another.
var awkward = []string{"a", "A", "a ", " a", "ä", "a\u0308", "'", `"`, `\`, "%", "_", "{a,b}",
	"null", "日本🦀", "line\nbreak", "\u2028", "<&>",
	strings.Repeat("ü", 100), strings.Repeat("x", 200)}
