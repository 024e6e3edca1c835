package memory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

type taskKey struct{ queue, id string }

// A task is one row. What is due is judged by the machine's monotonic clock,
// whatever clock the database has.
type task struct {
	taskqueue.Info
	seq     int64
	token   driver.Token
	visible time.Time // zero: now if it is pending, never if it has ended
}

// ours reports whether the task is the token's.
func (t task) ours(token driver.Token) bool {
	return t.State == taskqueue.InProgress && t.token == token && t.visible.After(time.Now())
}

// mend lets what has more left than its whole length, since the clock was set
// back, pass that length from now.
func (t *task) mend(clock, now time.Time) {
	if whole := t.VisibleAt.Sub(t.UpdatedAt); t.visible.Sub(clock) > whole && !t.visible.IsZero() {
		t.visible = clock.Add(whole)
		t.VisibleAt, t.UpdatedAt = now.Add(whole), now
	}
}

type queueStore struct{ s *Store }

// Queue returns the store of the task queues, for queue.New.
func (s *Store) Queue() taskqueue.Store { return queueStore{s} }

// Add implements taskqueue.Store.
func (q queueStore) Add(ctx context.Context, name string, retries int,
	ids []string) ([]string, error) {
	return q.AddAfter(ctx, nil, name, retries, 0, ids)
}

// AddTx implements taskqueue.Store; tx must be a *Tx.
func (q queueStore) AddTx(ctx context.Context, tx any, name string, retries int,
	ids []string) ([]string, error) {
	return q.addTx(ctx, tx, name, retries, 0, ids)
}

// AddAfter implements taskqueue.Store.
func (q queueStore) AddAfter(ctx context.Context, tx any, name string, retries int,
	delay time.Duration, ids []string) (added []string, err error) {
	if tx != nil {
		return q.addTx(ctx, tx, name, retries, delay, ids)
	}
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		added = t.add(now, name, retries, delay, ids)
		return nil
	})
	return added, err
}

func (t *tables) add(now time.Time, name string, retries int, delay time.Duration,
	ids []string) (added []string) {
	for _, id := range ids {
		key := taskKey{name, id}
		if _, found := t.tasks[key]; found {
			continue
		}
		t.lastTask++
		k := task{seq: t.lastTask, Info: taskqueue.Info{Queue: name, ID: id,
			State: taskqueue.Pending, RetriesLeft: retries, AddedAt: now, UpdatedAt: now}}
		if delay > 0 {
			k.visible, k.VisibleAt = time.Now().Add(delay), now.Add(delay)
		}
		t.tasks[key] = k
		added = append(added, id)
	}
	return added
}

func (q queueStore) addTx(ctx context.Context, tx any, name string, retries int,
	delay time.Duration, ids []string) (added []string, err error) {
	err = q.s.inside(ctx, tx, taskqueue.ErrTx, func(tx *Tx, t *tables) error {
		for _, id := range ids {
			if _, found := t.tasks[taskKey{name, id}]; !found {
				added = append(added, id)
			}
		}
		adding := slices.Clone(added) // the caller gets added, and may write into it
		tx.commits = append(tx.commits, func(t *tables, now time.Time) {
			t.add(now, name, retries, delay, adding)
		})
		return nil
	})
	return added, err
}

// DoneTx implements taskqueue.Store; tx must be a *Tx.
func (q queueStore) DoneTx(ctx context.Context, tx any, name string, token driver.Token,
	_ time.Duration, ids []string) (done []string, err error) {
	err = q.s.inside(ctx, tx, taskqueue.ErrTx, func(tx *Tx, t *tables) error {
		for _, id := range ids {
			key := taskKey{name, id}
			if k := t.tasks[key]; !k.ours(token) || q.s.ending(key) {
				continue
			}
			tx.tasks[key] = true
			done = append(done, id)
			tx.commits = append(tx.commits, func(t *tables, now time.Time) {
				k := t.tasks[key]
				k.State, k.UpdatedAt, k.visible, k.VisibleAt = taskqueue.Done, now, time.Time{},
					time.Time{}
				t.tasks[key] = k
			})
		}
		return nil
	})
	return done, err
}

// ending reports whether an open transaction has ended a task; s.mu is held.
func (s *Store) ending(key taskKey) bool {
	for tx := range s.open {
		if tx.tasks[key] {
			return true
		}
	}
	return false
}

// errEnding is in the place of a wait for the end of a transaction.
var errEnding = errors.New("the task is ended by a transaction that is still open")

// Capture implements taskqueue.Store.
func (q queueStore) Capture(ctx context.Context, name string, token driver.Token,
	hold time.Duration, limit int) (tasks []taskqueue.Info, err error) {
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
			if q.s.ending(key) {
				held = true
				continue
			}
			k.mend(clock, now)
			t.tasks[key] = k
			due := !k.visible.After(clock)
			switch {
			case k.State == taskqueue.InProgress && due && k.RetriesLeft == 0:
				k.State, k.LastError, k.UpdatedAt = taskqueue.Failed, taskqueue.LostWorker, now
				k.visible, k.VisibleAt = time.Time{}, time.Time{}
				t.tasks[key], failed = k, true
			case (k.State == taskqueue.InProgress || k.State == taskqueue.Pending) && due:
				free = append(free, k)
			case k.State == taskqueue.InProgress || k.State == taskqueue.Pending:
				held = true
			}
		}
		slices.SortFunc(free, func(a, b task) int { return cmp.Compare(a.seq, b.seq) })
		for _, k := range free[:min(len(free), limit)] {
			if k.State == taskqueue.InProgress {
				k.RetriesLeft, k.LastError = k.RetriesLeft-1, taskqueue.LostWorker
			}
			k.State, k.token, k.visible = taskqueue.InProgress, token, clock.Add(hold)
			k.Attempts, k.VisibleAt, k.UpdatedAt = k.Attempts+1, now.Add(hold), now
			t.tasks[taskKey{name, k.ID}] = k
			tasks = append(tasks, k.Info)
		}
		switch {
		case len(tasks) > 0:
			return nil
		case held:
			return taskqueue.ErrAllHeld
		case failed:
			return taskqueue.ErrExhausted
		}
		return taskqueue.ErrEmpty
	})
	return tasks, err
}

// change changes the tasks that are the token's, and returns their ids.
func (q queueStore) change(ctx context.Context, name string, token driver.Token, ids []string,
	f func(*task)) (changed []string, err error) {
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		for _, id := range ids {
			if q.s.ending(taskKey{name, id}) {
				return errEnding
			}
		}
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

// Done implements taskqueue.Store.
func (q queueStore) Done(ctx context.Context, name string, token driver.Token,
	ids []string) (done []string, err error) {
	if _, err := q.change(ctx, name, token, ids, func(t *task) {
		t.State = taskqueue.Done
	}); err != nil {
		return nil, err
	}
	err = q.s.do(ctx, func(t *tables, _ time.Time) error { // just now, or before
		for _, id := range ids {
			if k := t.tasks[taskKey{name, id}]; k.State == taskqueue.Done && k.token == token {
				done = append(done, id)
			}
		}
		return nil
	})
	return done, err
}

// Extend implements taskqueue.Store.
func (q queueStore) Extend(ctx context.Context, name string, token driver.Token, hold time.Duration,
	ids []string) ([]string, error) {
	return q.change(ctx, name, token, ids, func(t *task) {
		t.visible, t.VisibleAt = time.Now().Add(hold), t.UpdatedAt.Add(hold)
	})
}

// Release implements taskqueue.Store.
func (q queueStore) Release(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	return q.change(ctx, name, token, ids, func(t *task) { t.State = taskqueue.Pending })
}

// Fail implements taskqueue.Store.
func (q queueStore) Fail(ctx context.Context, name string, token driver.Token, id, text string,
	delay time.Duration) (ended bool, err error) {
	ids, err := q.change(ctx, name, token, []string{id}, func(t *task) {
		t.LastError = text
		if t.RetriesLeft == 0 {
			t.State = taskqueue.Failed
			return
		}
		t.State, t.RetriesLeft = taskqueue.Pending, t.RetriesLeft-1
		if delay > 0 {
			t.visible, t.VisibleAt = time.Now().Add(delay), t.UpdatedAt.Add(delay)
		}
	})
	return len(ids) > 0, err
}

// Get implements taskqueue.Store.
func (q queueStore) Get(ctx context.Context, name,
	id string) (info taskqueue.Info, found bool, err error) {
	err = q.s.do(ctx, func(t *tables, _ time.Time) error {
		var k task
		k, found = t.tasks[taskKey{name, id}]
		info = k.Info
		return nil
	})
	return info, found, err
}

// List implements taskqueue.Store.
func (q queueStore) List(ctx context.Context, name string, state taskqueue.State,
	limit int) (tasks []taskqueue.Info, err error) {
	err = q.s.do(ctx, func(t *tables, _ time.Time) error {
		var found []task
		for key, k := range t.tasks {
			if key.queue == name && k.State == state {
				found = append(found, k)
			}
		}
		slices.SortFunc(found, func(a, b task) int {
			if state == taskqueue.Done || state == taskqueue.Failed {
				return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(b.seq, a.seq))
			}
			return cmp.Or(a.visible.Compare(b.visible), cmp.Compare(a.seq, b.seq)) // zero first
		})
		for _, k := range found[:min(len(found), limit)] {
			tasks = append(tasks, k.Info)
		}
		return nil
	})
	return tasks, err
}

// Count implements taskqueue.Store.
func (q queueStore) Count(ctx context.Context) (counts []taskqueue.Count, err error) {
	err = q.s.do(ctx, func(t *tables, _ time.Time) error {
		by := map[string]taskqueue.Count{}
		for key, k := range t.tasks {
			c := by[key.queue]
			c.Queue = key.queue
			switch {
			case k.State == taskqueue.Pending && k.visible.After(time.Now()):
				c.Delayed++
			case k.State == taskqueue.Pending:
				c.Pending++
			case k.State == taskqueue.InProgress:
				c.InProgress++
			case k.State == taskqueue.Done:
				c.Done++
			default:
				c.Failed++
			}
			by[key.queue] = c
		}
		counts = slices.SortedFunc(maps.Values(by), func(a, b taskqueue.Count) int {
			return cmp.Compare(a.Queue, b.Queue)
		})
		counts = counts[:min(len(counts), 1000)]
		return nil
	})
	return counts, err
}

// Requeue implements taskqueue.Store.
func (q queueStore) Requeue(ctx context.Context, name string, retries int,
	ids []string) (requeued []string, err error) {
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		for _, id := range ids {
			key := taskKey{name, id}
			if k := t.tasks[key]; k.State == taskqueue.Done || k.State == taskqueue.Failed {
				k.State, k.RetriesLeft, k.token, k.UpdatedAt = taskqueue.Pending, retries,
					driver.Token{}, now
				t.tasks[key] = k
				requeued = append(requeued, id)
			}
		}
		return nil
	})
	return requeued, err
}

// Prune implements taskqueue.Store.
func (q queueStore) Prune(ctx context.Context, name string, olderThan time.Duration,
	limit int) (deleted int64, err error) {
	err = q.s.do(ctx, func(t *tables, now time.Time) error {
		for key, k := range t.tasks {
			if key.queue != name || k.State != taskqueue.Done && k.State != taskqueue.Failed ||
				k.UpdatedAt.After(now.Add(-olderThan)) {
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

// AgeTasks makes the tasks of all queues older, as if d had passed since they were
// written; below 0, as if the clock that judges had been set back by that.
func (s *Store) AgeTasks(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range s.tables.tasks {
		k.UpdatedAt = k.UpdatedAt.Add(-d)
		if !k.visible.IsZero() {
			k.visible, k.VisibleAt = k.visible.Add(-d), k.VisibleAt.Add(-d)
		}
		s.tables.tasks[key] = k
	}
}
