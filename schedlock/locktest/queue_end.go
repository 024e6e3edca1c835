package locktest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Calls end an attempt, or are too late.
var queueEndCases = []queueCase{
	{Rule: Rule{13, "done is done",
		"Done ends a task for good: it is never captured again. The same Done may be repeated; " +
			"no other call ends it, or begins it anew.",
		"work that was done is done again.", nil},
		run: func(e *queueEnv) {
			e.add(9, "a")
			token, _ := e.capture(brief, 1, "a")
			e.await("Done in time", func() error { // on a busy machine
				done, err := e.q.Done(e.ctx, "q", token, []string{"a"})
				require.NoError(e, err)
				if len(done) == 0 {
					token, _ = e.capture(brief, 1, "a")
					return errors.New("it was lost")
				}
				return nil
			})
			info := e.get("a")
			require.Equal(e, taskqueue.Done, info.State)
			require.Zero(e, info.VisibleAt)
			e.unchanged(func() { e.done(token, "a") }, "Done again", "a")
			e.lost()
			e.unchanged(func() { e.done(token, "a") }, "Done again, later", "a")
			e.none(taskqueue.ErrEmpty, "it is done")
			e.refused("another token", "q", mine())
			e.refusedButDone("after Done", "q", token)
		}},
	{Rule: Rule{14, "a list ends what is ours",
		"Done, Extend and Release of several tasks return those for which they did it, and do " +
			"nothing to the others.",
		"one task that was lost spoils all that were done with it.", nil},
		run: func(e *queueEnv) {
			e.add(1, "a", "b", "c", "d")
			token, _ := e.capture(long, 3, "a", "b", "c")
			other, _ := e.capture(long, 1, "d")
			extended, err := e.q.Extend(e.ctx, "q", token, 2*long,
				[]string{"d", "a", "b", "c", "e"})
			require.NoError(e, err)
			require.ElementsMatch(e, []string{"a", "b", "c"}, extended)
			done, err := e.q.Done(e.ctx, "q", token, []string{"d", "a", "b", "e"})
			require.NoError(e, err)
			require.ElementsMatch(e, []string{"a", "b"}, done)
			released, err := e.q.Release(e.ctx, "q", token, []string{"a", "d", "c"})
			require.NoError(e, err)
			require.Equal(e, []string{"c"}, released)
			e.in("a", taskqueue.Done, 1)
			e.in("b", taskqueue.Done, 1)
			e.in("c", taskqueue.Pending, 1)
			e.in("d", taskqueue.InProgress, 1)
			e.done(other, "d")
		}},
	{Rule: Rule{15, "only who has a task ends it",
		"Done, Extend, Release and Fail with another token, or of another queue, change nothing.",
		"one worker ends what another has begun.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a")
			e.refused("nobody has it", "q", mine())
			token, _ := e.capture(long, 1, "a")
			e.refused("another token", "q", mine())
			e.refused("another queue", "other", token)
			e.done(token, "a")
		}},
	{Rule: Rule{16, "a late call is too late",
		"Done, Extend, Release and Fail change nothing once the time-out has passed, though " +
			"nobody has captured the task since.",
		"Extend revives what another is about to take.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a")
			token, _ := e.capture(brief, 1, "a")
			e.lost()
			e.refused("the time-out has passed", "q", token)
			e.in("a", taskqueue.InProgress, 2)
		}},
	{Rule: Rule{17, "the next worker is not disturbed",
		"After a task was captured again, released or failed, the calls of the worker before " +
			"change nothing.",
		"a worker that was paused ends what the next one has just begun.", nil},
		run: func(e *queueEnv) {
			e.add(9, "a")
			first, _ := e.capture(brief, 1, "a")
			e.lost()
			second, _ := e.capture(long, 1, "a")
			e.refused("another has captured it", "q", first)
			e.release(second, "a")
			e.refused("it was released", "q", second)
			third, _ := e.capture(long, 1, "a")
			e.refused("captured again after a release", "q", second)
			e.fail(third, "a", "why", 0)
			e.refused("it has failed", "q", third)
			fourth, _ := e.capture(long, 1, "a")
			e.refused("captured again after a failure", "q", third)
			e.done(fourth, "a")
		}},
	{Rule: Rule{18, "an extension counts from now",
		"Extend lets the time-out pass after its hold from now, whether that is later or earlier.",
		"a task that takes long is done twice.", nil},
		run: func(e *queueEnv) {
			e.add(9, "a", "b")
			e.await("Extend in time", func() error { // on a busy machine
				token, _ := e.capture(3*brief, 1, "a")
				extended, err := e.q.Extend(e.ctx, "q", token, long, []string{"a"})
				require.NoError(e, err)
				if len(extended) == 0 {
					e.lost()
					return errors.New("it was lost")
				}
				return nil
			})
			retries := e.get("a").RetriesLeft
			token, _ := e.capture(long, 1, "b")
			e.extend(token, brief, "b")
			time.Sleep(3 * brief)
			e.capture(long, 10, "b")
			e.in("a", taskqueue.InProgress, retries)
			require.Equal(e, retries, 9-(e.get("a").Attempts-1), "an extension is no attempt")
		}},
}
