package locktest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Tasks are released, fail, wait, and are pruned.
var queueFailCases = []queueCase{
	{Rule: Rule{19, "a release costs nothing",
		"Release makes a task pending at its old place, with all its retries and the error that " +
			"it had.",
		"a deploy uses up the retries of all that runs.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "b", "c")
			token, _ := e.capture(long, 1, "a")
			e.fail(token, "a", "why", 0)
			token, _ = e.capture(long, 2, "a", "b")
			e.release(token, "b", "a")
			info := e.in("a", taskqueue.Pending, 1)
			require.Equal(e, "why", info.LastError)
			require.Zero(e, info.VisibleAt)
			e.in("b", taskqueue.Pending, 2)
			e.capture(long, 10, "a", "b", "c")
		}},
	{Rule: Rule{20, "a failure costs a retry",
		"Fail with a retry left makes a task pending, with one retry less and the error; without " +
			"a delay it can be captured at once, at its old place.",
		"what fails once is never done, or tried for ever.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "b")
			for left := 1; left >= 0; left-- {
				token, tasks := e.capture(long, 1, "a")
				require.Equal(e, left+1, tasks[0].RetriesLeft)
				e.fail(token, "a", fmt.Sprintf("error %d", left), 0)
				info := e.in("a", taskqueue.Pending, left)
				require.Equal(e, fmt.Sprintf("error %d", left), info.LastError)
				require.Zero(e, info.VisibleAt)
			}
			_, tasks := e.capture(long, 10, "a", "b")
			require.Equal(e, 3, tasks[0].Attempts)
			require.Equal(e, "error 0", tasks[0].LastError)
			require.Empty(e, tasks[1].LastError)
		}},
	{Rule: Rule{21, "a delay is waited out",
		"A task that has failed with a delay is captured by nobody before that has passed, and " +
			"can be afterwards, which costs no second retry.",
		"what fails is tried again at once, until no retry is left.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "b")
			token, _ := e.capture(long, 2, "a", "b")
			e.fail(token, "b", "why", long)
			sent := time.Now()
			e.fail(token, "a", "why", 3*brief)
			info := e.in("a", taskqueue.Pending, 1)
			require.False(e, info.VisibleAt.IsZero(), "VisibleAt")
			var tasks []taskqueue.Info
			e.await("the delay is over", func() (err error) {
				tasks, err = e.q.Capture(e.ctx, "q", mine(), long, 10)
				return err
			})
			require.GreaterOrEqual(e, time.Since(sent), 2*brief, "the delay is not over")
			require.Equal(e, []string{"a"}, idsOf(tasks))
			require.Equal(e, 1, tasks[0].RetriesLeft)
			require.Equal(e, "why", tasks[0].LastError)
			done, err := e.q.Done(e.ctx, "q", token, []string{"b"})
			require.NoError(e, err)
			require.Empty(e, done, "Done of what has failed, while it is delayed")
		}},
	{Rule: Rule{22, "without a retry a failure is the end",
		"Fail without a retry left makes a task failed, with the error, whatever the delay; it " +
			"is never captured again.",
		"a task that cannot succeed is tried for ever.", nil},
		run: func(e *queueEnv) {
			e.add(0, "a", "b")
			token, _ := e.capture(long, 2, "a", "b")
			e.fail(token, "a", "why", 0)
			e.fail(token, "b", "why", brief)
			e.lost()
			e.none(taskqueue.ErrEmpty, "both have failed")
			for _, id := range []string{"a", "b"} {
				info := e.in(id, taskqueue.Failed, 0)
				require.Equal(e, "why", info.LastError)
				require.Zero(e, info.VisibleAt)
			}
			e.refused("it has failed", "q", token)
		}},
	{Rule: Rule{23, "the order outlives a detour",
		"Of what can be captured the oldest come first, whether they are new, released, lost, or " +
			"were delayed.",
		"a task that failed once waits behind all that came since.", nil},
		run: func(e *queueEnv) {
			e.add(9, "lost", "released", "delayed", "failed", "new")
			token, _ := e.capture(long, 4, "lost", "released", "delayed", "failed")
			e.extend(token, brief, "lost")
			e.fail(token, "failed", "why", 0)
			e.fail(token, "delayed", "why", brief)
			e.release(token, "released")
			e.lost()
			e.capture(long, 2, "lost", "released")
			e.capture(long, 1, "delayed")
			e.capture(long, 9, "failed", "new")
		}},
	{Rule: Rule{24, "an error is kept",
		"Fail keeps 1,000 characters of any kind, with line breaks and quotes; no text is no " +
			"error.",
		"nobody knows why it failed.", nil},
		run: func(e *queueEnv) {
			for i, text := range []string{"", "line 1\nline \"2\" — 'ü' 日本",
				strings.Repeat("ü🦀", 500), strings.Repeat("x", 1000)} {
				id := fmt.Sprint(i)
				e.add(0, id)
				token, _ := e.capture(long, 1, id)
				e.fail(token, id, text, 0)
				require.Equal(e, text, e.get(id).LastError)
			}
		}},
	{Rule: Rule{25, "what has ended is pruned",
		"Prune deletes tasks of its queue that are done or failed and have been so for the time " +
			"given, at most limit, and tells how many; their ids can be added anew.",
		"the table grows for ever, or work that waits is lost.", nil},
		run: func(e *queueEnv) {
			other := e.of("other")
			other.add(0, "done 1")
			other.capture(long, 1, "done 1")
			e.add(0, "done 1", "done 2", "done 3", "failed", "held", "pending")
			token, _ := e.capture(long, 5, "done 1", "done 2", "done 3", "failed", "held")
			e.done(token, "done 1", "done 2", "done 3")
			e.fail(token, "failed", "why", 0)
			prune := func(olderThan time.Duration, limit int, want int64) {
				e.Helper()
				deleted, err := e.q.Prune(e.ctx, "q", olderThan, limit)
				require.NoError(e, err)
				require.Equal(e, want, deleted)
			}
			prune(time.Hour, 10, 0)
			time.Sleep(2 * time.Millisecond)
			prune(0, 3, 3)
			prune(0, 3, 1)
			prune(0, 3, 0)
			e.in("held", taskqueue.InProgress, 0)
			e.in("pending", taskqueue.Pending, 0)
			e.add(0, "done 1")
			e.done(token, "held")
			other.in("done 1", taskqueue.InProgress, 0)
		}},
	{Rule: Rule{26, "an ended context ends a call",
		"Add, Capture, Done, Extend, Release, Fail, Get and Prune with a context that has ended " +
			"return an error, soon, and write nothing.",
		"a worker that was told to stop captures tasks that nobody works on.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "done", "new")
			token, _ := e.capture(long, 2, "a", "done")
			e.done(token, "done")
			over, a := ended(), []string{"a"}
			e.heeded(map[string]func() error{
				"Add":     func() error { return err1(e.q.Add(over, "q", 1, []string{"newer"})) },
				"Capture": func() error { return err1(e.q.Capture(over, "q", mine(), long, 1)) },
				"Done":    func() error { return err1(e.q.Done(over, "q", token, a)) },
				"Extend":  func() error { return err1(e.q.Extend(over, "q", token, 2*long, a)) },
				"Release": func() error { return err1(e.q.Release(over, "q", token, a)) },
				"Fail":    func() error { return err1(e.q.Fail(over, "q", token, "a", "why", 0)) },
				"Get":     func() error { return err2(e.q.Get(over, "q", "a")) },
				"Prune":   func() error { return err1(e.q.Prune(over, "q", 0, 1)) },
			}, "a", "done", "new")
			e.absent("newer", "Add with an ended context")
		}},
	{Rule: Rule{27, "a clock that is set back holds nothing",
		"If more is left of a time-out or a delay than its whole length, since the clock was set " +
			"back, Capture lets it pass that length from then; the worker goes on.",
		"a task whose worker has died is stuck for an hour.", []Feature{Clocks}},
		run: func(e *queueEnv) {
			e.add(2, "alive", "delayed", "lost")
			e.add(0, "last")
			alive, _ := e.capture(long, 1, "alive")
			token, _ := e.capture(long, 1, "delayed")
			e.fail(token, "delayed", "why", 3*brief)
			e.capture(3*brief, 2, "lost", "last")
			e.db.SetBack(e, time.Hour)
			start := time.Now()
			e.patience *= 8 // a store may look for such tasks now and then only
			var ids []string
			e.await("all but what is held comes back", func() error {
				tasks, err := e.q.Capture(e.ctx, "q", mine(), long, 10)
				if err != nil && !errors.Is(err, taskqueue.ErrNone) {
					e.Fatalf("Capture: %v", err)
				}
				ids = append(ids, idsOf(tasks)...)
				if last := e.get("last").State; len(ids) < 2 || last != taskqueue.Failed {
					return fmt.Errorf("captured are %q, and the one without a retry is %s",
						ids, last)
				}
				return nil
			})
			require.ElementsMatch(e, []string{"delayed", "lost"}, ids)
			require.GreaterOrEqual(e, time.Since(start), 2*brief, "they were taken away too early")
			e.extend(alive, long, "alive")
			e.none(taskqueue.ErrAllHeld, "all are held")
			e.done(alive, "alive")
		}},
}
