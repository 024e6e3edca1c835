package locktest

import (
	"context"
	"sync"
	"testing"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/memory"
)

func TestEveryQueueRuleCatchesABrokenStore(t *testing.T) {
	t.Parallel()
	const tries = 20 // two must meet, for some
	catch(t, queueCases(), brokenQueues, tries, func(t testing.TB, r Rule, fault any) *queueEnv {
		return prepareQueue(t, r, queueDatabase(fault), short)
	})
}

// soundQueue is the store in memory. It knows who has captured each task, for
// broken stores that let anybody act as its worker.
type soundQueue struct {
	taskqueue.Store
	db     *memory.Store
	owners sync.Map // of id: the token
}

func (s *soundQueue) Capture(ctx context.Context, name string, token driver.Token,
	hold time.Duration, limit int) ([]taskqueue.Info, error) {
	tasks, err := s.Store.Capture(ctx, name, token, hold, limit)
	for _, t := range tasks {
		s.owners.Store(t.ID, token)
	}
	return tasks, err
}

// owner is the token of the last to capture a task.
func (s *soundQueue) owner(id string) driver.Token {
	token, _ := s.owners.Load(id)
	owner, _ := token.(driver.Token)
	return owner
}

// riggedQueue is a sound store with a fault.
type riggedQueue struct {
	*soundQueue
	fault any
}

// idsCall is a call about some tasks of a queue.
type idsCall struct {
	call[*soundQueue]
	name string
	ids  []string
	out  []string
}

func (r riggedQueue) about(ctx context.Context, name string, ids []string) idsCall {
	return idsCall{call: start(ctx, r.soundQueue), name: name, ids: ids}
}

type (
	addCall struct {
		idsCall
		retries int
	}
	addTxCall struct {
		idsCall
		tx      any
		retries int
	}
	addAfterCall struct {
		idsCall
		tx      any
		retries int
		delay   time.Duration
	}
	captureCall struct {
		call[*soundQueue]
		name  string
		token driver.Token
		hold  time.Duration
		limit int
		tasks []taskqueue.Info
	}
	doneCall struct {
		idsCall
		token driver.Token
	}
	doneTxCall struct {
		idsCall
		tx    any
		token driver.Token
		hold  time.Duration
	}
	extendCall struct {
		idsCall
		token driver.Token
		hold  time.Duration
	}
	releaseTasksCall struct {
		idsCall
		token driver.Token
	}
	failCall struct {
		call[*soundQueue]
		name  string
		token driver.Token
		id    string
		text  string
		delay time.Duration
		ended bool
	}
	getCall struct {
		call[*soundQueue]
		name  string
		id    string
		info  taskqueue.Info
		found bool
	}
	pruneTasksCall struct {
		call[*soundQueue]
		name      string
		olderThan time.Duration
		limit     int
		deleted   int64
	}
	listCall struct {
		call[*soundQueue]
		name  string
		state taskqueue.State
		limit int
		tasks []taskqueue.Info
	}
	countCall struct {
		call[*soundQueue]
		counts []taskqueue.Count
	}
	requeueCall struct {
		idsCall
		retries int
	}
)

func (r riggedQueue) Add(ctx context.Context, name string, retries int, ids []string) ([]string,
	error) {
	c := &addCall{r.about(ctx, name, ids), retries}
	play(r.fault, c, func() { c.out, c.err = c.s.Add(c.ctx, c.name, c.retries, c.ids) })
	return c.out, c.err
}

func (r riggedQueue) AddTx(ctx context.Context, tx any, name string, retries int,
	ids []string) ([]string, error) {
	c := &addTxCall{r.about(ctx, name, ids), tx, retries}
	play(r.fault, c, func() { c.out, c.err = c.s.AddTx(c.ctx, c.tx, c.name, c.retries, c.ids) })
	return c.out, c.err
}

func (r riggedQueue) AddAfter(ctx context.Context, tx any, name string, retries int,
	delay time.Duration, ids []string) ([]string, error) {
	c := &addAfterCall{r.about(ctx, name, ids), tx, retries, delay}
	play(r.fault, c, func() {
		c.out, c.err = c.s.AddAfter(c.ctx, c.tx, c.name, c.retries, c.delay, c.ids)
	})
	return c.out, c.err
}

func (r riggedQueue) Capture(ctx context.Context, name string, token driver.Token,
	hold time.Duration, limit int) ([]taskqueue.Info, error) {
	c := &captureCall{call: start(ctx, r.soundQueue),
		name: name, token: token, hold: hold, limit: limit}
	play(r.fault, c, func() {
		c.tasks, c.err = c.s.Capture(c.ctx, c.name, c.token, c.hold, c.limit)
	})
	return c.tasks, c.err
}

func (r riggedQueue) Done(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	c := &doneCall{r.about(ctx, name, ids), token}
	play(r.fault, c, func() { c.out, c.err = c.s.Done(c.ctx, c.name, c.token, c.ids) })
	return c.out, c.err
}

func (r riggedQueue) DoneTx(ctx context.Context, tx any, name string, token driver.Token,
	hold time.Duration, ids []string) ([]string, error) {
	c := &doneTxCall{r.about(ctx, name, ids), tx, token, hold}
	play(r.fault, c, func() {
		c.out, c.err = c.s.DoneTx(c.ctx, c.tx, c.name, c.token, c.hold, c.ids)
	})
	return c.out, c.err
}

func (r riggedQueue) Extend(ctx context.Context, name string, token driver.Token,
	hold time.Duration, ids []string) ([]string, error) {
	c := &extendCall{r.about(ctx, name, ids), token, hold}
	play(r.fault, c, func() { c.out, c.err = c.s.Extend(c.ctx, c.name, c.token, c.hold, c.ids) })
	return c.out, c.err
}

func (r riggedQueue) Release(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	c := &releaseTasksCall{r.about(ctx, name, ids), token}
	play(r.fault, c, func() { c.out, c.err = c.s.Release(c.ctx, c.name, c.token, c.ids) })
	return c.out, c.err
}

func (r riggedQueue) Fail(ctx context.Context, name string, token driver.Token, id, text string,
	delay time.Duration) (bool, error) {
	c := &failCall{call: start(ctx, r.soundQueue),
		name: name, token: token, id: id, text: text, delay: delay}
	play(r.fault, c, func() {
		c.ended, c.err = c.s.Fail(c.ctx, c.name, c.token, c.id, c.text, c.delay)
	})
	return c.ended, c.err
}

func (r riggedQueue) Get(ctx context.Context, name, id string) (taskqueue.Info, bool, error) {
	c := &getCall{call: start(ctx, r.soundQueue), name: name, id: id}
	play(r.fault, c, func() { c.info, c.found, c.err = c.s.Get(c.ctx, c.name, c.id) })
	return c.info, c.found, c.err
}

func (r riggedQueue) Prune(ctx context.Context, name string, olderThan time.Duration,
	limit int) (int64, error) {
	c := &pruneTasksCall{call: start(ctx, r.soundQueue),
		name: name, olderThan: olderThan, limit: limit}
	play(r.fault, c, func() { c.deleted, c.err = c.s.Prune(c.ctx, c.name, c.olderThan, c.limit) })
	return c.deleted, c.err
}

func (r riggedQueue) List(ctx context.Context, name string, state taskqueue.State,
	limit int) ([]taskqueue.Info, error) {
	c := &listCall{call: start(ctx, r.soundQueue), name: name, state: state, limit: limit}
	play(r.fault, c, func() { c.tasks, c.err = c.s.List(c.ctx, c.name, c.state, c.limit) })
	return c.tasks, c.err
}

func (r riggedQueue) Count(ctx context.Context) ([]taskqueue.Count, error) {
	c := &countCall{call: start(ctx, r.soundQueue)}
	play(r.fault, c, func() { c.counts, c.err = c.s.Count(c.ctx) })
	return c.counts, c.err
}

func (r riggedQueue) Requeue(ctx context.Context, name string, retries int,
	ids []string) ([]string, error) {
	c := &requeueCall{r.about(ctx, name, ids), retries}
	play(r.fault, c, func() { c.out, c.err = c.s.Requeue(c.ctx, c.name, c.retries, c.ids) })
	return c.out, c.err
}

// queueDatabase is a new one whose store has a fault, or none.
func queueDatabase(fault any) QueueDatabase {
	db := memory.New()
	s := &soundQueue{Store: db.Queue(), db: db}
	return QueueDatabase{
		Open:    func(testing.TB) taskqueue.Store { return riggedQueue{s, fault} },
		SetBack: func(_ testing.TB, d time.Duration) { db.AgeTasks(-d) },
		Begin: func(testing.TB) Tx {
			tx := db.Begin()
			return Tx{tx, tx.Commit, tx.Rollback}
		},
	}
}

// again is how a task is when a broken store has made it pending once more.
func again(s *soundQueue, name, id string, retries int) {
	_, _ = s.Prune(bg, name, 0, 1000)
	_, _ = s.Add(bg, name, retries, []string{id})
}

// eachTask changes what Capture returns.
func eachTask(change func(*taskqueue.Info)) func(*captureCall) {
	return after(func(c *captureCall) { each(c.tasks, change) })
}

// failByRelease makes a failure a release.
func failByRelease(c *failCall) {
	var released []string
	released, c.err = c.s.Release(c.ctx, c.name, c.token, []string{c.id})
	c.ended = len(released) > 0
}
