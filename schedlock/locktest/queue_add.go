package locktest

import (
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Tasks are added.
var queueAddCases = []queueCase{
	{Rule: Rule{1, "a task is added",
		"Add inserts tasks that are pending, with all their retries, and the database's time in " +
			"UTC, and returns their ids; Get returns them so. Get finds no other.",
		"work that was asked for is never done.", nil},
		run: func(e *queueEnv) {
			e.add(3, "a", "b")
			for _, id := range []string{"a", "b"} {
				info := e.get(id)
				require.Equal(e, time.UTC, info.AddedAt.Location())
				require.Equal(e, info.AddedAt, info.UpdatedAt)
				require.WithinDuration(e, time.Now(), info.AddedAt, time.Hour)
				info.AddedAt, info.UpdatedAt = time.Time{}, time.Time{}
				require.Equal(e, taskqueue.Info{Queue: "q",
					ID: id, State: taskqueue.Pending, RetriesLeft: 3}, info)
			}
			e.absent("c", "it was never added")
			e.of("other").absent("a", "another queue")
		}},
	{Rule: Rule{2, "an id is added once",
		"Add of an id that the queue has, in whatever state, does not return it and changes " +
			"nothing; the others are added. Another queue is no concern.",
		"a task runs twice because a request was repeated, or one that has ended begins anew.",
		nil},
		run: func(e *queueEnv) {
			e.add(0, "done", "failed", "held", "pending")
			token, _ := e.capture(long, 3, "done", "failed", "held")
			e.done(token, "done")
			e.fail(token, "failed", "why", 0)
			all := []string{"done", "failed", "held", "pending"}
			e.unchanged(func() {
				added, err := e.q.Add(e.ctx, "q", 9, append([]string{"new"}, all...))
				require.NoError(e, err)
				require.Equal(e, []string{"new"}, added)
			}, "Add again", all...)
			e.of("other").add(0, all...)
		}},
	{Rule: Rule{3, "of many that add an id one does",
		"Of many that add the same ids at the same time each id is returned to exactly one.",
		"two callers each believe that the task is theirs to prepare.", nil},
		run: func(e *queueEnv) {
			var (
				mu  sync.Mutex
				all []string
			)
			e.many(8, func(i int, q taskqueue.Store) {
				for _, id := range names(20) {
					var added []string
					err := e.insistently(func() (err error) {
						added, err = q.Add(e.ctx, "q", 0, []string{id})
						return err
					})
					mu.Lock()
					all = append(all, added...)
					mu.Unlock()
					if err != nil {
						e.Errorf("Add: %v", err)
					}
				}
			})
			slices.Sort(all)
			require.Equal(e, names(20), all)
		}},
	{Rule: Rule{4, "names are kept",
		"Names of queues and tasks have up to 200 bytes, with quotes and any letters, and are " +
			"told apart by their bytes.",
		"two customers share a task, or a task is never found again.", nil},
		run: func(e *queueEnv) {
			e.add(0, awkward...)
			token, tasks := e.capture(long, len(awkward), awkward...)
			for i, id := range awkward {
				require.Equal(e, tasks[i], e.get(id))
			}
			e.done(token, awkward...)
			for _, name := range awkward {
				added, err := e.q.Add(e.ctx, name, 0, []string{"a"})
				require.NoError(e, err, "queue %q", name)
				require.Len(e, added, 1, "queue %q", name)
				tasks, err := e.q.Capture(e.ctx, name, mine(), long, 2)
				require.NoError(e, err, "queue %q", name)
				require.Equal(e, name, tasks[0].Queue)
			}
		}},
	{Rule: Rule{5, "a task comes with its transaction",
		"What AddTx has added is there once the transaction has been committed, and not after a " +
			"roll-back.",
		"a worker gets a task whose rows are not there, or rows wait for a task that never comes.",
		[]Feature{Transactions}},
		run: func(e *queueEnv) {
			for id, committed := range map[string]bool{"a": true, "b": false} {
				e.inTx(committed, func(tx any) {
					added, err := e.q.AddTx(e.ctx, tx, "q", 2, []string{id})
					require.NoError(e, err)
					require.Equal(e, []string{id}, added)
				})
			}
			e.in("a", taskqueue.Pending, 2)
			e.inTx(true, func(tx any) {
				added, err := e.q.AddTx(e.ctx, tx, "q", 2, []string{"a", "c"})
				require.NoError(e, err)
				require.Equal(e, []string{"c"}, added, "one is there already")
			})
			e.capture(long, 10, "a", "c")
		}},
	{Rule: Rule{6, "what is no transaction is refused",
		"AddTx of something that is no transaction of the store's kind returns ErrTx, and adds " +
			"nothing.",
		"a task is added though its transaction was rolled back.", nil},
		run: func(e *queueEnv) {
			for _, tx := range []any{nil, "a string", 1} {
				_, err := e.q.AddTx(e.ctx, tx, "q", 2, []string{"a"})
				require.ErrorIs(e, err, taskqueue.ErrTx)
			}
			e.none(taskqueue.ErrEmpty, "after AddTx")
		}},
}
