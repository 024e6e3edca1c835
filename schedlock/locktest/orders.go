package locktest

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// order is what somebody asks, with what a text may have.
func order(job string) ledger.Action {
	return ledger.Action{Job: job, By: "o'hara-ü", Reason: "line 1\nline 2 – \"why\" $1 ? 🦀"}
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

func (e *env) inbox() ledger.Pending {
	e.Helper()
	in, err := e.ledger().Pending(e.ctx)
	require.NoError(e, err, "Pending")
	sortPauses(in.Pauses)
	return in
}

// answer starts a run that was asked for.
func (e *env) answer(ref driver.Ref, r ledger.Request) ledger.Run {
	e.Helper()
	run, started, err := e.ledger().Answer(e.ctx, ref, r, "")
	require.NoError(e, err, "Answer")
	require.True(e, started, "Answer: started")
	run.StartedAt = run.StartedAt.Truncate(time.Microsecond)
	return run
}

// known makes jobs that have a row each, whose cursor stands at noon, and no run.
func (e *env) known(ref driver.Ref, jobs ...string) {
	e.Helper()
	for _, job := range jobs {
		e.decide(ref, ledger.Decision{Job: job, Spec: "s", To: noon})
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

// Requests are made, and answered.
var orderCases = []testCase{
	{Rule: Rule{71, "a request is kept",
		"Trigger records a request with the database's time, in microseconds and UTC, who asked, " +
			"and why, and returns it as Pending does. It needs no leader.",
		"what somebody asked for never runs, or nobody knows who asked.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a", "b")
			e.release(ref)
			require.Empty(e, e.inbox().Requests)
			before := e.look().Now.Truncate(time.Microsecond)
			first := e.trigger("a")
			require.WithinRange(e, first.At, before, e.look().Now.Add(time.Microsecond))
			require.Equal(e, ledger.Request{Action: order("a"),
				At: first.At.UTC().Truncate(time.Microsecond)}, first)
			require.Equal(e, []ledger.Request{first}, e.inbox().Requests)
			second, err := e.ledger().Trigger(e.ctx, ledger.Action{Job: "b", By: "x"})
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
				mu      sync.Mutex
				times   []time.Time
				unknown int
			)
			handles := e.handles(5)
			together(handles, func(s driver.Store) {
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
			require.Len(e, times, each*len(handles), "requests that were made")
			slices.SortFunc(times, time.Time.Compare)
			require.Len(e, slices.CompactFunc(slices.Clone(times), time.Time.Equal), len(times),
				"different times")
			var kept []time.Time
			for _, r := range e.inbox().Requests {
				kept = append(kept, r.At)
			}
			if unknown == 0 {
				require.Equal(e, times, kept, "the times in Pending")
			} else {
				require.Subset(e, kept, times, "the times in Pending")
			}
		}},
	{Rule: Rule{73, "an order is checked",
		"Trigger and Pause refuse an order that is not valid, in the words of Order.Validate, " +
			"and return ErrNoJob for a job that has no row; only Pause takes the empty name. " +
			"Nothing is written.",
		"a request waits for ever for a job whose name was misspelt, or nobody knows whose it was.",
		[]Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a")
			e.unchanged(func() {
				trigger := func(o ledger.Action) error { return err1(e.ledger().Trigger(e.ctx, o)) }
				pause := func(o ledger.Action) error { return err1(e.ledger().Pause(e.ctx, o)) }
				for name, call := range map[string]func(ledger.Action) error{"Trigger": trigger,
					"Pause": pause} {
					for _, o := range []ledger.Action{
						{Job: "a"},
						{Job: "a", By: " \t"},
						{Job: "a", By: strings.Repeat("x", 201)},
						{Job: "a", By: "x", Reason: strings.Repeat("x", 1001)},
						{Job: "a", By: "\xff", Reason: "\x00"},
					} {
						require.ErrorContains(e, call(o), o.Validate().Error(), name)
					}
					for _, job := range []string{"b", "A", "a ", "a\x00", "\xff"} {
						require.ErrorIs(e, call(order(job)), ledger.ErrNoJob, "%s of job %q",
							name, job)
					}
				}
				require.ErrorIs(e, trigger(order("")), ledger.ErrNoJob, "Trigger without a name")
			}, "an order that was refused")
			longest := ledger.Action{Job: "a", By: strings.Repeat("x", 200),
				Reason: strings.Repeat("y", 1000)}
			r, err := e.ledger().Trigger(e.ctx, longest)
			require.NoError(e, err)
			require.Equal(e, longest, r.Action)
			require.Equal(e, longest, e.inbox().Requests[0].Action)
		}},
	{Rule: Rule{74, "what is paused is not asked for",
		"Trigger returns a *PausedError with the pause in force, and writes nothing, while the " +
			"job or the whole scheduler is paused.",
		"a run that nobody expects any more starts the moment that a pause ends.",
		[]Feature{Ledger}},
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
		"Answer removes the request and starts its run, as Runs has it: in progress, attempt 1, " +
			"for the request's time, with who asked, and why. started is false, and nothing is " +
			"written, if the request is there no more.",
		"what somebody asked for runs twice, or nobody knows who asked.", []Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a", "b")
			r, other := e.trigger("a"), e.trigger("b")
			ref := e.win(bob)
			before := e.look().Now.Truncate(time.Microsecond)
			run := e.answer(ref, r)
			require.NotZero(e, run.ID)
			require.WithinRange(e, run.StartedAt, before, e.look().Now)
			require.Equal(e, ledger.Run{ID: run.ID, Job: "a", ScheduledAt: r.At,
				StartedAt: run.StartedAt, Status: ledger.InProgress,
				Term: ref.Term, PID: bob.PID, Hostname: bob.Hostname, Attempt: 1, RequestedBy: r.By,
				RequestReason: r.Reason}, run, "Answer")
			require.Equal(e, run, e.newest("a"), "Runs")
			require.Equal(e, []ledger.Request{other}, e.inbox().Requests)
			require.Equal(e, noon, e.jobs()[0].Cursor, "the cursor")
			e.unchanged(func() {
				for name, r := range map[string]ledger.Request{
					"one that was answered": r,
					"one of another time": {Action: other.Action,
						At: other.At.Add(time.Microsecond)},
					"one of another job": {Action: order("c"), At: other.At},
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
		"Answer with a reason to skip removes the request and records a skipped run, as Runs has " +
			"it: neither start nor end nor attempt, the reason, who asked, and why; nothing is " +
			"started. A reason that the database cannot hold (NUL, no UTF-8) is changed.",
		"a request for a job that is no more stays for ever, and who asked is never told.",
		[]Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a")
			for i, reason := range []string{ledger.UnknownJob, "before\x00after",
				"before \xff\xfe after"} {
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
				want := ledger.Run{ID: got.ID, Job: "a", ScheduledAt: r.At, Status: ledger.Skipped,
					Term: ref.Term, PID: alice.PID,
					Hostname: alice.Hostname, Error: reason, RequestedBy: r.By,
					RequestReason: r.Reason}
				require.Equal(e, want, got, "Run")
				run.Error = reason
				require.Equal(e, want, run, "Answer")
				require.Empty(e, e.inbox().Requests)
			}
			require.Zero(e, e.jobs()[0].Stats, "a skipped run is no attempt")
			// So it is with the ticks of a schedule.
			skip := missed(0, 0)
			skip.Reason = "before\x00 \xff"
			e.decide(ref, ledger.Decision{Job: "b", To: noon, Skipped: []ledger.Skip{skip}})
			require.Contains(e, e.newest("b").Error, "before")
		}},
	{Rule: Rule{77, "one of many answers",
		"Of many that answer a request at the same time exactly one is told that it started the " +
			"run.",
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
		"Answer returns ErrLost, and writes nothing, for another token, another term, the lease " +
			"before, and without a row.",
		"an old leader starts runs beside its successor, or drops what that was asked for.",
		[]Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			e.known(old, "a")
			r := e.trigger("a")
			ref := e.win(alice)
			answer := func(skip string) func(driver.Ref) (bool, error) {
				return func(by driver.Ref) (bool, error) {
					_, started, err := e.ledger().Answer(e.ctx, by, r, skip)
					return started, err
				}
			}
			e.onlyHolder(old, ref, map[string]func(driver.Ref) (bool, error){
				"Answer": answer(""), "Answer, to skip": answer(ledger.UnknownJob)})
		}},
}
