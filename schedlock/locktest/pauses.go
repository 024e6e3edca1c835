package locktest

import (
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// Jobs are paused, and resumed.
var pauseCases = []testCase{
	{Rule: Rule{79, "nothing starts during a pause",
		"A Decide that starts a run, Retry, and an Answer that starts its run, return an " +
			"ErrPaused that is a *PausedError with the pause in force, and write nothing, while " +
			"the job or the whole scheduler is paused.",
		"a job runs into the maintenance that it was paused for.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			run := e.fail(ref, "a", noon)
			r := e.trigger("a")
			decision := ledger.Decision{Job: "a", Spec: "s", From: noon, To: minute(2),
				Start: minute(2), Skipped: []ledger.Skip{missed(1, 1)}}
			for _, job := range []string{"a", ""} {
				p := e.pause(job)
				calls := map[string]func() (ledger.Run, bool, error){
					"Decide": func() (ledger.Run, bool, error) {
						return e.ledger().Decide(e.ctx, ref, decision)
					},
					"Retry": func() (ledger.Run, bool, error) {
						return e.ledger().Retry(e.ctx, ref, run)
					},
					"Answer": func() (ledger.Run, bool, error) {
						return e.ledger().Answer(e.ctx, ref, r, "")
					},
				}
				if job == "" {
					calls["Decide, of a new job"] = func() (ledger.Run, bool, error) {
						return e.ledger().Decide(e.ctx, ref,
							ledger.Decision{Job: "new", To: noon, Start: noon})
					}
				}
				e.unchanged(func() {
					for name, call := range calls {
						_, started, err := call()
						e.pausedBy(p, err, name)
						require.False(e, started, name)
					}
				}, "a start during a pause of %q", job)
				e.resume(job)
			}
			_, started := e.decide(ref, decision)
			require.True(e, started, "after the pause")
			e.retry(ref, run)
			e.answer(ref, r)
		}},
	{Rule: Rule{80, "a pause stops starts alone",
		"During a pause a decision that starts nothing is written, an Answer that skips, GiveUp, " +
			"Finish and Abandon too; a pause of another job is no concern.",
		"a pause of one job stops them all, or a leader cannot record what it passes over.",
		[]Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			run := e.fail(old, "a", noon)
			failed, left, ends := e.fail(old, "b", noon), e.start(old, "c", noon),
				e.start(old, "d", noon)
			r, other := e.trigger("a"), e.trigger("b")
			ref := e.win(bob)
			e.pause("a")
			e.retry(ref, failed)
			e.answer(ref, other)
			e.start(ref, "b", minute(1))
			e.start(ref, "e", noon)
			e.pause("")
			skip := []ledger.Skip{{First: minute(1), Last: minute(3), Count: 3,
				Reason: ledger.Paused}}
			for _, d := range []ledger.Decision{
				{Job: "a", Spec: "s", From: noon, To: minute(3), Skipped: skip},
				{Job: "a", Spec: "new", From: minute(3), To: minute(3)},
				{Job: "f", Spec: "s", To: noon},
			} {
				e.decide(ref, d, "a decision that starts nothing")
			}
			_, _, err := e.ledger().Answer(e.ctx, ref, r, ledger.Paused)
			require.NoError(e, err, "Answer, to skip")
			got, found, err := e.ledger().Run(e.ctx, "a", r.At)
			require.NoError(e, err)
			require.True(e, found, "Answer, to skip")
			require.Equal(e, ledger.Skipped, got.Status)
			changed, err := e.ledger().GiveUp(e.ctx, ref, run)
			require.NoError(e, err, "GiveUp")
			require.True(e, changed, "GiveUp")
			e.finish(ends, ledger.End{Status: ledger.Done})
			runs := e.abandon(ref, nil)
			require.Len(e, runs, 1, "Abandon")
			require.Equal(e, left.ID, runs[0].ID, "Abandon")
		}},
	{Rule: Rule{81, "once paused, nothing starts",
		"Once Pause has returned, nothing is started that was under way meanwhile.",
		"a job starts a moment after the operator was told that it is paused.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			handles := e.handles(4)
			var wg sync.WaitGroup
			defer wg.Wait()
			for round := range 25 { // on a quiet machine few of them meet
				job := string(rune('a' + round))
				e.known(ref, job)
				paused := []string{job, ""}[round%2]
				for i, s := range handles[1:] {
					wg.Go(func() { // each asks for ticks of its own, on a cursor that stays
						for n := range 500 {
							_, _, err := s.(ledger.Store).Decide(e.ctx, ref,
								ledger.Decision{Job: job, Spec: "s", From: noon, To: noon,
									Start: minute(1000*i + n)})
							if err != nil {
								return
							}
							time.Sleep(100 * time.Microsecond) // or nobody else has a turn
						}
					})
				}
				time.Sleep(time.Duration(2+round%5) * time.Millisecond)
				e.await("Pause, while others start runs", func() error {
					_, err := e.ledger().Pause(e.ctx, order(paused))
					return err
				})
				want := len(e.runs(job, 1<<30))
				wg.Wait()
				require.Len(e, e.runs(job, 1<<30), want, "runs once Pause has returned, and later")
				e.resume(paused)
			}
		}},
	{Rule: Rule{82, "a pause keeps its author",
		"Pause records the database's time, who paused, and why, and returns it as Pending does; " +
			"of a job that is paused already it returns the pause in force, and writes nothing.",
		"who has paused a job cannot be asked why.", []Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a")
			require.Empty(e, e.inbox().Pauses)
			var all []ledger.Pause
			for _, job := range []string{"", "a"} {
				before := e.look().Now.Truncate(time.Microsecond)
				p := e.pause(job)
				require.WithinRange(e, p.Since, before, e.look().Now)
				require.Equal(e, ledger.Pause{Action: order(job),
					Since: p.Since.UTC().Truncate(time.Microsecond)}, p, "Pause")
				all = append(all, p)
				require.Equal(e, all, e.inbox().Pauses, "Pending")
				e.unchanged(func() {
					again, err := e.ledger().Pause(e.ctx,
						ledger.Action{Job: job, By: "other", Reason: "other"})
					require.NoError(e, err)
					require.Equal(e, p, again, "Pause again")
				}, "Pause again")
			}
		}},
	{Rule: Rule{83, "a pause ends alone",
		"Resume ends the pause of a job, or that of the whole scheduler, and no other, and tells " +
			"whether there was one; Pending keeps who paused, who resumed, and when, until the " +
			"next pause, which is a new one.",
		"one who resumes their job starts all that others have paused.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a", "b")
			none := func(jobs ...string) {
				e.unchanged(func() {
					for _, job := range jobs {
						resumed, err := e.ledger().Resume(e.ctx, job, "other")
						require.NoError(e, err)
						require.False(e, resumed, "Resume of %q, that is not paused", job)
					}
				}, "Resume without a pause")
			}
			none("", "a", "b", "no such job")
			want := []ledger.Pause{e.pause(""), e.pause("a"), e.pause("b")}
			for i, job := range []string{"", "a", "b"} {
				before := e.look().Now.Truncate(time.Microsecond)
				e.resume(job)
				got := e.inbox().Pauses
				require.Len(e, got, 3)
				require.WithinRange(e, got[i].Resumed, before, e.look().Now)
				want[i].ResumedBy, want[i].Resumed = "bob", got[i].Resumed.UTC()
				require.Equal(e, want, got, "after Resume of %q", job)
				none(job)
			}
			e.start(ref, "a", minute(1))
			again, err := e.ledger().Pause(e.ctx, ledger.Action{Job: "a", By: "carol"})
			require.NoError(e, err)
			require.Equal(e, ledger.Pause{Action: ledger.Action{Job: "a", By: "carol"},
				Since: again.Since}, again)
			require.False(e, again.Since.Before(want[1].Resumed), "a new pause begins anew")
			want[1] = again
			require.Equal(e, want, e.inbox().Pauses, "a new pause")
			_, _, err = e.ledger().Decide(e.ctx, ref, ledger.Decision{Job: "a",
				Spec: "s", From: minute(1), To: minute(2), Start: minute(2)})
			e.pausedBy(again, err, "Decide")
		}},
}
