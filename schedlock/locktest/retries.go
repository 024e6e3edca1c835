package locktest

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// due is when the next attempt of a run that fails is due, with all digits
// that the ledger keeps.
var due = noon.Add(time.Hour + time.Microsecond)

// fail starts a tick and ends it as failed, with another attempt owed.
func (e *env) fail(ref driver.Ref, job string, tick time.Time) ledger.Run {
	e.Helper()
	e.finish(e.start(ref, job, tick), ledger.End{Status: ledger.Failed,
		Error: "why", RetryAt: due})
	return e.newest(job)
}

// newest is the row of the newest tick of a job.
func (e *env) newest(job string) ledger.Run {
	e.Helper()
	runs := e.runs(job, 1)
	require.NotEmpty(e, runs, "runs of job %q", job)
	return runs[0]
}

// retry starts an attempt that is owed.
func (e *env) retry(ref driver.Ref, run ledger.Run) ledger.Run {
	e.Helper()
	next, started, err := e.ledger().Retry(e.ctx, ref, run)
	require.NoError(e, err, "Retry")
	require.True(e, started, "Retry: started")
	next.StartedAt = next.StartedAt.Truncate(time.Microsecond)
	return next
}

func (e *env) owed() []ledger.Run {
	e.Helper()
	runs, err := e.ledger().Retries(e.ctx)
	require.NoError(e, err, "Retries")
	return runs
}

func (e *env) abandon(ref driver.Ref, retryAt func(ledger.Run) time.Time) []ledger.Run {
	e.Helper()
	runs, err := e.ledger().Abandon(e.ctx, ref, retryAt)
	require.NoError(e, err, "Abandon")
	return runs
}

var retryCases = []testCase{
	{Rule: Rule{60, "an attempt that is owed starts once",
		"Retry starts the next attempt of a run that is failed or abandoned, has the attempt " +
			"given, and is owed another one; else started is false and nothing is written.",
		"a run that has done its work runs again, or an attempt runs twice.", []Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			failed := e.fail(old, "failed", noon)
			left := e.start(old, "abandoned", noon)
			done := e.start(old, "done", noon)
			e.finish(done, ledger.End{Status: ledger.Done})
			over := e.start(old, "over", noon)
			e.finish(over, ledger.End{Status: ledger.Failed, Error: "why"})
			ref := e.win(bob)
			e.abandon(ref, func(ledger.Run) time.Time { return due })
			running := e.start(ref, "running", noon)
			e.decide(ref, ledger.Decision{Job: "skipped", To: noon,
				Skipped: []ledger.Skip{missed(0, 0)}})
			none := func(name string, run ledger.Run) {
				e.unchanged(func() {
					_, started, err := e.ledger().Retry(e.ctx, ref, run)
					require.NoError(e, err, name)
					require.False(e, started, name)
				}, "%s", name)
			}
			none("a run that is done", done)
			none("a run that is owed nothing", over)
			none("a run in progress", running)
			none("a skipped tick", e.newest("skipped"))
			none("no run", ledger.Run{ID: failed.ID + 1000, Attempt: 1})
			none("an attempt to come", ledger.Run{ID: failed.ID, Attempt: 2})
			for _, run := range []ledger.Run{failed, left} {
				next := e.retry(ref, run)
				none("an attempt that is under way", run)
				e.finish(next, ledger.End{Status: ledger.Failed, Error: "why", RetryAt: due})
				none("an attempt that has been", run)
				e.retry(ref, next)
			}
		}},
	{Rule: Rule{61, "an attempt is recorded whole",
		"Retry returns the run as Runs does: in progress, with the next attempt, the database's " +
			"time, and the holder's term, pid and hostname; its error stays, and the end and " +
			"what was owed are cleared. The end of the attempt is that of the run.",
		"the end of an attempt cannot be recorded, or the page does not say what is being tried " +
			"again, and why.", []Feature{Ledger}},
		run: func(e *env) {
			want := e.fail(e.win(alice), "a", noon)
			ref := e.win(bob)
			before := e.look().Now.Truncate(time.Microsecond)
			next := e.retry(ref, want)
			require.WithinRange(e, next.StartedAt, before, e.look().Now)
			want.Status, want.StartedAt, want.FinishedAt, want.RetryAt = ledger.InProgress,
				next.StartedAt, time.Time{}, time.Time{}
			want.Term, want.PID, want.Hostname, want.Attempt = ref.Term, bob.PID, bob.Hostname, 2
			require.Equal(e, want, e.newest("a"), "Runs")
			require.Equal(e, want, next, "Retry")
			e.finish(next, ledger.End{Status: ledger.Done})
			got := e.newest("a")
			require.WithinRange(e, got.FinishedAt, next.StartedAt, e.look().Now)
			want.Status, want.Error, want.FinishedAt = ledger.Done, "", got.FinishedAt
			require.Equal(e, want, got, "after a success")
			require.Len(e, e.runs("", 10), 1, "one row a tick, whatever the attempts")
		}},
	{Rule: Rule{62, "one of many starts an attempt",
		"Of many that retry the same attempt at the same time exactly one is told that it " +
			"started the next.",
		"two schedulers of one leader, or a retried call, run a job twice.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			run := e.fail(ref, "a", noon)
			handles := e.handles(5)
			for range 3 {
				e.oneStarts(handles, func(l ledger.Store) (bool, error) {
					_, started, err := l.Retry(e.ctx, ref, run)
					return started, err
				})
				run.Attempt++
				e.finish(run, ledger.End{Status: ledger.Failed, RetryAt: due})
			}
			require.Equal(e, 4, e.newest("a").Attempt, "the attempt")
		}},
	{Rule: Rule{63, "only the holder retries and gives up",
		"Retry and GiveUp return ErrLost, and write nothing, for another token, another term, " +
			"the lease before, and without a row.",
		"an old leader starts attempts beside its successor, or ends what that would try.",
		[]Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			run := e.fail(old, "a", noon)
			ref := e.win(alice)
			e.onlyHolder(old, ref, map[string]func(driver.Ref) (bool, error){
				"Retry": func(r driver.Ref) (bool, error) {
					_, started, err := e.ledger().Retry(e.ctx, r, run)
					return started, err
				},
				"GiveUp": func(r driver.Ref) (bool, error) {
					return e.ledger().GiveUp(e.ctx, r, run)
				},
			})
		}},
	{Rule: Rule{64, "a run is given up",
		"GiveUp ends a run that is owed an attempt: its status, error and end stay, and it is " +
			"owed none. changed is false, and nothing is written, if it is owed none.",
		"what cannot be tried again is tried for ever.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			other := e.fail(ref, "b", noon)
			want := e.fail(ref, "a", noon)
			changed, err := e.ledger().GiveUp(e.ctx, ref, want)
			require.NoError(e, err)
			require.True(e, changed)
			owed := want
			want.RetryAt = time.Time{}
			require.Equal(e, want, e.newest("a"))
			require.Equal(e, []ledger.Run{other}, e.owed(), "Retries")
			next := e.retry(ref, other)
			e.unchanged(func() {
				for name, run := range map[string]ledger.Run{
					"a run that was given up":      owed,
					"a run whose attempt goes on":  next,
					"a run that has been retried":  other,
					"a run that is not there":      {ID: owed.ID + 1000, Attempt: 1},
					"a run that never was in here": {},
				} {
					changed, err := e.ledger().GiveUp(e.ctx, ref, run)
					require.NoError(e, err, name)
					require.False(e, changed, name)
				}
				_, started, err := e.ledger().Retry(e.ctx, ref, owed)
				require.NoError(e, err)
				require.False(e, started, "Retry of what was given up")
			}, "what is owed nothing")
		}},
	{Rule: Rule{65, "it is kept when an attempt is due",
		"Finish keeps when the next attempt is due, to the microsecond, in UTC, and Abandon what " +
			"retryAt says of each run; without a time, or without retryAt, none is due.",
		"a run that failed is tried too early or never, or one that must not be repeated is.",
		[]Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			zone := time.FixedZone("somewhere", -9000)
			e.finish(e.start(old, "a", noon),
				ledger.End{Status: ledger.Failed, RetryAt: due.In(zone)})
			require.Equal(e, due, e.newest("a").RetryAt)
			e.finish(e.start(old, "a", minute(1)), ledger.End{Status: ledger.Failed})
			require.Zero(e, e.newest("a").RetryAt, "without a time")
			for _, job := range []string{"b", "c", "d"} {
				e.start(old, job, noon)
			}
			next := map[string]time.Time{"b": minute(7), "d": minute(9)}
			runs := e.abandon(e.win(bob), func(r ledger.Run) time.Time {
				if r.Term != old.Term || r.Attempt != 1 || !r.ScheduledAt.Equal(noon) {
					return time.Time{}
				}
				return next[r.Job].In(zone)
			})
			require.Len(e, runs, 3)
			for _, r := range runs {
				require.Equal(e, r, e.newest(r.Job), "Abandon, as Runs has it")
				require.Equal(e, next[r.Job], r.RetryAt, "job %q", r.Job)
			}
			e.start(e.row().Ref, "e", noon)
			runs = e.abandon(e.win(alice), nil)
			require.Len(e, runs, 1)
			require.Zero(e, runs[0].RetryAt, "without retryAt")
			require.Zero(e, e.newest("e").RetryAt, "without retryAt")
		}},
	{Rule: Rule{66, "what is owed comes in the order in which it is due",
		"Retries returns the runs of all jobs that are owed another attempt, as Runs does, first " +
			"the one that is due first, and no others.",
		"a new leader does not try again what its predecessor would have, or too late.",
		[]Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			require.Empty(e, e.owed())
			for i, at := range []int{5, 0, 3, 9, 0, 1} {
				job := []string{"a", "b"}[i%2]
				end := ledger.End{Status: ledger.Failed, Error: "why"}
				if at > 0 {
					end.RetryAt = minute(at)
				}
				e.finish(e.start(ref, job, minute(i)), end)
			}
			e.finish(e.start(ref, "c", noon), ledger.End{Status: ledger.Done})
			e.start(ref, "d", noon)
			all := e.runs("", 10)
			tick := func(n int) ledger.Run {
				for _, r := range all {
					if r.Job < "c" && r.ScheduledAt.Equal(minute(n)) {
						return r
					}
				}
				return ledger.Run{}
			}
			require.Equal(e, []ledger.Run{tick(5), tick(2), tick(0), tick(3)}, e.owed())
			e.retry(ref, tick(2))
			require.Equal(e, []ledger.Run{tick(5), tick(0), tick(3)}, e.owed(),
				"after an attempt has started")
		}},
	{Rule: Rule{67, "ends are counted",
		"Finish counts a success in the job's Done, Total and Longest, in whole microseconds, " +
			"and ends the Streak; it counts a failure in Failed and Streak. When they ended, and " +
			"the error's text, stay; a Finish that writes nothing counts nothing, and other jobs " +
			"are no concern.",
		"the page says that a job is well which fails each time, or the other way round.",
		[]Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.start(ref, "b", noon)
			var want ledger.Stats
			stats := func(when string) {
				e.Helper()
				jobs := e.jobs()
				require.Equal(e, want, jobs[0].Stats, when)
				require.Zero(e, jobs[1].Stats, "of another job")
			}
			for i, end := range []ledger.End{
				{Status: ledger.Done, Took: 1234567*time.Microsecond + 123*time.Nanosecond},
				{Status: ledger.Done, Took: 0},
				{Status: ledger.Failed, Took: 9 * time.Hour, Error: "line 1\nline 2 – 'ü'"},
				{Status: ledger.Failed, Took: time.Hour, Error: "again", RetryAt: due},
				{Status: ledger.Done, Took: 2 * time.Hour},
				{Status: ledger.Failed, Error: "in the end"},
			} {
				run := e.start(ref, "a", minute(i))
				stats("a start")
				e.finish(run, end)
				at := e.newest("a").FinishedAt
				if end.Status == ledger.Done {
					took := end.Took.Truncate(time.Microsecond)
					want.Done, want.Streak, want.LastDone = want.Done+1, 0, at
					want.Total, want.Longest = want.Total+took, max(want.Longest, took)
				} else {
					want.Failed, want.Streak, want.LastFailed, want.LastError = want.Failed+
						1, want.Streak+1, at, end.Error
				}
				stats("an end")
				written, err := e.ledger().Finish(e.ctx, run, end)
				require.NoError(e, err)
				require.False(e, written)
				stats("a second end")
			}
			// Attempts are counted, not runs.
			run := e.fail(ref, "a", minute(9))
			e.finish(e.retry(ref, run), ledger.End{Status: ledger.Done, Took: time.Second})
			want.Failed, want.LastFailed, want.LastError = want.Failed+1, run.FinishedAt, "why"
			want.Done, want.Streak, want.LastDone, want.Total = want.Done+
				1, 0, e.newest("a").FinishedAt, want.Total+time.Second
			stats("two attempts of one run")
		}},
	{Rule: Rule{68, "the last error is cut",
		"Stats keep the first 1,000 characters of an error's text; text that the database cannot " +
			"hold (NUL, no UTF-8) is changed, and the end is counted all the same.",
		"a job that fails with the wrong bytes, or with a book of them, stays in progress for " +
			"ever.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			for i, c := range []struct{ text, want string }{
				{strings.Repeat("0123456789", 100), strings.Repeat("0123456789", 100)},
				{strings.Repeat("0123456789", 1000), strings.Repeat("0123456789", 100)},
				{strings.Repeat("ü🦀", 1000), strings.Repeat("ü🦀", 500)},
				{"before\x00after", ""},
				{"before \xff\xfe after", ""},
				{strings.Repeat("ü", 999) + "\xff\xfe\x00", ""},
			} {
				e.finish(e.start(ref, "a", minute(i)),
					ledger.End{Status: ledger.Failed, Error: c.text})
				got := e.jobs()[0]
				require.EqualValues(e, i+1, got.Failed, "%.30q", c.text)
				if c.want != "" {
					require.Equal(e, c.want, got.LastError, "%.30q", c.text)
				} else {
					require.Contains(e, got.LastError, c.text[:6], "%.30q", c.text)
					require.LessOrEqual(e, utf8.RuneCountInString(got.LastError), 1000, "%.30q",
						c.text)
				}
			}
		}},
	{Rule: Rule{69, "what is abandoned is counted",
		"Abandon counts each attempt that it marks as a failure of its job, with the time, and " +
			"no other.",
		"a job that kills each of its leaders looks well.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.finish(e.start(ref, "c", noon), ledger.End{Status: ledger.Done})
			e.start(ref, "a", noon)
			e.start(ref, "a", minute(1)) // beside the first
			e.start(ref, "b", noon)
			ref = e.win(bob)
			e.start(ref, "d", noon)
			for range 2 { // the second time there are none
				e.abandon(ref, nil)
				for i, failed := range []int64{2, 1, 0, 0} {
					job := e.jobs()[i]
					require.Equal(e, failed, job.Failed, "Failed of job %q", job.Name)
					require.Equal(e, failed, job.Streak, "Streak of job %q", job.Name)
					if failed > 0 {
						require.Equal(e, e.newest(job.Name).FinishedAt, job.LastFailed,
							"LastFailed of job %q", job.Name)
					}
				}
				require.EqualValues(e, 1, e.jobs()[2].Done)
			}
		}},
	{Rule: Rule{70, "a run is found by its tick",
		"Run returns the row of a job's tick as Runs does, given its scheduled time to the " +
			"microsecond, in any time zone; there is none for another job, another time, or a " +
			"tick inside a skipped range.",
		"who waits for a run sees another's end, or waits for ever.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.fail(ref, "a", noon)
			_, _, err := e.ledger().Decide(e.ctx, ref, ledger.Decision{Job: "a",
				Spec: "s", From: noon, To: minute(9), Start: minute(9),
				Skipped: []ledger.Skip{{First: minute(1), Last: minute(5), Count: 5,
					Reason: ledger.Missed}}})
			require.NoError(e, err)
			e.start(ref, "b", minute(2))
			for _, want := range e.runs("", 10) {
				run, found, err := e.ledger().Run(e.ctx, want.Job,
					want.ScheduledAt.In(time.FixedZone("somewhere", -9000)))
				require.NoError(e, err)
				require.True(e, found, "job %q at %v", want.Job, want.ScheduledAt)
				require.Equal(e, want, run)
			}
			for name, c := range map[string]struct {
				job  string
				tick time.Time
			}{
				"another job's tick":            {"b", noon},
				"no job":                        {"c", noon},
				"no name":                       {"", noon},
				"1 µs before":                   {"a", noon.Add(-time.Microsecond)},
				"1 µs after":                    {"a", noon.Add(time.Microsecond)},
				"a tick inside a skipped range": {"a", minute(2)},
				"the end of a skipped range":    {"a", minute(5)},
				"the zero time":                 {"a", time.Time{}},
			} {
				_, found, err := e.ledger().Run(e.ctx, c.job, c.tick)
				require.NoError(e, err, name)
				require.False(e, found, name)
			}
		}},
}
