package locktest

import (
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// ticks are the minutes of a job's runs.
func (e *env) ticks(job string) (minutes []int) {
	e.Helper()
	for _, r := range e.runs(job, 10) {
		minutes = append(minutes, int(r.ScheduledAt.Sub(noon)/time.Minute))
	}
	return minutes
}

// The inbox and the ledger are bounded; and contexts end.
var pruneCases = []testCase{
	{Rule: Rule{84, "the inbox is in order, and bounded",
		"Pending returns the requests of all jobs, oldest first, at most 100 of each, and the " +
			"others once these are answered.",
		"who asked first waits longest, or a script that asks too often fills the leader's memory.",
		[]Feature{Ledger}},
		slow: true,
		run: func(e *env) {
			ref := e.win(alice)
			// before the others write, who may keep it waiting for too long
			e.known(ref, "a", "b", "c")
			var wg sync.WaitGroup
			for i, s := range e.handles(3) {
				job := string(rune('c' - i))
				wg.Go(func() {
					for n := 0; n < 110 && e.ctx.Err() == nil; {
						if _, err := s.(ledger.Store).Trigger(e.ctx, order(job)); err == nil {
							n++
						}
					}
				})
			}
			wg.Wait()
			inbox := func() (requests []ledger.Request, times []time.Time) {
				e.Helper()
				requests = e.inbox().Requests
				for _, r := range requests {
					times = append(times, r.At)
				}
				require.True(e, slices.IsSortedFunc(times, time.Time.Compare), "oldest first")
				return requests, times
			}
			requests, before := inbox()
			require.Len(e, requests, 300)
			count := func(requests []ledger.Request) map[string]int {
				n := map[string]int{}
				for _, r := range requests {
					n[r.Job]++
				}
				return n
			}
			require.Equal(e, map[string]int{"a": 100, "b": 100, "c": 100}, count(requests))
			for _, r := range requests[:10] {
				e.answer(ref, r)
			}
			requests, after := inbox()
			require.Equal(e, map[string]int{"a": 100, "b": 100, "c": 100}, count(requests),
				"the others")
			require.Subset(e, after, before[10:], "those that were not answered")
		}},
	{Rule: Rule{85, "old runs go",
		"Prune deletes rows of one job, oldest scheduled time first, at most limit, and tells " +
			"how many; the newest keep rows stay, and so do the job's cursor and Stats.",
		"the ledger fills the disk, or what an operator looks for is gone.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			for i := range 8 {
				job := []string{"a", "b"}[i%2]
				e.finish(e.start(ref, job, minute(i)),
					ledger.End{Status: ledger.Done, Took: time.Second})
			}
			e.decide(ref, ledger.Decision{Job: "a", Spec: "s", From: minute(6), To: minute(10),
				Skipped: []ledger.Skip{missed(8, 10)}})
			// the newest of all may stay
			e.finish(e.start(ref, "b", minute(9)), ledger.End{Status: ledger.Done})
			jobs := e.jobs()
			for _, c := range []struct {
				job         string
				keep, limit int
				want        []int // the ticks of a that stay
			}{
				{"a", 2, 0, []int{8, 6, 4, 2, 0}},
				{"a", 2, -1, []int{8, 6, 4, 2, 0}},
				{"a", 5, 100, []int{8, 6, 4, 2, 0}},
				{"a", 1 << 30, 100, []int{8, 6, 4, 2, 0}},
				{"no such job", 0, 100, []int{8, 6, 4, 2, 0}},
				{"", 0, 100, []int{8, 6, 4, 2, 0}},
				{"a", 2, 1, []int{8, 6, 4, 2}},
				{"a", 2, 100, []int{8, 6}},
				{"a", 2, 100, []int{8, 6}},
				{"a", 0, 1, []int{8}},
				{"a", -5, 1 << 30, nil}, // as 0
			} {
				had := len(e.runs("a", 10))
				deleted, err := e.ledger().Prune(e.ctx, c.job, c.keep, c.limit)
				require.NoError(e, err)
				got := e.ticks("a")
				require.Equal(e, c.want, got, "Prune of %q, keep %d, limit %d", c.job, c.keep,
					c.limit)
				require.EqualValues(e, had-len(got), deleted,
					"Prune of %q, keep %d, limit %d: deleted", c.job, c.keep, c.limit)
			}
			require.Len(e, e.runs("b", 10), 5, "another job's")
			require.Equal(e, jobs, e.jobs(), "Jobs")
			_, found, err := e.ledger().Run(e.ctx, "a", minute(6))
			require.NoError(e, err)
			require.False(e, found, "a run that was deleted")
			e.finish(e.start(ref, "a", minute(11)), ledger.End{Status: ledger.Done})
		}},
	{Rule: Rule{86, "what has not ended is not deleted",
		"Prune leaves rows that are in progress, or owed an attempt, however old.",
		"the end of a run cannot be recorded, or an attempt that is owed is forgotten.",
		[]Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			running := e.start(ref, "a", minute(0))
			failed := e.fail(ref, "a", minute(1))
			for i := 2; i < 5; i++ {
				e.finish(e.start(ref, "a", minute(i)),
					ledger.End{Status: ledger.Failed, Error: "for good"})
			}
			// the newest of all may stay
			e.finish(e.start(ref, "b", minute(9)), ledger.End{Status: ledger.Done})
			left := func(keep int, want ...int) {
				e.Helper()
				_, err := e.ledger().Prune(e.ctx, "a", keep, 100)
				require.NoError(e, err)
				require.Equal(e, want, e.ticks("a"), "the ticks that stay, keep %d", keep)
			}
			left(2, 4, 3, 1, 0)
			left(0, 1, 0)
			next := e.retry(ref, failed)
			left(0, 1, 0)
			e.finish(next, ledger.End{Status: ledger.Done})
			left(0, 0)
			e.finish(running, ledger.End{Status: ledger.Done})
			e.finish(e.start(ref, "a", minute(5)), ledger.End{Status: ledger.Done})
			e.start(ref, "a", minute(6))
			left(1, 6) // a run in progress is one of those to keep
		}},
	{Rule: Rule{87, "an ended context ends a call about requests",
		"Retry, GiveUp, Retries, Run, Trigger, Answer, Pause, Resume, Pending and Prune with a " +
			"context that has ended return an error, soon, and write nothing.",
		"as rule 34.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			run := e.fail(ref, "a", noon)
			e.finish(e.start(ref, "a", minute(1)), ledger.End{Status: ledger.Done})
			r := e.trigger("a")
			e.known(ref, "b")
			e.pause("b")
			l := e.ledger()
			e.heeded(map[string]func() error{
				"Retry":   func() error { return err2(l.Retry(ended(), ref, run)) },
				"GiveUp":  func() error { return err1(l.GiveUp(ended(), ref, run)) },
				"Retries": func() error { return err1(l.Retries(ended())) },
				"Run":     func() error { return err2(l.Run(ended(), "a", noon)) },
				"Trigger": func() error { return err1(l.Trigger(ended(), order("a"))) },
				"Answer":  func() error { return err2(l.Answer(ended(), ref, r, "")) },
				"Pause":   func() error { return err1(l.Pause(ended(), order("a"))) },
				"Resume":  func() error { return err1(l.Resume(ended(), "b", "x")) },
				"Pending": func() error { return err1(l.Pending(ended())) },
				"Prune":   func() error { return err1(l.Prune(ended(), "a", 0, 10)) },
			})
		}},
}
