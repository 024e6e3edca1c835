package locktest

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// order is what somebody asks, with what a text may have.
func order(job string) ledger.Order {
	return ledger.Order{Job: job, By: "o'hara-ü", Reason: "line 1\nline 2 – \"why\" $1 ? 🦀"}
}

func (e *env) trigger(job string) ledger.Request {
	e.Helper()
	r, err := e.ledger().Trigger(e.ctx, order(job))
	require.NoError(e, err, "Trigger")
	return r
}

func (e *env) pause(job string) ledger.Pause {
	e.Helper()
	p, err := e.ledger().Pause(e.ctx, order(job))
	require.NoError(e, err, "Pause")
	return p
}

func (e *env) resume(job string) {
	e.Helper()
	resumed, err := e.ledger().Resume(e.ctx, job, "bob")
	require.NoError(e, err, "Resume")
	require.True(e, resumed, "Resume: resumed")
}

func (e *env) inbox() ledger.Inbox {
	e.Helper()
	in, err := e.ledger().Inbox(e.ctx)
	require.NoError(e, err, "Inbox")
	sortPauses(in.Pauses)
	return in
}

// answer starts a run that was asked for.
func (e *env) answer(ref schedlock.Ref, r ledger.Request) ledger.Run {
	e.Helper()
	run, started, err := e.ledger().Answer(e.ctx, ref, r, "")
	require.NoError(e, err, "Answer")
	require.True(e, started, "Answer: started")
	run.StartedAt = run.StartedAt.Truncate(time.Microsecond)
	return run
}

// known makes jobs that have a row each, whose cursor stands at noon, and no run.
func (e *env) known(ref schedlock.Ref, jobs ...string) {
	e.Helper()
	for _, job := range jobs {
		_, _, err := e.ledger().Decide(e.ctx, ref, ledger.Decision{Job: job, Spec: "s", To: noon})
		require.NoError(e, err, "Decide")
	}
}

// pausedBy fails unless err says that nothing was started because of p.
func (e *env) pausedBy(p ledger.Pause, err error, what string) {
	e.Helper()
	require.ErrorIs(e, err, ledger.ErrPaused, what)
	var paused *ledger.PausedError
	require.ErrorAs(e, err, &paused, what)
	require.Equal(e, p, paused.Pause, what)
}

var orderCases = []testCase{
	{Rule: Rule{71, "a request is kept",
		"Trigger records a request with the database's time, in microseconds and UTC, who asked, and why, and returns it as Inbox does. It needs no leader.",
		"what somebody asked for never runs, or nobody knows who asked.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a", "b")
			_, err := e.s.Release(e.ctx, ref, schedlock.EndReleased)
			require.NoError(e, err)
			require.Empty(e, e.inbox().Requests)
			before := e.look().Now.Truncate(time.Microsecond)
			first := e.trigger("a")
			require.WithinRange(e, first.At, before, e.look().Now.Add(time.Microsecond))
			require.Equal(e, ledger.Request{Order: order("a"), At: first.At.UTC().Truncate(time.Microsecond)}, first)
			require.Equal(e, []ledger.Request{first}, e.inbox().Requests)
			second, err := e.ledger().Trigger(e.ctx, ledger.Order{Job: "b", By: "x"})
			require.NoError(e, err)
			require.ElementsMatch(e, []ledger.Request{first, second}, e.inbox().Requests)
			require.Empty(e, second.Reason)
			require.Empty(e, e.runs("", 10), "runs, before an answer")
		}},
	{Rule: Rule{72, "two requests are two",
		"Two requests for a job have two times, also of many at the same time, and each is kept.",
		"one of two requests gets lost, or two people are told of one run.", []Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a")
			const each = 4
			var (
				wg      sync.WaitGroup
				mu      sync.Mutex
				times   []time.Time
				unknown int
				start   = make(chan struct{})
			)
			handles := e.handles(5)
			for _, s := range handles {
				wg.Go(func() {
					<-start
					for n := 0; n < each && e.ctx.Err() == nil; {
						r, err := s.(ledger.Store).Trigger(e.ctx, order("a"))
						mu.Lock()
						if err == nil {
							n++
							times = append(times, r.At)
						} else {
							unknown++ // it was busy: once more
						}
						mu.Unlock()
					}
				})
			}
			close(start)
			wg.Wait()
			require.Len(e, times, each*len(handles), "requests that were made")
			slices.SortFunc(times, time.Time.Compare)
			require.Len(e, slices.CompactFunc(slices.Clone(times), time.Time.Equal), len(times), "different times")
			var kept []time.Time
			for _, r := range e.inbox().Requests {
				kept = append(kept, r.At)
			}
			if unknown == 0 {
				require.Equal(e, times, kept, "the times in Inbox")
			} else {
				require.Subset(e, kept, times, "the times in Inbox")
			}
		}},
	{Rule: Rule{73, "an order is checked",
		"Trigger and Pause refuse an order that is not valid, in the words of Order.Validate, and return ErrNoJob for a job that has no row; only Pause takes the empty name. Nothing is written.",
		"a request waits for ever for a job whose name was misspelt, or nobody knows whose it was.", []Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a")
			e.unchanged(func() {
				trigger := func(o ledger.Order) error { _, err := e.ledger().Trigger(e.ctx, o); return err }
				pause := func(o ledger.Order) error { _, err := e.ledger().Pause(e.ctx, o); return err }
				for name, call := range map[string]func(ledger.Order) error{"Trigger": trigger, "Pause": pause} {
					for _, o := range []ledger.Order{
						{Job: "a"},
						{Job: "a", By: " \t"},
						{Job: "a", By: strings.Repeat("x", 201)},
						{Job: "a", By: "x", Reason: strings.Repeat("x", 1001)},
						{Job: "a", By: "\xff", Reason: "\x00"},
					} {
						require.ErrorContains(e, call(o), o.Validate().Error(), name)
					}
					for _, job := range []string{"b", "A", "a ", "a\x00", "\xff"} {
						require.ErrorIs(e, call(order(job)), ledger.ErrNoJob, "%s of job %q", name, job)
					}
				}
				require.ErrorIs(e, trigger(order("")), ledger.ErrNoJob, "Trigger without a name")
			}, "an order that was refused")
			longest := ledger.Order{Job: "a", By: strings.Repeat("x", 200), Reason: strings.Repeat("y", 1000)}
			r, err := e.ledger().Trigger(e.ctx, longest)
			require.NoError(e, err)
			require.Equal(e, longest, r.Order)
			require.Equal(e, longest, e.inbox().Requests[0].Order)
		}},
	{Rule: Rule{74, "what is paused is not asked for",
		"Trigger returns a *PausedError with the pause in force, and writes nothing, while the job or the whole scheduler is paused.",
		"a run that nobody expects any more starts the moment that a pause ends.", []Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a", "b")
			for _, job := range []string{"a", ""} {
				p := e.pause(job)
				e.unchanged(func() {
					_, err := e.ledger().Trigger(e.ctx, order("a"))
					e.pausedBy(p, err, "Trigger")
				}, "a request during a pause")
				if job != "" {
					e.trigger("b")
				}
				e.resume(job)
			}
			e.trigger("a")
		}},
	{Rule: Rule{75, "a request is answered once",
		"Answer removes the request and starts its run, as Runs has it: in progress, attempt 1, for the request's time, with who asked, and why. started is false, and nothing is written, if the request is there no more.",
		"what somebody asked for runs twice, or nobody knows who asked.", []Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a", "b")
			r, other := e.trigger("a"), e.trigger("b")
			ref := e.win(bob)
			before := e.look().Now.Truncate(time.Microsecond)
			run := e.answer(ref, r)
			require.NotZero(e, run.ID)
			require.WithinRange(e, run.StartedAt, before, e.look().Now)
			require.Equal(e, ledger.Run{ID: run.ID, Job: "a", ScheduledAt: r.At, StartedAt: run.StartedAt, Status: ledger.InProgress,
				Term: ref.Term, PID: bob.PID, Hostname: bob.Hostname, Attempt: 1, RequestedBy: r.By, RequestReason: r.Reason}, run, "Answer")
			require.Equal(e, run, e.newest("a"), "Runs")
			require.Equal(e, []ledger.Request{other}, e.inbox().Requests)
			require.Equal(e, noon, e.jobs()[0].Cursor, "the cursor")
			e.unchanged(func() {
				for name, r := range map[string]ledger.Request{
					"one that was answered": r,
					"one of another time":   {Order: other.Order, At: other.At.Add(time.Microsecond)},
					"one of another job":    {Order: order("c"), At: other.At},
				} {
					for _, skip := range []string{"", ledger.UnknownJob} {
						_, started, err := e.ledger().Answer(e.ctx, ref, r, skip)
						require.NoError(e, err, name)
						require.False(e, started, name)
					}
				}
			}, "a request that is there no more")
			// It is a run like others.
			e.finish(run, ledger.End{Status: ledger.Failed, Error: "why", RetryAt: due})
			next := e.retry(ref, run)
			require.Equal(e, r.By, next.RequestedBy)
			require.Equal(e, r.Reason, next.RequestReason)
		}},
	{Rule: Rule{76, "a request may be skipped",
		"Answer with a reason to skip removes the request and records a skipped run, as Runs has it: neither start nor end nor attempt, the reason, who asked, and why; nothing is started. A reason that the database cannot hold (NUL, no UTF-8) is changed.",
		"a request for a job that is no more stays for ever, and who asked is never told.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a")
			for i, reason := range []string{ledger.UnknownJob, "before\x00after", "before \xff\xfe after"} {
				r := e.trigger("a")
				run, started, err := e.ledger().Answer(e.ctx, ref, r, reason)
				require.NoError(e, err, "%q", reason)
				require.False(e, started, "Answer: started, of a skipped run")
				got, found, err := e.ledger().Run(e.ctx, "a", r.At)
				require.NoError(e, err)
				require.True(e, found)
				if i > 0 {
					require.Contains(e, got.Error, "before")
					reason = got.Error
				}
				want := ledger.Run{ID: got.ID, Job: "a", ScheduledAt: r.At, Status: ledger.Skipped, Term: ref.Term, PID: alice.PID,
					Hostname: alice.Hostname, Error: reason, RequestedBy: r.By, RequestReason: r.Reason}
				require.Equal(e, want, got, "Run")
				run.Error = reason
				require.Equal(e, want, run, "Answer")
				require.Empty(e, e.inbox().Requests)
			}
			require.Zero(e, e.jobs()[0].Stats, "a skipped run is no attempt")
			// So it is with the ticks of a schedule.
			_, _, err := e.ledger().Decide(e.ctx, ref, ledger.Decision{Job: "b", To: noon, Skipped: []ledger.Skip{{First: noon, Last: noon, Count: 1, Reason: "before\x00 \xff"}}})
			require.NoError(e, err)
			require.Contains(e, e.newest("b").Error, "before")
		}},
	{Rule: Rule{77, "one of many answers",
		"Of many that answer a request at the same time exactly one is told that it started the run.",
		"what somebody asked for once runs twice.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a")
			handles := e.handles(5)
			for round := range 3 {
				r := e.trigger("a")
				e.oneStarts(handles, func(l ledger.Store) (bool, error) {
					_, started, err := l.Answer(e.ctx, ref, r, "")
					return started, err
				})
				require.Len(e, e.runs("a", 10), round+1, "runs")
			}
		}},
	{Rule: Rule{78, "only the holder answers",
		"Answer returns ErrLost, and writes nothing, for another token, another term, the lease before, and without a row.",
		"an old leader starts runs beside its successor, or drops what that was asked for.", []Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			e.known(old, "a")
			r := e.trigger("a")
			ref := e.win(alice)
			refused := func(why string, by schedlock.Ref) {
				e.unchanged(func() {
					for _, skip := range []string{"", ledger.UnknownJob} {
						_, started, err := e.ledger().Answer(e.ctx, by, r, skip)
						require.ErrorIs(e, err, schedlock.ErrLost, why)
						require.False(e, started, why)
					}
				}, "%s", why)
			}
			for why, by := range strangers(old, ref) {
				refused(why, by)
			}
			_, err := e.s.Release(e.ctx, ref, schedlock.EndReleased)
			require.NoError(e, err)
			refused("no row", ref)
		}},
	{Rule: Rule{79, "nothing starts during a pause",
		"A Decide that starts a run, Retry, and an Answer that starts its run, return an ErrPaused that is a *PausedError with the pause in force, and write nothing, while the job or the whole scheduler is paused.",
		"a job runs into the maintenance that it was paused for.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			run := e.fail(ref, "a", time.Time{}, noon)
			r := e.trigger("a")
			decision := ledger.Decision{Job: "a", Spec: "s", From: noon, To: minute(2), Start: minute(2),
				Skipped: []ledger.Skip{{First: minute(1), Last: minute(1), Count: 1, Reason: ledger.Missed}}}
			for _, job := range []string{"a", ""} {
				p := e.pause(job)
				calls := map[string]func() (ledger.Run, bool, error){
					"Decide": func() (ledger.Run, bool, error) { return e.ledger().Decide(e.ctx, ref, decision) },
					"Retry":  func() (ledger.Run, bool, error) { return e.ledger().Retry(e.ctx, ref, run) },
					"Answer": func() (ledger.Run, bool, error) { return e.ledger().Answer(e.ctx, ref, r, "") },
				}
				if job == "" {
					calls["Decide, of a new job"] = func() (ledger.Run, bool, error) {
						return e.ledger().Decide(e.ctx, ref, ledger.Decision{Job: "new", To: noon, Start: noon})
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
			_, started, err := e.ledger().Decide(e.ctx, ref, decision)
			require.NoError(e, err)
			require.True(e, started, "after the pause")
			e.retry(ref, run)
			e.answer(ref, r)
		}},
	{Rule: Rule{80, "a pause stops starts alone",
		"During a pause a decision that starts nothing is written, an Answer that skips, GiveUp, Finish and Abandon too; a pause of another job is no concern.",
		"a pause of one job stops them all, or a leader cannot record what it passes over.", []Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			run := e.fail(old, "a", time.Time{}, noon)
			failed, left, ends := e.fail(old, "b", time.Time{}, noon), e.start(old, "c", time.Time{}, noon), e.start(old, "d", time.Time{}, noon)
			r, other := e.trigger("a"), e.trigger("b")
			ref := e.win(bob)
			e.pause("a")
			e.retry(ref, failed)
			e.answer(ref, other)
			e.start(ref, "b", noon, minute(1))
			e.start(ref, "e", time.Time{}, noon)
			e.pause("")
			skip := []ledger.Skip{{First: minute(1), Last: minute(3), Count: 3, Reason: ledger.Paused}}
			for _, d := range []ledger.Decision{
				{Job: "a", Spec: "s", From: noon, To: minute(3), Skipped: skip},
				{Job: "a", Spec: "new", From: minute(3), To: minute(3)},
				{Job: "f", Spec: "s", To: noon},
			} {
				_, _, err := e.ledger().Decide(e.ctx, ref, d)
				require.NoError(e, err, "a decision that starts nothing")
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
			runs, err := e.ledger().Abandon(e.ctx, ref, nil)
			require.NoError(e, err, "Abandon")
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
			for round := range 5 {
				job := string(rune('a' + round))
				e.known(ref, job)
				paused := []string{job, ""}[round%2]
				for i, s := range handles[1:] {
					wg.Go(func() { // each asks for ticks of its own, on a cursor that stays
						for n := range 500 {
							_, _, err := s.(ledger.Store).Decide(e.ctx, ref, ledger.Decision{Job: job, Spec: "s", From: noon, To: noon, Start: minute(1000*i + n)})
							if err != nil {
								return
							}
							time.Sleep(100 * time.Microsecond) // or nobody else has a turn
						}
					})
				}
				time.Sleep(time.Duration(2+round) * time.Millisecond)
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
		"Pause records the database's time, who paused, and why, and returns it as Inbox does; of a job that is paused already it returns the pause in force, and writes nothing.",
		"who has paused a job cannot be asked why.", []Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a")
			require.Empty(e, e.inbox().Pauses)
			var all []ledger.Pause
			for _, job := range []string{"", "a"} {
				before := e.look().Now.Truncate(time.Microsecond)
				p := e.pause(job)
				require.WithinRange(e, p.Since, before, e.look().Now)
				require.Equal(e, ledger.Pause{Order: order(job), Since: p.Since.UTC().Truncate(time.Microsecond)}, p, "Pause")
				all = append(all, p)
				require.Equal(e, all, e.inbox().Pauses, "Inbox")
				e.unchanged(func() {
					again, err := e.ledger().Pause(e.ctx, ledger.Order{Job: job, By: "other", Reason: "other"})
					require.NoError(e, err)
					require.Equal(e, p, again, "Pause again")
				}, "Pause again")
			}
		}},
	{Rule: Rule{83, "a pause ends alone",
		"Resume ends the pause of a job, or that of the whole scheduler, and no other, and tells whether there was one; Inbox keeps who paused, who resumed, and when, until the next pause, which is a new one.",
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
			e.start(ref, "a", noon, minute(1))
			again, err := e.ledger().Pause(e.ctx, ledger.Order{Job: "a", By: "carol"})
			require.NoError(e, err)
			require.Equal(e, ledger.Pause{Order: ledger.Order{Job: "a", By: "carol"}, Since: again.Since}, again)
			require.False(e, again.Since.Before(want[1].Resumed), "a new pause begins anew")
			want[1] = again
			require.Equal(e, want, e.inbox().Pauses, "a new pause")
			_, _, err = e.ledger().Decide(e.ctx, ref, ledger.Decision{Job: "a", Spec: "s", From: minute(1), To: minute(2), Start: minute(2)})
			e.pausedBy(again, err, "Decide")
		}},
	{Rule: Rule{84, "the inbox is in order, and bounded",
		"Inbox returns the requests of all jobs, oldest first, at most 1,000, and the others once these are answered.",
		"who asked first waits longest, or a script that asks too often fills the leader's memory.", []Feature{Ledger}},
		slow: true,
		run: func(e *env) {
			ref := e.win(alice)
			var wg sync.WaitGroup
			for i, s := range e.handles(5) {
				job := string(rune('e' - i))
				e.known(ref, job)
				wg.Go(func() {
					for n := 0; n < 201 && e.ctx.Err() == nil; {
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
			require.Len(e, requests, 1000)
			for _, r := range requests[:10] {
				e.answer(ref, r)
			}
			_, after := inbox()
			require.Greater(e, len(after), 990, "the others")
			require.Equal(e, before[10:], after[:990], "those that were not answered")
		}},
	{Rule: Rule{85, "old runs go",
		"Prune deletes rows of one job, oldest scheduled time first, at most limit, and tells how many; the newest keep rows stay, and so do the job's cursor and Stats.",
		"the ledger fills the disk, or what an operator looks for is gone.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			from := map[string]time.Time{}
			for i := range 8 {
				job := []string{"a", "b"}[i%2]
				e.finish(e.start(ref, job, from[job], minute(i)), ledger.End{Status: ledger.Done, Took: time.Second})
				from[job] = minute(i)
			}
			_, _, err := e.ledger().Decide(e.ctx, ref, ledger.Decision{Job: "a", Spec: "s", From: minute(6), To: minute(10),
				Skipped: []ledger.Skip{{First: minute(8), Last: minute(10), Count: 3, Reason: ledger.Missed}}})
			require.NoError(e, err)
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
				{"a", 0, 1 << 30, nil},
			} {
				had := len(e.runs("a", 10))
				deleted, err := e.ledger().Prune(e.ctx, c.job, c.keep, c.limit)
				require.NoError(e, err)
				var got []int
				for _, r := range e.runs("a", 10) {
					got = append(got, int(r.ScheduledAt.Sub(noon)/time.Minute))
				}
				require.Equal(e, c.want, got, "Prune of %q, keep %d, limit %d", c.job, c.keep, c.limit)
				require.EqualValues(e, had-len(got), deleted, "Prune of %q, keep %d, limit %d: deleted", c.job, c.keep, c.limit)
			}
			require.Len(e, e.runs("b", 10), 4, "another job's")
			require.Equal(e, jobs, e.jobs(), "Jobs")
			_, found, err := e.ledger().Run(e.ctx, "a", minute(6))
			require.NoError(e, err)
			require.False(e, found, "a run that was deleted")
			e.finish(e.start(ref, "a", minute(10), minute(11)), ledger.End{Status: ledger.Done})
		}},
	{Rule: Rule{86, "what has not ended is not deleted",
		"Prune leaves rows that are in progress, or owed an attempt, however old.",
		"the end of a run cannot be recorded, or an attempt that is owed is forgotten.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			running := e.start(ref, "a", time.Time{}, minute(0))
			failed := e.fail(ref, "a", minute(0), minute(1))
			for i := 2; i < 5; i++ {
				e.finish(e.start(ref, "a", minute(i-1), minute(i)), ledger.End{Status: ledger.Failed, Error: "for good"})
			}
			left := func(keep int, want ...int) {
				e.Helper()
				_, err := e.ledger().Prune(e.ctx, "a", keep, 100)
				require.NoError(e, err)
				var got []int
				for _, r := range e.runs("a", 10) {
					got = append(got, int(r.ScheduledAt.Sub(noon)/time.Minute))
				}
				require.Equal(e, want, got, "the ticks that stay, keep %d", keep)
			}
			left(2, 4, 3, 1, 0)
			left(0, 1, 0)
			next := e.retry(ref, failed)
			left(0, 1, 0)
			e.finish(next, ledger.End{Status: ledger.Done})
			left(0, 0)
			e.finish(running, ledger.End{Status: ledger.Done})
			e.finish(e.start(ref, "a", minute(4), minute(5)), ledger.End{Status: ledger.Done})
			e.start(ref, "a", minute(5), minute(6))
			left(1, 6) // a run in progress is one of those to keep
		}},
	{Rule: Rule{87, "an ended context ends a call about requests",
		"Retry, GiveUp, Retries, Run, Trigger, Answer, Pause, Resume, Inbox and Prune with a context that has ended return an error, soon, and write nothing.",
		"as rule 34.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			run := e.fail(ref, "a", time.Time{}, noon)
			e.finish(e.start(ref, "a", noon, minute(1)), ledger.End{Status: ledger.Done})
			r := e.trigger("a")
			e.known(ref, "b")
			e.pause("b")
			l := e.ledger()
			e.unchanged(func() {
				for name, call := range map[string]func() error{
					"Retry":   func() error { _, _, err := l.Retry(ended(), ref, run); return err },
					"GiveUp":  func() error { _, err := l.GiveUp(ended(), ref, run); return err },
					"Retries": func() error { _, err := l.Retries(ended()); return err },
					"Run":     func() error { _, _, err := l.Run(ended(), "a", noon); return err },
					"Trigger": func() error { _, err := l.Trigger(ended(), order("a")); return err },
					"Answer":  func() error { _, _, err := l.Answer(ended(), ref, r, ""); return err },
					"Pause":   func() error { _, err := l.Pause(ended(), order("a")); return err },
					"Resume":  func() error { _, err := l.Resume(ended(), "b", "x"); return err },
					"Inbox":   func() error { _, err := l.Inbox(ended()); return err },
					"Prune":   func() error { _, err := l.Prune(ended(), "a", 0, 10); return err },
				} {
					var err error
					e.soon(name, func() { err = call() })
					require.Error(e, err, "%s with an ended context", name)
					require.NotErrorIs(e, err, schedlock.ErrLost, name)
				}
			}, "a call with an ended context")
		}},
}
