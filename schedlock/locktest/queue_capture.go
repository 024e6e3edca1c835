package locktest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Tasks are captured, lost, and captured again.
var queueCaptureCases = []queueCase{
	{Rule: Rule{7, "the oldest come first",
		"Capture returns tasks of its queue in the order in which they were added, at most " +
			"limit, as Get has them: in progress, with one attempt more and all their retries.",
		"old work waits for ever behind new work.", nil},
		run: func(e *queueEnv) {
			e.of("other").add(0, "x")
			ids := names(12)
			slices.Reverse(ids) // neither by name
			e.add(2, ids[:6]...)
			for _, id := range ids[6:] {
				e.add(2, id)
			}
			_, first := e.capture(long, 5, ids[:5]...)
			_, rest := e.capture(long, 10, ids[5:]...)
			for _, task := range slices.Concat(first, rest) {
				require.Equal(e, e.get(task.ID), task)
				require.Equal(e, taskqueue.InProgress, task.State)
				require.Equal(e, 1, task.Attempts)
				require.Equal(e, 2, task.RetriesLeft)
				require.False(e, task.VisibleAt.IsZero(), "VisibleAt")
			}
			e.none(taskqueue.ErrAllHeld, "all are held")
		}},
	{Rule: Rule{8, "a task is one worker's",
		"Of many that capture at the same time each task is given to exactly one.",
		"two workers do the same work.", nil},
		run: func(e *queueEnv) {
			const tasks = 200
			e.add(0, names(tasks)...)
			var (
				mu  sync.Mutex
				all []string
			)
			e.many(8, func(i int, q taskqueue.Store) {
				for begin := time.Now(); time.Since(begin) < e.patience; {
					infos, err := q.Capture(e.ctx, "q", mine(), long, 1+i%3)
					mu.Lock()
					all = append(all, idsOf(infos)...)
					n := len(all)
					mu.Unlock()
					switch {
					case err != nil && n >= tasks:
						return
					case err != nil: // others are at it
						time.Sleep(time.Millisecond)
					}
				}
			})
			slices.Sort(all)
			require.Equal(e, names(tasks), all)
		}},
	{Rule: Rule{9, "a lost task comes back",
		"A task is captured by nobody else before its time-out has passed, and can be " +
			"afterwards, which costs a retry; its error is LostWorker then.",
		"two workers do the same work, or what a dead one had is never done.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a")
			var before time.Time
			for attempt := 1; attempt <= 3; attempt++ {
				var (
					info taskqueue.Info
					sent time.Time
				)
				e.await("the task comes back", func() error {
					sent = time.Now()
					tasks, err := e.q.Capture(e.ctx, "q", mine(), 3*brief, 10)
					if err == nil {
						info = tasks[0]
					} else if !errors.Is(err, taskqueue.ErrAllHeld) {
						e.Fatalf("Capture: %v", err)
					}
					return err
				})
				require.Equal(e, e.get("a"), info)
				require.Equal(e, attempt, info.Attempts)
				require.Equal(e, 3-attempt, info.RetriesLeft)
				if attempt > 1 {
					require.Equal(e, taskqueue.LostWorker, info.LastError)
					require.GreaterOrEqual(e, time.Since(before), 2*brief,
						"it was taken away too early")
				}
				before = sent
			}
		}},
	{Rule: Rule{10, "a task that is lost too often fails",
		"A task whose time-out has passed, and that has no retry left, is given to nobody: " +
			"Capture makes it failed, with the error LostWorker.",
		"a task that kills its workers kills all of them, one after the other.", nil},
		run: func(e *queueEnv) {
			e.add(0, "a")
			e.capture(brief, 1, "a")
			e.lost()
			e.none(taskqueue.ErrExhausted, "it was lost, and had no retry")
			info := e.in("a", taskqueue.Failed, 0)
			require.Equal(e, taskqueue.LostWorker, info.LastError)
			require.Equal(e, 1, info.Attempts)
			require.Zero(e, info.VisibleAt)
			e.none(taskqueue.ErrEmpty, "again: there is nothing to wait for")
		}},
	{Rule: Rule{11, "no task is told apart from no task now",
		"Capture that gets nothing returns ErrAllHeld if any task is held or delayed, else " +
			"ErrExhausted if it has itself found the last ones lost, else ErrEmpty, whatever has " +
			"failed before.",
		"workers wait for ever for what has failed, or stop while there is work.", nil},
		run: func(e *queueEnv) {
			e.of("other").add(0, "x")
			e.none(taskqueue.ErrEmpty, "there never was a task")
			e.add(1, "done", "delayed", "failed", "held")
			token, _ := e.capture(long, 10, "done", "delayed", "failed", "held")
			e.none(taskqueue.ErrAllHeld, "all are held")
			e.done(token, "done")
			e.fail(token, "delayed", "why", long)
			e.fail(token, "failed", "why", 0)
			token2, _ := e.capture(long, 10, "failed")
			e.fail(token2, "failed", "why", 0)
			e.in("failed", taskqueue.Failed, 0)
			e.none(taskqueue.ErrAllHeld, "one is held, one delayed, one failed, one done")
			e.done(token, "held")
			e.none(taskqueue.ErrAllHeld, "one is delayed, one failed, two done")
			done := e.of("only done")
			done.add(0, "a")
			token, _ = done.capture(long, 1, "a")
			done.done(token, "a")
			done.none(taskqueue.ErrEmpty, "all are done")
			old := e.of("old")
			old.add(0, "failed", "later")
			token, _ = old.capture(long, 1, "failed")
			old.fail(token, "failed", "why", 0)
			token, _ = old.capture(long, 1, "later")
			old.none(taskqueue.ErrAllHeld, "the other is held")
			old.done(token, "later")
			for range 2 {
				old.none(taskqueue.ErrEmpty, "one has failed long ago, and the queue is idle")
			}
		}},
	{Rule: Rule{12, "what has failed hides nothing",
		"However many lost tasks have no retry left, a Capture with a small limit gets a task " +
			"that can be captured.",
		"a few poisonous tasks stop the queue.", nil},
		run: func(e *queueEnv) {
			dead := names(20)
			e.add(0, dead...)
			e.add(1, "lost")
			e.capture(brief, 21, append(dead, "lost")...)
			e.add(0, "new")
			e.lost()
			e.capture(long, 1, "lost")
			e.capture(long, 1, "new")
			e.none(taskqueue.ErrAllHeld, "two are held")
			for _, id := range dead {
				e.in(id, taskqueue.Failed, 0)
			}
		}},
}
