package locktest

import (
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Operators look at tasks, and begin them anew.
var queueListCases = []queueCase{
	{Rule: Rule{33, "tasks can be listed",
		"List returns tasks of its queue that are in the state, as Get has them, at most limit: " +
			"pending ones in their order with the delayed ones last, those in progress by when " +
			"their time-out passes, those that have ended the latest first.",
		"nobody sees what waits, hangs or has failed.", nil},
		run: func(e *queueEnv) {
			e.of("other").add(0, "x")
			e.add(0, "done 1", "failed", "done 2", "held last", "held first")
			token, _ := e.capture(2*long, 5, "done 1", "failed", "done 2", "held last",
				"held first")
			for _, id := range []string{"done 2", "done 1"} {
				e.done(token, id)
				time.Sleep(5 * time.Millisecond) // clocks in milliseconds
			}
			e.fail(token, "failed", "why", 0)
			e.extend(token, long, "held first")
			e.addAfter(0, 2*long, "next year")
			e.addAfter(0, long, "tomorrow")
			e.add(0, "z", "a")
			for state, want := range map[taskqueue.State][]string{
				taskqueue.Pending:    {"z", "a", "tomorrow", "next year"},
				taskqueue.InProgress: {"held first", "held last"},
				taskqueue.Done:       {"done 1", "done 2"},
				taskqueue.Failed:     {"failed"},
			} {
				for limit := 1; limit <= 5; limit++ {
					tasks, err := e.q.List(e.ctx, "q", state, limit)
					require.NoError(e, err)
					require.Equal(e, want[:min(limit, len(want))], idsOf(tasks),
						"List of %s", state)
					for _, task := range tasks {
						require.Equal(e, e.get(task.ID), task)
					}
				}
			}
		}},
	{Rule: Rule{34, "tasks are counted",
		"Count counts the tasks of each queue by state, those with a delay apart, in the order " +
			"of the names; a queue without a task is not there.",
		"nobody is told that a queue grows.", nil},
		run: func(e *queueEnv) {
			counts, err := e.q.Count(e.ctx)
			require.NoError(e, err)
			require.Empty(e, counts)
			e.of("other").add(0, "x")
			e.add(1, names(15)...)
			ids := names(15)
			token, _ := e.capture(long, 10, ids[:10]...)
			e.done(token, ids[:4]...)
			e.fail(token, ids[4], "why", long)
			e.release(token, ids[5])
			e.addAfter(0, long, "later")
			failed := e.of("failed")
			failed.add(0, "a")
			token, _ = failed.capture(long, 1, "a")
			failed.fail(token, "a", "why", 0)
			counts, err = e.q.Count(e.ctx)
			require.NoError(e, err)
			require.Equal(e, []taskqueue.Count{{Queue: "failed", Failed: 1},
				{Queue: "other", Pending: 1},
				{Queue: "q", Pending: 6, Delayed: 2, InProgress: 4, Done: 4}}, counts)
		}},
	{Rule: Rule{35, "what has ended can begin anew",
		"Requeue makes tasks that are done or failed pending, at their old place, with the " +
			"retries given and the error that they had, returns their ids, and does nothing to " +
			"others; the worker before ends them no more.",
		"an operator cannot try again what has failed, or does it twice.", nil},
		run: func(e *queueEnv) {
			e.add(0, "done", "failed", "held", "pending")
			token, _ := e.capture(long, 3, "done", "failed", "held")
			e.done(token, "done")
			e.fail(token, "failed", "why", 0)
			e.unchanged(func() {
				requeued, err := e.q.Requeue(e.ctx, "q", 3,
					[]string{"pending", "held", "done", "none", "failed"})
				require.NoError(e, err)
				require.ElementsMatch(e, []string{"done", "failed"}, requeued)
				requeued, err = e.q.Requeue(e.ctx, "other", 3, []string{"done"})
				require.NoError(e, err)
				require.Empty(e, requeued, "another queue")
			}, "Requeue", "held", "pending")
			require.Equal(e, "why", e.in("failed", taskqueue.Pending, 3).LastError)
			done, err := e.q.Done(e.ctx, "q", token, []string{"done"})
			require.NoError(e, err)
			require.Empty(e, done, "Done by the worker before")
			_, tasks := e.capture(long, 10, "done", "failed", "pending")
			require.Equal(e, 2, tasks[0].Attempts)
		}},
	{Rule: Rule{36, "an ended context ends these calls, too",
		"AddAfter, List, Count and Requeue with a context that has ended return an error, soon, " +
			"and write nothing.",
		"a page or a command hangs.", nil},
		run: func(e *queueEnv) {
			e.add(0, "a")
			token, _ := e.capture(long, 1, "a")
			e.done(token, "a")
			over := ended()
			e.heeded(map[string]func() error{
				"AddAfter": func() error {
					_, err := e.q.AddAfter(over, nil, "q", 1, long, []string{"newer"})
					return err
				},
				"List":    func() error { return err1(e.q.List(over, "q", taskqueue.Done, 1)) },
				"Count":   func() error { return err1(e.q.Count(over)) },
				"Requeue": func() error { return err1(e.q.Requeue(over, "q", 1, []string{"a"})) },
			}, "a")
			e.absent("newer", "AddAfter with an ended context")
		}},
}
