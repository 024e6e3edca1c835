package locktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

func TestQueueConformance(t *testing.T) {
	t.Parallel()
	RunQueue(t, func(testing.TB) QueueDatabase { return queueRig{}.database() })
}

// soundQueue is a store in memory that has transactions: what they add comes
// with their commit.
type soundQueue struct{ queue.Store }

type queueTx struct{ commit []func() error }

func (s *soundQueue) AddTx(ctx context.Context, tx any, name string, retries int, ids []string) (added []string, err error) {
	t, ok := tx.(*queueTx)
	if !ok {
		return s.Store.AddTx(ctx, tx, name, retries, ids)
	}
	for _, id := range ids {
		if _, found, _ := s.Get(ctx, name, id); !found {
			added = append(added, id)
		}
	}
	t.commit = append(t.commit, func() error { _, err := s.Add(bg, name, retries, ids); return err })
	return added, nil
}

// queueRig replaces methods of a sound store.
type queueRig struct {
	add     func(*soundQueue, context.Context, string, int, []string) ([]string, error)
	addTx   func(*soundQueue, context.Context, any, string, int, []string) ([]string, error)
	capture func(*soundQueue, context.Context, string, schedlock.Token, time.Duration, int) ([]queue.Info, error)
	done    func(*soundQueue, context.Context, string, schedlock.Token, []string) ([]string, error)
	extend  func(*soundQueue, context.Context, string, schedlock.Token, time.Duration, []string) ([]string, error)
	release func(*soundQueue, context.Context, string, schedlock.Token, []string) ([]string, error)
	fail    func(*soundQueue, context.Context, string, schedlock.Token, string, string, time.Duration) (bool, error)
	get     func(*soundQueue, context.Context, string, string) (queue.Info, bool, error)
	prune   func(*soundQueue, context.Context, string, time.Duration, int) (int64, error)
}

type riggedQueue struct {
	*soundQueue
	queueRig
}

func (r *riggedQueue) Add(ctx context.Context, name string, retries int, ids []string) ([]string, error) {
	if r.add != nil {
		return r.add(r.soundQueue, ctx, name, retries, ids)
	}
	return r.soundQueue.Add(ctx, name, retries, ids)
}

func (r *riggedQueue) AddTx(ctx context.Context, tx any, name string, retries int, ids []string) ([]string, error) {
	if r.addTx != nil {
		return r.addTx(r.soundQueue, ctx, tx, name, retries, ids)
	}
	return r.soundQueue.AddTx(ctx, tx, name, retries, ids)
}

func (r *riggedQueue) Capture(ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
	if r.capture != nil {
		return r.capture(r.soundQueue, ctx, name, token, hold, limit)
	}
	return r.soundQueue.Capture(ctx, name, token, hold, limit)
}

func (r *riggedQueue) Done(ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
	if r.done != nil {
		return r.done(r.soundQueue, ctx, name, token, ids)
	}
	return r.soundQueue.Done(ctx, name, token, ids)
}

func (r *riggedQueue) Extend(ctx context.Context, name string, token schedlock.Token, hold time.Duration, ids []string) ([]string, error) {
	if r.extend != nil {
		return r.extend(r.soundQueue, ctx, name, token, hold, ids)
	}
	return r.soundQueue.Extend(ctx, name, token, hold, ids)
}

func (r *riggedQueue) Release(ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
	if r.release != nil {
		return r.release(r.soundQueue, ctx, name, token, ids)
	}
	return r.soundQueue.Release(ctx, name, token, ids)
}

func (r *riggedQueue) Fail(ctx context.Context, name string, token schedlock.Token, id, text string, delay time.Duration) (bool, error) {
	if r.fail != nil {
		return r.fail(r.soundQueue, ctx, name, token, id, text, delay)
	}
	return r.soundQueue.Fail(ctx, name, token, id, text, delay)
}

func (r *riggedQueue) Get(ctx context.Context, name, id string) (queue.Info, bool, error) {
	if r.get != nil {
		return r.get(r.soundQueue, ctx, name, id)
	}
	return r.soundQueue.Get(ctx, name, id)
}

func (r *riggedQueue) Prune(ctx context.Context, name string, olderThan time.Duration, limit int) (int64, error) {
	if r.prune != nil {
		return r.prune(r.soundQueue, ctx, name, olderThan, limit)
	}
	return r.soundQueue.Prune(ctx, name, olderThan, limit)
}

func (r queueRig) database() QueueDatabase {
	s := &soundQueue{memory.New().Queue()}
	return QueueDatabase{
		Open: func(testing.TB) queue.Store { return &riggedQueue{s, r} },
		Begin: func(testing.TB) Tx {
			tx := &queueTx{}
			return Tx{tx, func() error {
				for _, f := range tx.commit {
					if err := f(); err != nil {
						return err
					}
				}
				return nil
			}, func() error { return nil }}
		},
	}
}

// again is how a task is when a broken store has made it pending once more.
func again(s *soundQueue, name, id string, retries int) {
	_, _ = s.Prune(bg, name, 0, 1000)
	_, _ = s.Add(bg, name, retries, []string{id})
}

// brokenOwners knows the token of each task, and lets anybody act as its worker.
type brokenOwners map[string]schedlock.Token

func (o brokenOwners) capture(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
	tasks, err := s.Capture(ctx, name, token, hold, limit)
	for _, t := range tasks {
		o[t.ID] = token
	}
	return tasks, err
}

// brokenQueues has every rule of the suite, broken at least once: rule, what is
// wrong with the store, a part of what the suite must say, and the store. Each
// is made anew, as some remember.
var brokenQueues = []struct {
	rule int
	name string
	says string
	rig  func() queueRig
}{
	{1, "it adds nothing", "is not there", func() queueRig {
		return queueRig{add: func(_ *soundQueue, _ context.Context, _ string, _ int, ids []string) ([]string, error) {
			return ids, nil
		}}
	}},
	{1, "it forgets the retries", "", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, _ int, ids []string) ([]string, error) {
			return s.Add(ctx, name, 0, ids)
		}}
	}},
	{1, "it finds the tasks of all queues", "Get of", func() queueRig {
		return queueRig{get: func(s *soundQueue, ctx context.Context, _, id string) (queue.Info, bool, error) {
			return s.Get(ctx, "q", id)
		}}
	}},
	{2, "it says that all were added", "", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, retries int, ids []string) ([]string, error) {
			_, err := s.Add(ctx, name, retries, ids)
			return ids, err
		}}
	}},
	{2, "what has ended begins anew", "", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, retries int, ids []string) ([]string, error) {
			_, _ = s.Prune(ctx, name, 0, 10)
			return s.Add(ctx, name, retries, ids)
		}}
	}},
	{3, "it looks, and then adds", "", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, retries int, ids []string) ([]string, error) {
			_, found, _ := s.Get(ctx, name, ids[0])
			time.Sleep(time.Millisecond)
			if found {
				return nil, nil
			}
			_, err := s.Add(ctx, name, retries, ids)
			return ids, err
		}}
	}},
	{4, "it keeps 100 bytes", "", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, retries int, ids []string) ([]string, error) {
			cut := make([]string, len(ids))
			for i, id := range ids {
				cut[i] = id[:min(100, len(id))]
			}
			_, err := s.Add(ctx, name, retries, cut)
			return ids, err
		}}
	}},
	{4, "it trims names", "", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, retries int, ids []string) ([]string, error) {
			return s.Add(ctx, strings.TrimSpace(name), retries, ids)
		}}
	}},
	{5, "it adds beside the transaction", "", func() queueRig {
		return queueRig{addTx: func(s *soundQueue, ctx context.Context, tx any, name string, retries int, ids []string) ([]string, error) {
			return s.Add(ctx, name, retries, ids)
		}}
	}},
	{5, "it never adds", "is not there", func() queueRig {
		return queueRig{addTx: func(_ *soundQueue, _ context.Context, _ any, _ string, _ int, ids []string) ([]string, error) {
			return ids, nil
		}}
	}},
	{6, "it adds without a transaction", "", func() queueRig {
		return queueRig{addTx: func(s *soundQueue, ctx context.Context, _ any, name string, retries int, ids []string) ([]string, error) {
			return s.Add(ctx, name, retries, ids)
		}}
	}},
	{7, "the newest come first", "Capture", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, retries int, ids []string) ([]string, error) {
			ids = slices.Clone(ids)
			slices.Reverse(ids)
			return s.Add(ctx, name, retries, ids)
		}}
	}},
	{7, "it takes more than the limit", "Capture", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			return s.Capture(ctx, name, token, hold, limit+1)
		}}
	}},
	{7, "it returns what was before", "", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			tasks, err := s.Capture(ctx, name, token, hold, limit)
			for i := range tasks {
				tasks[i].State = queue.Pending
			}
			return tasks, err
		}}
	}},
	{8, "it looks, and then takes", "", func() queueRig {
		// The naive way: SELECT the oldest, then UPDATE it by its id.
		given := make(chan []queue.Info, 1)
		given <- nil
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			before := <-given
			given <- before
			tasks, err := s.Capture(ctx, name, token, hold, limit)
			time.Sleep(time.Millisecond)
			<-given
			given <- tasks
			if len(before) > 0 && before[0].ID == "task 000" && err == nil {
				tasks = append(tasks, before[0])
			}
			return tasks, err
		}}
	}},
	{9, "it takes what is held", "", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, _ time.Duration, limit int) ([]queue.Info, error) {
			return s.Capture(ctx, name, token, time.Millisecond, limit)
		}}
	}},
	{9, "what is lost stays so", "still", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, _ time.Duration, limit int) ([]queue.Info, error) {
			return s.Capture(ctx, name, token, time.Hour, limit)
		}}
	}},
	{9, "a loss costs nothing", "", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			tasks, err := s.Capture(ctx, name, token, hold, limit)
			for i := range tasks {
				tasks[i].RetriesLeft = 2
			}
			return tasks, err
		}}
	}},
	{10, "it gives it out once more", "Capture", func() queueRig {
		return queueRig{add: func(s *soundQueue, ctx context.Context, name string, retries int, ids []string) ([]string, error) {
			return s.Add(ctx, name, retries+1, ids)
		}}
	}},
	{10, "it does not say why", "", func() queueRig {
		return queueRig{get: func(s *soundQueue, ctx context.Context, name, id string) (queue.Info, bool, error) {
			info, found, err := s.Get(ctx, name, id)
			info.LastError = ""
			return info, found, err
		}}
	}},
	{11, "what is held is none", "held", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			tasks, err := s.Capture(ctx, name, token, hold, limit)
			if errors.Is(err, queue.ErrAllHeld) {
				err = queue.ErrEmpty
			}
			return tasks, err
		}}
	}},
	{11, "what is done is exhausted", "done", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			tasks, err := s.Capture(ctx, name, token, hold, limit)
			if _, found, _ := s.Get(ctx, name, "a"); found && errors.Is(err, queue.ErrEmpty) {
				err = queue.ErrExhausted
			}
			return tasks, err
		}}
	}},
	{12, "it stops at the first that cannot be taken", "Capture", func() queueRig {
		n := 0
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			if n++; n == 2 {
				_, err := s.Capture(ctx, "none", token, hold, limit)
				return nil, err
			}
			return s.Capture(ctx, name, token, hold, limit)
		}}
	}},
	{13, "what is done is given out again", "", func() queueRig {
		return queueRig{done: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
			return s.Release(ctx, name, token, ids)
		}}
	}},
	{13, "Done cannot be repeated", "Done", func() queueRig {
		said := map[string]bool{}
		return queueRig{done: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
			done, err := s.Done(ctx, name, token, ids)
			if len(done) > 0 && said[done[0]] {
				return nil, err
			}
			for _, id := range done {
				said[id] = true
			}
			return done, err
		}}
	}},
	{14, "it does all or nothing", "", func() queueRig {
		return queueRig{done: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
			if len(ids) > 2 {
				return nil, nil
			}
			return s.Done(ctx, name, token, ids)
		}}
	}},
	{14, "it says that it did all", "", func() queueRig {
		return queueRig{release: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
			_, err := s.Release(ctx, name, token, ids)
			return ids, err
		}}
	}},
	{15, "anybody may end it", "", func() queueRig {
		o := brokenOwners{}
		return queueRig{capture: o.capture, done: func(s *soundQueue, ctx context.Context, name string, _ schedlock.Token, ids []string) ([]string, error) {
			return s.Done(ctx, name, o[ids[0]], ids)
		}}
	}},
	{15, "anybody may fail it", "", func() queueRig {
		o := brokenOwners{}
		return queueRig{capture: o.capture, fail: func(s *soundQueue, ctx context.Context, name string, _ schedlock.Token, id, text string, delay time.Duration) (bool, error) {
			return s.Fail(ctx, name, o[id], id, text, delay)
		}}
	}},
	{15, "the queue does not matter", "", func() queueRig {
		return queueRig{release: func(s *soundQueue, ctx context.Context, _ string, token schedlock.Token, ids []string) ([]string, error) {
			return s.Release(ctx, "q", token, ids)
		}}
	}},
	{16, "it holds on to what was lost", "", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, _ time.Duration, limit int) ([]queue.Info, error) {
			return s.Capture(ctx, name, token, time.Hour, limit)
		}}
	}},
	{17, "whoever calls has it", "", func() queueRig {
		o := brokenOwners{}
		return queueRig{capture: o.capture, extend: func(s *soundQueue, ctx context.Context, name string, _ schedlock.Token, hold time.Duration, ids []string) ([]string, error) {
			return s.Extend(ctx, name, o[ids[0]], hold, ids)
		}}
	}},
	{18, "an extension does nothing", "", func() queueRig {
		return queueRig{extend: func(_ *soundQueue, _ context.Context, _ string, _ schedlock.Token, _ time.Duration, ids []string) ([]string, error) {
			return ids, nil
		}}
	}},
	{18, "an extension never shortens", "", func() queueRig {
		return queueRig{extend: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, _ time.Duration, ids []string) ([]string, error) {
			return s.Extend(ctx, name, token, time.Hour, ids)
		}}
	}},
	{19, "a release costs a retry", "", func() queueRig {
		return queueRig{release: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) (released []string, err error) {
			for _, id := range ids {
				info, _, _ := s.Get(ctx, name, id)
				if ended, _ := s.Fail(ctx, name, token, id, info.LastError, 0); ended {
					released = append(released, id)
				}
			}
			return released, nil
		}}
	}},
	{19, "a release sends it to the end", "", func() queueRig {
		return queueRig{release: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
			for _, id := range ids {
				info, _, _ := s.Get(ctx, name, id)
				if done, _ := s.Done(ctx, name, token, []string{id}); len(done) > 0 {
					again(s, name, id, info.RetriesLeft)
				}
			}
			return ids, nil
		}}
	}},
	{20, "a failure is a release", "", func() queueRig {
		return queueRig{fail: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, id, _ string, _ time.Duration) (bool, error) {
			released, err := s.Release(ctx, name, token, []string{id})
			return len(released) > 0, err
		}}
	}},
	{20, "a failure sends it to the end", "", func() queueRig {
		return queueRig{fail: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, id, text string, _ time.Duration) (bool, error) {
			return s.Fail(ctx, name, token, id, text, time.Millisecond)
		}}
	}},
	{21, "it knows no delay", "", func() queueRig {
		return queueRig{fail: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, id, text string, _ time.Duration) (bool, error) {
			return s.Fail(ctx, name, token, id, text, 0)
		}}
	}},
	{21, "a delay never ends", "still", func() queueRig {
		return queueRig{fail: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, id, text string, _ time.Duration) (bool, error) {
			return s.Fail(ctx, name, token, id, text, time.Hour)
		}}
	}},
	{22, "it is never the end", "", func() queueRig {
		return queueRig{fail: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, id, text string, _ time.Duration) (bool, error) {
			released, err := s.Release(ctx, name, token, []string{id})
			return len(released) > 0, err
		}}
	}},
	{23, "a release sends it to the end", "Capture", func() queueRig {
		return queueRig{release: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
			done, err := s.Done(ctx, name, token, ids)
			for _, id := range done {
				again(s, name, id, 9)
			}
			return done, err
		}}
	}},
	{24, "it keeps 255 bytes", "", func() queueRig {
		return queueRig{fail: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, id, text string, delay time.Duration) (bool, error) {
			return s.Fail(ctx, name, token, id, text[:min(255, len(text))], delay)
		}}
	}},
	{25, "it deletes all that it may", "", func() queueRig {
		return queueRig{prune: func(s *soundQueue, ctx context.Context, name string, olderThan time.Duration, _ int) (int64, error) {
			return s.Prune(ctx, name, olderThan, 1000)
		}}
	}},
	{25, "the age does not matter", "", func() queueRig {
		return queueRig{prune: func(s *soundQueue, ctx context.Context, name string, _ time.Duration, limit int) (int64, error) {
			return s.Prune(ctx, name, 0, limit)
		}}
	}},
	{26, "it does not heed its context", "no error", func() queueRig {
		return queueRig{capture: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) ([]queue.Info, error) {
			return s.Capture(context.WithoutCancel(ctx), name, token, hold, limit)
		}}
	}},
	{26, "it says so, but has done it", "something was written", func() queueRig {
		return queueRig{done: func(s *soundQueue, ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
			done, err := s.Done(context.WithoutCancel(ctx), name, token, ids)
			return done, errors.Join(err, ctx.Err())
		}}
	}},
}

// recordQueue tries a rule on a database and returns what failed, "" if
// nothing.
func recordQueue(t testing.TB, c queueCase, db QueueDatabase) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.try(r, db, short)
	}()
	<-done
	if r.failed {
		return r.said.String() + " "
	}
	return ""
}

func TestEveryQueueRuleCatchesABrokenStore(t *testing.T) {
	t.Parallel()
	caught := map[int]bool{}
	for _, b := range brokenQueues {
		t.Run(fmt.Sprintf("%02d %s", b.rule, b.name), func(t *testing.T) {
			said := recordQueue(t, queueCases[b.rule-1], b.rig().database())
			require.NotEmpty(t, said, "the suite did not notice")
			assert.Contains(t, said, b.says)
			caught[b.rule] = true
		})
	}
	for _, c := range queueCases {
		assert.True(t, caught[c.Number], "no broken store for rule %d: %s", c.Number, c.Name)
	}
}

// The numbers are given once, and the documentation lists them.
func TestTheQueueRulesAreNumberedAndListed(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("queue.go")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(doc), "\n//", " ")), " ")
	for i, r := range QueueRules() {
		assert.Equal(t, i+1, r.Number)
		assert.Contains(t, text, fmt.Sprintf("%d. %s", r.Number, r.Text), "queue.go")
		assert.NotEmpty(t, r.Name)
		assert.NotEmpty(t, r.Breaks)
	}
}

func TestTransactionsThatAreMissingAreNotPassedOver(t *testing.T) {
	t.Parallel()
	for _, c := range queueCases {
		if slices.Contains(c.Needs, Transactions) {
			db := queueRig{}.database()
			db.Begin = nil
			assert.Contains(t, recordQueue(t, c, db), "add it, or list it in QueueDatabase.Without", c.Name)
		}
	}
}
