package locktest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/tasks/queue"
)

var queueCases = []queueCase{
	{Rule: Rule{1, "a task is added",
		"Add inserts tasks that are pending, with all their retries, and the database's time in UTC, and returns their ids; Get returns them so. Get finds no other.",
		"work that was asked for is never done.", nil},
		run: func(e *queueEnv) {
			e.add(3, "a", "b")
			for _, id := range []string{"a", "b"} {
				info := e.get(id)
				require.Equal(e, time.UTC, info.AddedAt.Location())
				require.Equal(e, info.AddedAt, info.UpdatedAt)
				require.WithinDuration(e, time.Now(), info.AddedAt, time.Hour)
				info.AddedAt, info.UpdatedAt = time.Time{}, time.Time{}
				require.Equal(e, queue.Info{Queue: "q", ID: id, State: queue.Pending, RetriesLeft: 3}, info)
			}
			for _, key := range [][2]string{{"q", "c"}, {"other", "a"}} {
				_, found, err := e.q.Get(e.ctx, key[0], key[1])
				require.NoError(e, err)
				require.False(e, found, "Get of %v", key)
			}
		}},
	{Rule: Rule{2, "an id is added once",
		"Add of an id that the queue has, in whatever state, does not return it and changes nothing; the others are added. Another queue is no concern.",
		"a task runs twice because a request was repeated, or one that has ended begins anew.", nil},
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
			added, err := e.q.Add(e.ctx, "other", 0, all)
			require.NoError(e, err)
			require.ElementsMatch(e, all, added, "another queue")
		}},
	{Rule: Rule{3, "of many that add an id one does",
		"Of many that add the same ids at the same time each id is returned to exactly one.",
		"two callers each believe that the task is theirs to prepare.", nil},
		run: func(e *queueEnv) {
			var (
				mu  sync.Mutex
				all []string
			)
			e.many(8, func(i int, q queue.Store) {
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
		"Names of queues and tasks have up to 200 bytes, with quotes and any letters, and are told apart by their bytes.",
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
		"What AddTx has added is there once the transaction has been committed, and not after a roll-back.",
		"a worker gets a task whose rows are not there, or rows wait for a task that never comes.", []Feature{Transactions}},
		run: func(e *queueEnv) {
			for id, committed := range map[string]bool{"a": true, "b": false} {
				tx := e.db.Begin(e)
				added, err := e.q.AddTx(e.ctx, tx.Tx, "q", 2, []string{id})
				require.NoError(e, err)
				require.Equal(e, []string{id}, added)
				if committed {
					require.NoError(e, tx.Commit())
				} else {
					require.NoError(e, tx.Rollback())
				}
			}
			e.in("a", queue.Pending, 2)
			tx := e.db.Begin(e)
			added, err := e.q.AddTx(e.ctx, tx.Tx, "q", 2, []string{"a", "c"})
			require.NoError(e, err)
			require.Equal(e, []string{"c"}, added, "one is there already")
			require.NoError(e, tx.Commit())
			e.capture(long, 10, "a", "c")
		}},
	{Rule: Rule{6, "what is no transaction is refused",
		"AddTx of something that is no transaction of the store's kind returns ErrTx, and adds nothing.",
		"a task is added though its transaction was rolled back.", nil},
		run: func(e *queueEnv) {
			for _, tx := range []any{nil, "a string", 1} {
				_, err := e.q.AddTx(e.ctx, tx, "q", 2, []string{"a"})
				require.ErrorIs(e, err, queue.ErrTx)
			}
			e.none(queue.ErrEmpty, "after AddTx")
		}},
	{Rule: Rule{7, "the oldest come first",
		"Capture returns tasks of its queue in the order in which they were added, at most limit, as Get has them: in progress, with one attempt more and all their retries.",
		"old work waits for ever behind new work.", nil},
		run: func(e *queueEnv) {
			_, err := e.q.Add(e.ctx, "other", 0, []string{"x"})
			require.NoError(e, err)
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
				require.Equal(e, queue.InProgress, task.State)
				require.Equal(e, 1, task.Attempts)
				require.Equal(e, 2, task.RetriesLeft)
				require.False(e, task.VisibleAt.IsZero(), "VisibleAt")
			}
			e.none(queue.ErrAllHeld, "all are held")
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
			e.many(8, func(i int, q queue.Store) {
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
		"A task is captured by nobody else before its time-out has passed, and can be afterwards, which costs a retry; its error is LostWorker then.",
		"two workers do the same work, or what a dead one had is never done.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a")
			var before time.Time
			for attempt := 1; attempt <= 3; attempt++ {
				var (
					info queue.Info
					sent time.Time
				)
				e.await("the task comes back", func() error {
					sent = time.Now()
					tasks, err := e.q.Capture(e.ctx, "q", mine(), 3*brief, 10)
					if err == nil {
						info = tasks[0]
					} else if !errors.Is(err, queue.ErrAllHeld) {
						e.Fatalf("Capture: %v", err)
					}
					return err
				})
				require.Equal(e, e.get("a"), info)
				require.Equal(e, attempt, info.Attempts)
				require.Equal(e, 3-attempt, info.RetriesLeft)
				if attempt > 1 {
					require.Equal(e, queue.LostWorker, info.LastError)
					require.GreaterOrEqual(e, time.Since(before), 2*brief, "it was taken away too early")
				}
				before = sent
			}
		}},
	{Rule: Rule{10, "a task that is lost too often fails",
		"A task whose time-out has passed, and that has no retry left, is given to nobody: Capture makes it failed, with the error LostWorker.",
		"a task that kills its workers kills all of them, one after the other.", nil},
		run: func(e *queueEnv) {
			e.add(0, "a")
			e.capture(brief, 1, "a")
			e.lost()
			e.none(queue.ErrExhausted, "it was lost, and had no retry")
			info := e.in("a", queue.Failed, 0)
			require.Equal(e, queue.LostWorker, info.LastError)
			require.Equal(e, 1, info.Attempts)
			require.Zero(e, info.VisibleAt)
			e.none(queue.ErrExhausted, "again")
		}},
	{Rule: Rule{11, "no task is told apart from no task now",
		"Capture that gets nothing returns ErrEmpty if the queue has no task or all are done, ErrAllHeld if any is held or delayed, else ErrExhausted.",
		"workers wait for ever for what has failed, or stop while there is work.", nil},
		run: func(e *queueEnv) {
			_, err := e.q.Add(e.ctx, "other", 0, []string{"x"})
			require.NoError(e, err)
			e.none(queue.ErrEmpty, "there never was a task")
			e.add(1, "done", "delayed", "failed", "held")
			token, _ := e.capture(long, 10, "done", "delayed", "failed", "held")
			e.none(queue.ErrAllHeld, "all are held")
			e.done(token, "done")
			e.fail(token, "delayed", "why", long)
			e.fail(token, "failed", "why", 0)
			token2, _ := e.capture(long, 10, "failed")
			e.fail(token2, "failed", "why", 0)
			e.in("failed", queue.Failed, 0)
			e.none(queue.ErrAllHeld, "one is held, one delayed, one failed, one done")
			e.done(token, "held")
			e.none(queue.ErrAllHeld, "one is delayed, one failed, two done")
			_, err = e.q.Add(e.ctx, "only done", 0, []string{"a"})
			require.NoError(e, err)
			_, err = e.q.Capture(e.ctx, "only done", token, long, 1)
			require.NoError(e, err)
			_, err = e.q.Done(e.ctx, "only done", token, []string{"a"})
			require.NoError(e, err)
			_, err = e.q.Capture(e.ctx, "only done", token, long, 1)
			require.ErrorIs(e, err, queue.ErrEmpty, "all are done")
		}},
	{Rule: Rule{12, "what has failed hides nothing",
		"However many lost tasks have no retry left, a Capture with a small limit gets a task that can be captured.",
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
			e.none(queue.ErrAllHeld, "two are held")
			for _, id := range dead {
				e.in(id, queue.Failed, 0)
			}
		}},
	{Rule: Rule{13, "done is done",
		"Done ends a task for good: it is never captured again. The same Done may be repeated; no other call ends it, or begins it anew.",
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
			require.Equal(e, queue.Done, info.State)
			require.Zero(e, info.VisibleAt)
			e.unchanged(func() { e.done(token, "a") }, "Done again", "a")
			e.lost()
			e.unchanged(func() { e.done(token, "a") }, "Done again, later", "a")
			e.none(queue.ErrEmpty, "it is done")
			e.refused("another token", "q", mine())
			e.unchanged(func() {
				for _, call := range []func() (int, error){
					func() (int, error) {
						ids, err := e.q.Extend(e.ctx, "q", token, long, []string{"a"})
						return len(ids), err
					},
					func() (int, error) { ids, err := e.q.Release(e.ctx, "q", token, []string{"a"}); return len(ids), err },
				} {
					n, err := call()
					require.NoError(e, err)
					require.Zero(e, n, "after Done")
				}
				ended, err := e.q.Fail(e.ctx, "q", token, "a", "why", 0)
				require.NoError(e, err)
				require.False(e, ended, "Fail after Done")
			}, "after Done", "a")
		}},
	{Rule: Rule{14, "a list ends what is ours",
		"Done, Extend and Release of several tasks return those for which they did it, and do nothing to the others.",
		"one task that was lost spoils all that were done with it.", nil},
		run: func(e *queueEnv) {
			e.add(1, "a", "b", "c", "d")
			token, _ := e.capture(long, 3, "a", "b", "c")
			other, _ := e.capture(long, 1, "d")
			extended, err := e.q.Extend(e.ctx, "q", token, 2*long, []string{"d", "a", "b", "c", "e"})
			require.NoError(e, err)
			require.ElementsMatch(e, []string{"a", "b", "c"}, extended)
			done, err := e.q.Done(e.ctx, "q", token, []string{"d", "a", "b", "e"})
			require.NoError(e, err)
			require.ElementsMatch(e, []string{"a", "b"}, done)
			released, err := e.q.Release(e.ctx, "q", token, []string{"a", "d", "c"})
			require.NoError(e, err)
			require.Equal(e, []string{"c"}, released)
			e.in("a", queue.Done, 1)
			e.in("b", queue.Done, 1)
			e.in("c", queue.Pending, 1)
			e.in("d", queue.InProgress, 1)
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
		"Done, Extend, Release and Fail change nothing once the time-out has passed, though nobody has captured the task since.",
		"Extend revives what another is about to take.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a")
			token, _ := e.capture(brief, 1, "a")
			e.lost()
			e.refused("the time-out has passed", "q", token)
			e.in("a", queue.InProgress, 2)
		}},
	{Rule: Rule{17, "the next worker is not disturbed",
		"After a task was captured again, released or failed, the calls of the worker before change nothing.",
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
			extended, err := e.q.Extend(e.ctx, "q", token, brief, []string{"b"})
			require.NoError(e, err)
			require.Equal(e, []string{"b"}, extended)
			time.Sleep(3 * brief)
			e.capture(long, 10, "b")
			e.in("a", queue.InProgress, retries)
			require.Equal(e, retries, 9-(e.get("a").Attempts-1), "an extension is no attempt")
		}},
	{Rule: Rule{19, "a release costs nothing",
		"Release makes a task pending at its old place, with all its retries and the error that it had.",
		"a deploy uses up the retries of all that runs.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "b", "c")
			token, _ := e.capture(long, 1, "a")
			e.fail(token, "a", "why", 0)
			token, _ = e.capture(long, 2, "a", "b")
			e.release(token, "b", "a")
			info := e.in("a", queue.Pending, 1)
			require.Equal(e, "why", info.LastError)
			require.Zero(e, info.VisibleAt)
			e.in("b", queue.Pending, 2)
			e.capture(long, 10, "a", "b", "c")
		}},
	{Rule: Rule{20, "a failure costs a retry",
		"Fail with a retry left makes a task pending, with one retry less and the error; without a delay it can be captured at once, at its old place.",
		"what fails once is never done, or tried for ever.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "b")
			for left := 1; left >= 0; left-- {
				token, tasks := e.capture(long, 1, "a")
				require.Equal(e, left+1, tasks[0].RetriesLeft)
				e.fail(token, "a", fmt.Sprintf("error %d", left), 0)
				info := e.in("a", queue.Pending, left)
				require.Equal(e, fmt.Sprintf("error %d", left), info.LastError)
				require.Zero(e, info.VisibleAt)
			}
			_, tasks := e.capture(long, 10, "a", "b")
			require.Equal(e, 3, tasks[0].Attempts)
			require.Equal(e, "error 0", tasks[0].LastError)
			require.Empty(e, tasks[1].LastError)
		}},
	{Rule: Rule{21, "a delay is waited out",
		"A task that has failed with a delay is captured by nobody before that has passed, and can be afterwards, which costs no second retry.",
		"what fails is tried again at once, until no retry is left.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "b")
			token, _ := e.capture(long, 2, "a", "b")
			e.fail(token, "b", "why", long)
			sent := time.Now()
			e.fail(token, "a", "why", 3*brief)
			info := e.in("a", queue.Pending, 1)
			require.False(e, info.VisibleAt.IsZero(), "VisibleAt")
			var tasks []queue.Info
			e.await("the delay is over", func() (err error) {
				tasks, err = e.q.Capture(e.ctx, "q", mine(), long, 10)
				return err
			})
			require.GreaterOrEqual(e, time.Since(sent), 2*brief, "the delay is not over")
			require.Equal(e, []string{"a"}, idsOf(tasks))
			require.Equal(e, 1, tasks[0].RetriesLeft)
			require.Equal(e, "why", tasks[0].LastError)
		}},
	{Rule: Rule{22, "without a retry a failure is the end",
		"Fail without a retry left makes a task failed, with the error, whatever the delay; it is never captured again.",
		"a task that cannot succeed is tried for ever.", nil},
		run: func(e *queueEnv) {
			e.add(0, "a", "b")
			token, _ := e.capture(long, 2, "a", "b")
			e.fail(token, "a", "why", 0)
			e.fail(token, "b", "why", brief)
			e.lost()
			e.none(queue.ErrExhausted, "both have failed")
			for _, id := range []string{"a", "b"} {
				info := e.in(id, queue.Failed, 0)
				require.Equal(e, "why", info.LastError)
				require.Zero(e, info.VisibleAt)
			}
			e.refused("it has failed", "q", token)
		}},
	{Rule: Rule{23, "the order outlives a detour",
		"Of what can be captured the oldest come first, whether they are new, released, lost, or were delayed.",
		"a task that failed once waits behind all that came since.", nil},
		run: func(e *queueEnv) {
			e.add(9, "lost", "released", "delayed", "failed", "new")
			token, _ := e.capture(long, 4, "lost", "released", "delayed", "failed")
			extended, err := e.q.Extend(e.ctx, "q", token, brief, []string{"lost"})
			require.NoError(e, err)
			require.Len(e, extended, 1)
			e.fail(token, "failed", "why", 0)
			e.fail(token, "delayed", "why", brief)
			e.release(token, "released")
			e.lost()
			e.capture(long, 2, "lost", "released")
			e.capture(long, 1, "delayed")
			e.capture(long, 9, "failed", "new")
		}},
	{Rule: Rule{24, "an error is kept",
		"Fail keeps 1,000 characters of any kind, with line breaks and quotes; no text is no error.",
		"nobody knows why it failed.", nil},
		run: func(e *queueEnv) {
			for i, text := range []string{"", "line 1\nline \"2\" — 'ü' 日本", strings.Repeat("ü🦀", 500), strings.Repeat("x", 1000)} {
				id := fmt.Sprint(i)
				e.add(0, id)
				token, _ := e.capture(long, 1, id)
				e.fail(token, id, text, 0)
				require.Equal(e, text, e.get(id).LastError)
			}
		}},
	{Rule: Rule{25, "what has ended is pruned",
		"Prune deletes tasks of its queue that are done or failed and have been so for the time given, at most limit, and tells how many; their ids can be added anew.",
		"the table grows for ever, or work that waits is lost.", nil},
		run: func(e *queueEnv) {
			_, err := e.q.Add(e.ctx, "other", 0, []string{"done 1"})
			require.NoError(e, err)
			_, err = e.q.Capture(e.ctx, "other", mine(), long, 1)
			require.NoError(e, err)
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
			e.in("held", queue.InProgress, 0)
			e.in("pending", queue.Pending, 0)
			e.add(0, "done 1")
			e.done(token, "held")
			info, found, err := e.q.Get(e.ctx, "other", "done 1")
			require.NoError(e, err)
			require.True(e, found)
			require.Equal(e, queue.InProgress, info.State, "another queue")
		}},
	{Rule: Rule{26, "an ended context ends a call",
		"Add, Capture, Done, Extend, Release, Fail, Get and Prune with a context that has ended return an error, soon, and write nothing.",
		"a worker that was told to stop captures tasks that nobody works on.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a", "done", "new")
			token, _ := e.capture(long, 2, "a", "done")
			e.done(token, "done")
			over := ended()
			e.unchanged(func() {
				for what, call := range map[string]func() error{
					"Add":     func() error { _, err := e.q.Add(over, "q", 1, []string{"newer"}); return err },
					"Capture": func() error { _, err := e.q.Capture(over, "q", mine(), long, 1); return err },
					"Done":    func() error { _, err := e.q.Done(over, "q", token, []string{"a"}); return err },
					"Extend":  func() error { _, err := e.q.Extend(over, "q", token, 2*long, []string{"a"}); return err },
					"Release": func() error { _, err := e.q.Release(over, "q", token, []string{"a"}); return err },
					"Fail":    func() error { _, err := e.q.Fail(over, "q", token, "a", "why", 0); return err },
					"Get":     func() error { _, _, err := e.q.Get(over, "q", "a"); return err },
					"Prune":   func() error { _, err := e.q.Prune(over, "q", 0, 1); return err },
				} {
					e.soon(what, func() {
						if err := call(); err == nil || errors.Is(err, queue.ErrNone) {
							e.Errorf("%s: no error: %v", what, err)
						}
					})
				}
			}, "an ended context", "a", "done", "new")
			_, found, err := e.q.Get(e.ctx, "q", "newer")
			require.NoError(e, err)
			require.False(e, found, "Add with an ended context")
		}},
}
