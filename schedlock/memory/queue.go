package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks/queue"
)

type taskKey struct{ queue, id string }

// A task is one row. What is due is judged by the machine's monotonic clock,
// whatever clock the database has.
type task struct {
	queue.Info
	seq     int64
	token   schedlock.Token
	visible time.Time // zero: now if it is pending, never if it has ended
}

// ours reports whether the task is the token's.
func (t task) ours(token schedlock.Token) bool {
	return t.State == queue.InProgress && t.token == token && t.visible.After(time.Now())
}

type queueStore struct{ s *Store }

// Queue returns the store of the task queues, for queue.New.
func (s *Store) Queue() queue.Store { return queueStore{s} }

// Add implements queue.Store.
func (q queueStore) Add(ctx context.Context, name string, retries int, ids []string) (added []string, err error) {
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		for _, id := range ids {
			key := taskKey{name, id}
			if _, found := t.tasks[key]; found {
				continue
			}
			t.lastTask++
			t.tasks[key] = task{seq: t.lastTask, Info: queue.Info{Queue: name, ID: id, State: queue.Pending, RetriesLeft: retries,
				AddedAt: now, UpdatedAt: now}}
			added = append(added, id)
		}
		return nil
	})
	return added, err
}

// AddTx implements queue.Store: here there are no transactions.
func (q queueStore) AddTx(_ context.Context, tx any, _ string, _ int, _ []string) ([]string, error) {
	return nil, fmt.Errorf("%w: it is a %T, and the store is in memory", queue.ErrTx, tx)
}

// Capture implements queue.Store.
func (q queueStore) Capture(ctx context.Context, name string, token schedlock.Token, hold time.Duration, limit int) (tasks []queue.Info, err error) {
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		var (
			free         []task
			held, failed bool
			clock        = time.Now()
		)
		for key, k := range t.tasks {
			if key.queue != name {
				continue
			}
			due := !k.visible.After(clock)
			switch {
			case k.State == queue.InProgress && due && k.RetriesLeft == 0:
				k.State, k.LastError, k.UpdatedAt = queue.Failed, queue.LostWorker, now
				k.visible, k.VisibleAt = time.Time{}, time.Time{}
				t.tasks[key], failed = k, true
			case (k.State == queue.InProgress || k.State == queue.Pending) && due:
				free = append(free, k)
			case k.State == queue.InProgress || k.State == queue.Pending:
				held = true
			case k.State == queue.Failed:
				failed = true
			}
		}
		slices.SortFunc(free, func(a, b task) int { return cmp.Compare(a.seq, b.seq) })
		for _, k := range free[:min(len(free), limit)] {
			if k.State == queue.InProgress {
				k.RetriesLeft, k.LastError = k.RetriesLeft-1, queue.LostWorker
			}
			k.State, k.token, k.visible = queue.InProgress, token, clock.Add(hold)
			k.Attempts, k.VisibleAt, k.UpdatedAt = k.Attempts+1, now.Add(hold), now
			t.tasks[taskKey{name, k.ID}] = k
			tasks = append(tasks, k.Info)
		}
		switch {
		case len(tasks) > 0:
			return nil
		case held:
			return queue.ErrAllHeld
		case failed:
			return queue.ErrExhausted
		}
		return queue.ErrEmpty
	})
	return tasks, err
}

// change changes the tasks that are the token's, and returns their ids.
func (q queueStore) change(ctx context.Context, name string, token schedlock.Token, ids []string, f func(*task)) (changed []string, err error) {
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		for _, id := range ids {
			key := taskKey{name, id}
			if k := t.tasks[key]; k.ours(token) {
				k.UpdatedAt, k.visible, k.VisibleAt = now, time.Time{}, time.Time{}
				f(&k)
				t.tasks[key] = k
				changed = append(changed, id)
			}
		}
		return nil
	})
	return changed, err
}

// Done implements queue.Store.
func (q queueStore) Done(ctx context.Context, name string, token schedlock.Token, ids []string) (done []string, err error) {
	if _, err := q.change(ctx, name, token, ids, func(t *task) { t.State = queue.Done }); err != nil {
		return nil, err
	}
	err = q.s.do(ctx, func(t *tables, _ time.Time) error { // just now, or before
		for _, id := range ids {
			if k := t.tasks[taskKey{name, id}]; k.State == queue.Done && k.token == token {
				done = append(done, id)
			}
		}
		return nil
	})
	return done, err
}

// Extend implements queue.Store.
func (q queueStore) Extend(ctx context.Context, name string, token schedlock.Token, hold time.Duration, ids []string) ([]string, error) {
	return q.change(ctx, name, token, ids, func(t *task) {
		t.visible, t.VisibleAt = time.Now().Add(hold), t.UpdatedAt.Add(hold)
	})
}

// Release implements queue.Store.
func (q queueStore) Release(ctx context.Context, name string, token schedlock.Token, ids []string) ([]string, error) {
	return q.change(ctx, name, token, ids, func(t *task) { t.State = queue.Pending })
}

// Fail implements queue.Store.
func (q queueStore) Fail(ctx context.Context, name string, token schedlock.Token, id, text string, delay time.Duration) (ended bool, err error) {
	ids, err := q.change(ctx, name, token, []string{id}, func(t *task) {
		t.LastError = text
		if t.RetriesLeft == 0 {
			t.State = queue.Failed
			return
		}
		t.State, t.RetriesLeft = queue.Pending, t.RetriesLeft-1
		if delay > 0 {
			t.visible, t.VisibleAt = time.Now().Add(delay), t.UpdatedAt.Add(delay)
		}
	})
	return len(ids) > 0, err
}

// Get implements queue.Store.
func (q queueStore) Get(ctx context.Context, name, id string) (info queue.Info, found bool, err error) {
	err = q.s.do(ctx, func(t *tables, _ time.Time) error {
		var k task
		k, found = t.tasks[taskKey{name, id}]
		info = k.Info
		return nil
	})
	return info, found, err
}

// Prune implements queue.Store.
func (q queueStore) Prune(ctx context.Context, name string, olderThan time.Duration, limit int) (deleted int64, err error) {
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		for key, k := range t.tasks {
			if key.queue != name || k.State != queue.Done && k.State != queue.Failed || k.UpdatedAt.After(now.Add(-olderThan)) {
				continue
			}
			if deleted == int64(limit) {
				break
			}
			delete(t.tasks, key)
			deleted++
		}
		return nil
	})
	return deleted, err
}
