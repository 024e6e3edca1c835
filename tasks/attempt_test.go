package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

var errFull = errors.New("no space left")

// failing is a job whose first n attempts of each run fail.
func (d *diary) failing(name string, spec Spec, n int) Job {
	return Job{Name: name, Spec: spec, Do: func(_ context.Context, run Run) error {
		d.write("%s %s attempt %d", name, run.ScheduledAt.Format("15:04:05"), run.Attempt)
		if run.Attempt <= n {
			return errFull
		}
		return nil
	}}
}

// failures collects what OnRun is told of attempts that did not succeed.
type failures struct {
	mu  sync.Mutex
	got []RunEvent
}

func (f *failures) add(x RunEvent) {
	if x.Err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, x)
}

func (f *failures) read() []RunEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.got)
}

func TestARunThatFailsIsTriedAgainByItsPolicy(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var (
			d diary
			f failures
		)
		job := d.failing("j", at(5*time.Second), 2)
		job.Retry = Retry{Attempts: 4, Backoff: 10 * time.Second}
		a := w.join([]Job{job}, WithOnRun(f.add))
		a.lead()
		sleepUntil(6 * time.Second)
		r := w.runs("j")[0]
		require.Equal(t, ledger.Failed, r.Status)
		require.WithinRange(t, r.RetryAt, midnight.Add(10*time.Second),
			midnight.Add(15*time.Second), "half of the backoff, or more")
		first := r.RetryAt
		sleepUntil(first.Sub(midnight) - time.Millisecond)
		require.Len(t, d.read(), 1, "not before it is due")
		sleepUntil(first.Sub(midnight))
		require.Len(t, d.read(), 2)
		r = w.runs("j")[0]
		require.WithinRange(t, r.RetryAt, first.Add(10*time.Second), first.Add(20*time.Second),
			"twice the backoff")
		sleepUntil(time.Minute)
		assert.Equal(t, []string{"j 00:00:05 attempt 1",
			"j 00:00:05 attempt 2", "j 00:00:05 attempt 3"}, d.read())
		runs := w.runs("j")
		require.Len(t, runs, 1, "one row")
		assert.Equal(t, ledger.Done, runs[0].Status)
		assert.Equal(t, 3, runs[0].Attempt)
		assert.True(t, runs[0].Final())
		assert.Empty(t, runs[0].Error)
		assert.Equal(t, 2, a.log.count("run failed"))
		assert.Equal(t, 1, a.log.count(`msg="run done" job=j`))

		require.Len(t, f.read(), 2)
		for i, x := range f.read() {
			assert.Equal(t, i+1, x.Attempt)
			assert.Equal(t, ledger.Failed, x.Status)
			assert.ErrorIs(t, x.Err, errFull)
			assert.True(t, x.RetryAt.After(x.ScheduledAt))
			assert.NotNil(t, x.Lease)
		}
	})
}

func TestARunIsGivenUpAfterItsLastAttempt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retry Retry
		once  bool
		want  int
	}{
		"by default the next tick is the retry": {want: 1},
		"one attempt":                           {retry: Retry{Attempts: 1}, want: 1},
		"three attempts":                        {retry: Retry{Attempts: 3}, want: 3},
		"at most once":                          {once: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var (
					d diary
					f failures
				)
				job := d.failing("j", Every(10*time.Minute).Offset(5*time.Second), 99)
				job.Retry, job.AtMostOnce = tc.retry, tc.once
				a := w.join([]Job{job}, WithOnRun(f.add))
				a.lead()
				sleepUntil(9 * time.Minute)
				assert.Len(t, d.read(), tc.want)
				r := w.runs("j")[0]
				assert.Equal(t, ledger.Failed, r.Status)
				assert.Equal(t, tc.want, r.Attempt)
				assert.True(t, r.Final())
				require.Len(t, f.read(), tc.want)
				assert.Zero(t, f.read()[tc.want-1].RetryAt, "it is told that this was the last")
				// The next tick begins anew, with attempt 1.
				sleepUntil(10*time.Minute + 6*time.Second)
				assert.Equal(t, "j 00:10:05 attempt 1", d.read()[tc.want])
			})
		})
	}
}

func TestARunThatItsLeaderLeftIsTakenUpByTheNext(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var (
			d diary
			f failures
		)
		jobs := []Job{d.job("j", at(5*time.Second), 20*time.Second),
			once(d.job("mail", at(5*time.Second), 20*time.Second))}
		a := w.join(jobs)
		a.lead()
		sleepUntil(6 * time.Second)
		a.link.set(on(hang)) // for ever, as if its machine had gone
		b := w.join(jobs, WithOnRun(f.add))
		b.stand()
		sleepUntil(6*time.Second + ttl) // b has watched the row for a TTL
		require.True(t, b.leads())
		for _, name := range []string{"j", "mail"} {
			require.Equal(t, ledger.Abandoned, w.runs(name)[0].Status,
				"as soon as the next leader arrives")
		}
		require.Len(t, f.read(), 2)
		for _, x := range f.read() {
			assert.Equal(t, ledger.Abandoned, x.Status)
			assert.Equal(t, x.Job == "mail", x.RetryAt.IsZero())
			assert.ErrorIs(t, x.Err, errAbandoned)
		}
		sleepUntil(6*time.Second + ttl + time.Second)
		r := w.runs("j")[0]
		require.Equal(t, ledger.InProgress, r.Status)
		assert.Equal(t, 2, r.Attempt)
		assert.Equal(t, b.lock.Lease().Term(), r.Term)
		sleepUntil(2 * time.Minute)
		assert.Equal(t, ledger.Done, w.runs("j")[0].Status)
		mail := w.runs("mail")[0]
		assert.Equal(t, ledger.Abandoned, mail.Status)
		assert.Equal(t, 1, mail.Attempt)
		assert.Equal(t, 1, b.log.count("run abandoned by its leader: it is not repeated"))
		wrote := d.read()
		slices.Sort(wrote)
		assert.Equal(t, []string{"j 00:00:05", "j 00:00:05", "mail 00:00:05"}, wrote)
		a.link.set(nil)
		sleepUntil(3 * time.Minute)
		assert.Equal(t, ledger.Done, w.runs("j")[0].Status, "and the old leader cannot change it")
	})
}

func TestARunThatKillsEachOfItsLeadersIsGivenUp(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		jobs := []Job{d.job("j", at(5*time.Second), time.Hour)}
		for i := range 5 {
			r := w.join(jobs)
			r.runner.Start()
			r.runner.Campaign()
			sleepUntil(time.Duration(i+1) * 2 * time.Minute)
			require.True(t, r.leads())
			r.link.set(on(hang))
		}
		r := w.runs("j")[0]
		assert.Equal(t, ledger.Abandoned, r.Status)
		assert.Equal(t, cutAttempts, r.Attempt)
		assert.True(t, r.Final())
		assert.Len(t, d.read(), cutAttempts)
	})
}

func TestARunThatADrainHasCutIsTakenUpByTheNextLeader(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		jobs := []Job{d.job("j", at(5*time.Second), 30*time.Second),
			once(d.job("mail", at(5*time.Second), 30*time.Second))}
		a, b := w.join(jobs, WithDrain(time.Second)), w.join(jobs)
		a.lead()
		b.stand()
		sleepUntil(6 * time.Second)
		require.NoError(t, a.runner.Stop(ctx))
		r := w.runs("j")[0]
		require.Equal(t, ledger.Failed, r.Status)
		require.Equal(t, "the drain limit has passed", r.Error)
		require.False(t, r.Final())
		sleepUntil(time.Minute)
		r = w.runs("j")[0]
		assert.Equal(t, ledger.Done, r.Status)
		assert.Equal(t, 2, r.Attempt)
		assert.Equal(t, 2, r.PID, "by the next")
		assert.Equal(t, ledger.Failed, w.runs("mail")[0].Status)
	})
}

func TestARetryOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		job := d.failing("j", at(5*time.Second), 1)
		job.Retry = Retry{Attempts: 2, Backoff: time.Minute}
		a := w.join([]Job{job})
		a.lead()
		sleepUntil(10 * time.Second)
		due := w.runs("j")[0].RetryAt
		require.NoError(t, a.runner.Stop(ctx))
		b := w.join([]Job{job})
		b.lead()
		sleepUntil(due.Sub(midnight) - time.Millisecond)
		require.Len(t, d.read(), 1)
		sleepUntil(due.Sub(midnight))
		assert.Equal(t, []string{"j 00:00:05 attempt 1", "j 00:00:05 attempt 2"}, d.read())
	})
}

// A deploy may change what is owed: the job's policy, and whether there is one.
func TestWhatIsOwedFollowsTheCodeOfTheLeader(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		other := Job{Name: "other", Spec: at(time.Hour), Do: nothing}
		job := d.failing("j", Every(10*time.Minute).Offset(5*time.Second), 1)
		job.Retry = Retry{Attempts: 5, Backoff: time.Minute}
		next := func(jobs ...Job) *replica {
			r := w.join(jobs)
			r.lead()
			return r
		}
		a := next(job, other)
		sleepUntil(10 * time.Second)
		require.NoError(t, a.runner.Stop(ctx))

		b := next(other) // it does not know the job
		sleepUntil(5 * time.Minute)
		require.Len(t, d.read(), 1)
		require.False(t, w.runs("j")[0].Final(), "still owed")
		require.NoError(t, b.runner.Stop(ctx))

		c := next(job, other) // it is back
		sleepUntil(6 * time.Minute)
		require.Equal(t, ledger.Done, w.runs("j")[0].Status)
		assert.Equal(t, 2, w.runs("j")[0].Attempt)

		sleepUntil(10*time.Minute + 10*time.Second) // the next tick has failed
		require.NoError(t, c.runner.Stop(ctx))
		require.False(t, w.runs("j")[1].Final())
		job.Retry, job.AtMostOnce = Retry{}, true
		e := next(job, other)
		sleepUntil(20 * time.Minute)
		assert.Len(t, d.read(), 3, "now it must not be repeated")
		assert.True(t, w.runs("j")[1].Final())
		assert.Equal(t, 1, e.log.count("run is not tried again"))
	})
}

func TestATimeoutEndsTheContextOfARun(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		slow := d.job("slow", at(5*time.Second), time.Minute)
		slow.Timeout = 3 * time.Second
		plain := Job{Name: "plain", Spec: at(5 * time.Second), Timeout: 3 * time.Second,
			Do: func(ctx context.Context, _ Run) error {
				<-ctx.Done()
				return ctx.Err() // as most code does
			}}
		mayReturn, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		deaf := d.deaf("deaf", at(5*time.Second), mayReturn.Done())
		deaf.Timeout = 3 * time.Second
		quick := d.job("quick", at(5*time.Second), 2*time.Second)
		quick.Timeout = 3 * time.Second
		w.join([]Job{slow, plain, deaf, quick}).lead()
		sleepUntil(8 * time.Second)
		for _, name := range []string{"slow", "plain"} {
			r := w.runs(name)[0]
			assert.Equal(t, ledger.Failed, r.Status, name)
			assert.Contains(t, r.Error, "the run took longer than its time-out of 3s", name)
			assert.Equal(t, 3*time.Second, r.FinishedAt.Sub(r.StartedAt), name)
		}
		assert.Equal(t, ledger.Done, w.runs("quick")[0].Status)
		assert.Equal(t, ledger.InProgress, w.runs("deaf")[0].Status)
		sleepUntil(15 * time.Second)
		assert.Equal(t, ledger.Done, w.runs("deaf")[0].Status, "it has done its work")
	})
}

func TestOverlapQueueLetsOneTickWait(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		job := d.job("j", Every(time.Second).Offset(0), 2500*time.Millisecond)
		job.Overlap = OverlapQueue
		w.join([]Job{job}).lead()
		sleepUntil(7 * time.Second)
		assert.Equal(t, []string{"j 00:00:01", "j 00:00:03", "j 00:00:06"}, d.read())
		assert.Equal(t, []string{
			"00:00:01 done", "00:00:02 skipped overlap", "00:00:03 done",
			"00:00:04-00:00:05 (2) skipped overlap", "00:00:06 in_progress",
		}, w.rows("j"))
		assert.Equal(t, midnight.Add(3500*time.Millisecond), w.runs("j")[2].StartedAt)
	})
}

func TestAQueuedTickOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		job := d.job("j", Every(time.Minute).Offset(0), 90*time.Second)
		job.Overlap = OverlapQueue
		a := w.join([]Job{job})
		a.lead()
		sleepUntil(2*time.Minute + 10*time.Second) // the second waits for the first
		require.NoError(t, a.runner.Stop(ctx))
		require.Len(t, d.read(), 1)
		w.join([]Job{job}).lead()
		sleepUntil(2*time.Minute + 31*time.Second)
		assert.Equal(t, []string{"j 00:01:00", "j 00:02:00"}, d.read())
	})
}

func TestOverlapAllowRunsThemAtTheSameTime(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		job := d.job("j", Every(time.Second).Offset(0), 2500*time.Millisecond)
		job.Overlap = OverlapAllow
		w.join([]Job{job}).lead()
		sleepUntil(5 * time.Second)
		assert.Equal(t, []string{"00:00:01 done", "00:00:02 done", "00:00:03 in_progress",
			"00:00:04 in_progress", "00:00:05 in_progress"}, w.rows("j"))
	})
}

// The retry of one run and the next tick both need the job.
func TestARetryWaitsForARunThatIsUnderWay(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		job := Job{Name: "j", Spec: Every(10 * time.Second).Offset(0),
			Retry: Retry{Attempts: 2, Backoff: 8 * time.Second},
			Do: func(_ context.Context, run Run) error {
				d.write("%s attempt %d at %v", run.ScheduledAt.Format("15:04:05"), run.Attempt,
					time.Since(midnight).Truncate(time.Second))
				time.Sleep(8 * time.Second)
				if run.ScheduledAt.Equal(midnight.Add(10*time.Second)) && run.Attempt == 1 {
					return errFull
				}
				return nil
			}}
		w.join([]Job{job}).lead()
		sleepUntil(time.Minute)
		// Due between 22 and 26 s, while the run of 00:00:20 is under way.
		assert.Equal(t, []string{"00:00:10 attempt 1 at 10s", "00:00:20 attempt 1 at 20s"},
			d.read()[:2])
		assert.Contains(t, d.read()[2:], "00:00:10 attempt 2 at 28s")
		wantEachTickOnce(t, w, "j", job.Spec, midnight, midnight.Add(time.Minute))
	})
}

func TestTicksMissedForTenMinutes(t *testing.T) {
	t.Parallel()
	minute := Every(time.Minute).Offset(0)
	for name, tc := range map[string]struct {
		catchUp CatchUp
		ran     []string
		rows    []string
	}{
		"Latest": {Latest, []string{"j 00:11:00"}, []string{"00:02:00-00:10:00 (9) skipped missed",
			"00:11:00 done"}},
		"All(5)": {All(5), []string{"j 00:07:00", "j 00:08:00",
			"j 00:09:00", "j 00:10:00", "j 00:11:00"},
			[]string{"00:02:00-00:06:00 (5) skipped missed", "00:07:00 done", "00:08:00 done",
				"00:09:00 done", "00:10:00 done", "00:11:00 done"}},
		"Skip": {Skip, nil, []string{"00:02:00-00:11:00 (10) skipped missed"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var d diary
				job := d.job("j", minute, 2*time.Second)
				job.CatchUp = tc.catchUp
				a := w.join([]Job{job})
				a.lead()
				sleepUntil(90 * time.Second)
				require.NoError(t, a.runner.Stop(ctx))
				sleepUntil(11*time.Minute + 5*time.Second)
				w.join([]Job{job}).lead()
				sleepUntil(11*time.Minute + 30*time.Second)
				assert.Equal(t, append([]string{"j 00:01:00"}, tc.ran...), d.read())
				assert.Equal(t, append([]string{"00:01:00 done"}, tc.rows...), w.rows("j"))
				for i, r := range w.runs("j") {
					if before := w.runs("j")[max(i-1, 0)]; r.Status == ledger.Done &&
						before.Status == ledger.Done && i > 0 {
						assert.False(t, r.StartedAt.Before(before.FinishedAt),
							"one after the other")
					}
				}
				sleepUntil(12*time.Minute + 30*time.Second)
				assert.Equal(t, "00:12:00 done", w.rows("j")[len(w.rows("j"))-1],
					"and then as ever")
			})
		})
	}
}

// The second leader dies in the middle of what it makes up.
func TestWhatIsMadeUpOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	for range 20 { // things that happen at one instant happen in any order
		inWorld(t, func(t *testing.T, w *world) {
			var d diary
			job := d.job("j", Every(time.Minute).Offset(0), 10*time.Second)
			job.CatchUp = All(5)
			lead := func(from, upto time.Duration) {
				sleepUntil(from)
				r := w.join([]Job{job})
				r.lead()
				sleepUntil(upto)
				require.NoError(t, r.runner.Stop(ctx))
			}
			lead(0, 90*time.Second)
			// :07, and it drains :08
			lead(11*time.Minute+5*time.Second, 11*time.Minute+20*time.Second)
			lead(11*time.Minute+30*time.Second, 14*time.Minute)
			runs := d.read()
			assert.Equal(t, []string{"j 00:01:00", "j 00:07:00", "j 00:08:00", "j 00:09:00",
				"j 00:10:00", "j 00:11:00"}, runs[:6])
			wantEachTickOnce(t, w, "j", job.Spec, midnight, midnight.Add(14*time.Minute))
		})
	}
}

// A job that takes longer than its interval does not go on making up for ever.
func TestMakingUpComesToAnEnd(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		job := d.job("j", Every(time.Second).Offset(0), 2500*time.Millisecond)
		job.CatchUp = All(4)
		a := w.join([]Job{job})
		a.lead()
		sleepUntil(1500 * time.Millisecond)
		require.NoError(t, a.runner.Stop(ctx))
		sleepUntil(20*time.Second + 100*time.Millisecond)
		w.join([]Job{job}).lead()
		sleepUntil(37 * time.Second)
		assert.Equal(t, []string{
			"00:00:17 done", "00:00:18 done", "00:00:19 done", "00:00:20 done", // until 30.1 s
			"00:00:21-00:00:30 (10) skipped overlap",
			"00:00:31 done", "00:00:32-00:00:33 (2) skipped overlap", "00:00:34 done",
			"00:00:35-00:00:36 (2) skipped overlap", "00:00:37 in_progress",
		}, w.rows("j")[2:])
		wantEachTickOnce(t, w, "j", job.Spec, midnight, midnight.Add(37*time.Second))
	})
}

func TestAWeekWithoutALeaderIsARowOrTwo(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		jobs := []Job{d.job("interval", Every(time.Second).Offset(0), 0),
			d.job("cron", Cron("* * * * * *", ""), 0)}
		a := w.join(jobs)
		a.lead()
		sleepUntil(2500 * time.Millisecond)
		require.NoError(t, a.runner.Stop(ctx))
		const week = 7 * 24 * time.Hour
		sleepUntil(week + 500*time.Millisecond)
		w.join(jobs).lead()
		sleepUntil(week + 600*time.Millisecond)
		for _, j := range jobs {
			rows := w.rows(j.Name)
			require.Len(t, rows, 4)
			assert.Equal(t, []string{"00:00:01 done", "00:00:02 done",
				"00:00:03-23:59:59 (604797) skipped missed", "00:00:00 done"}, rows)
		}
	})
}

// Worked out by hand: Berlin goes from UTC+1 to UTC+2 at 01:00 UTC on 29 March
// 2026, and back at 01:00 UTC on 25 October.
func TestBothChangesOfTheClockInBerlin(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from  string
		hours time.Duration
		daily []string
		hour  []string
	}{
		"forward": {"2026-03-28T01:00:00Z", 28,
			[]string{"03-28 01:30", "03-29 01:00"},
			[]string{"03-28 22:05", "03-28 23:05", "03-29 00:05", "03-29 01:05", "03-29 02:05",
				"03-29 03:05"}},
		"back": {"2026-10-25T00:00:00Z", 28,
			[]string{"10-25 00:30", "10-26 01:30"},
			[]string{"10-25 00:05", "10-25 01:05", "10-25 02:05", "10-25 03:05"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				from := utc(tc.from)
				w.setClock(from.Sub(midnight))
				w.beats = 10 * time.Minute // there are hours to sleep
				var d diary
				jobs := []Job{d.job("daily", Cron("30 2 * * *", "Europe/Berlin"), 0),
					d.job("hourly", Cron("5 * * * *", "Europe/Berlin"), 0)}
				for h := time.Duration(0); h < tc.hours; h += 7 { // the leader changes all the time
					r := w.join(jobs)
					r.runner.inboxEvery = time.Minute
					r.lead()
					sleepUntil((h + 7) * time.Hour)
					require.NoError(t, r.runner.Stop(ctx))
				}
				stamps := func(job string) (got []string) {
					for _, r := range w.runs(job) {
						require.Equal(t, ledger.Done, r.Status)
						got = append(got, r.ScheduledAt.Format("01-02 15:04"))
					}
					return got
				}
				assert.Equal(t, tc.daily, stamps("daily"))
				hourly := stamps("hourly")
				i := slices.Index(hourly, tc.hour[0])
				require.GreaterOrEqual(t, i, 0)
				assert.Equal(t, tc.hour, hourly[i:i+len(tc.hour)])
				assert.Len(t, hourly, int(tc.hours), "one in every real hour")
			})
		})
	}
}

func TestAJobRenamedAndAJobRemovedAndAddedAgain(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		spec := Every(time.Minute).Offset(0)
		lead := func(upto time.Duration, names ...string) {
			var jobs []Job
			for _, n := range names {
				jobs = append(jobs, d.job(n, spec, 0))
			}
			r := w.join(jobs)
			r.lead()
			sleepUntil(upto)
			require.NoError(t, r.runner.Stop(ctx))
		}
		lead(2*time.Minute+30*time.Second, "old", "there")
		lead(5*time.Minute+30*time.Second, "new")
		lead(7*time.Minute+30*time.Second, "new", "there")
		assert.Equal(t, []string{"00:01:00 done", "00:02:00 done"}, w.rows("old"),
			"its history stays")
		assert.Equal(t, []string{"00:03:00 done", "00:04:00 done", "00:05:00 done", "00:06:00 done",
			"00:07:00 done"}, w.rows("new"), "starts at now")
		assert.Equal(t, []string{"00:01:00 done", "00:02:00 done",
			"00:03:00-00:04:00 (2) skipped missed", "00:05:00 done", "00:06:00 done",
			"00:07:00 done"},
			w.rows("there"), "nobody who led had it meanwhile: its ticks were missed")
	})
}

// Whatever was written, and whose answer was lost, is done: not lost, not twice.
func TestAStartWhoseAnswerWasLostIsCarriedOut(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"decide", "retry", "answer"} {
		t.Run(op, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var d diary
				job := d.failing("j", Every(10*time.Second).Offset(0), 1)
				job.Retry = Retry{Attempts: 2}
				a := w.join([]Job{job})
				a.lead()
				sleepUntil(5 * time.Second)
				lost := 0
				a.link.set(func(o string) fault {
					if o == op && lost < 3 {
						lost++
						return lose
					}
					return none
				})
				request, err := a.runner.Trigger(ctx, "j", "test", "")
				require.NoError(t, err)
				sleepUntil(59 * time.Second)
				require.Positive(t, lost)
				want := []string{}
				for _, tick := range []time.Time{request.At, midnight.Add(10 * time.Second),
					midnight.Add(20 * time.Second), midnight.Add(30 * time.Second),
					midnight.Add(40 * time.Second), midnight.Add(50 * time.Second)} {
					for attempt := range 2 {
						want = append(want, fmt.Sprintf("j %s attempt %d",
							tick.Format("15:04:05"), attempt+1))
					}
				}
				got := d.read()
				slices.Sort(got)
				slices.Sort(want)
				assert.Equal(t, want, got)
				for _, r := range w.runs("j") {
					assert.Equal(t, ledger.Done, r.Status, r.ScheduledAt)
				}
			})
		})
	}
}

func TestADrainStopsWhatIsBeingMadeUp(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		job := d.job("j", Every(time.Minute).Offset(0), time.Second)
		job.CatchUp, job.Overlap = All(5), OverlapAllow
		old := w.join([]Job{job})
		old.lead()
		require.NoError(t, old.runner.Stop(ctx))
		sleepUntil(10*time.Minute + 30*time.Second)
		a := w.join([]Job{job})
		decisions := 0
		a.link.set(func(op string) fault {
			if op == "decide" {
				decisions++
			}
			if decisions == 2 && op == "decide" {
				return freeze
			}
			return none
		})
		a.runner.Start()
		a.runner.Campaign()
		synctest.Wait()
		stopped := make(chan error, 1)
		go func() { stopped <- a.runner.Stop(ctx) }()
		synctest.Wait()
		a.link.set(nil)
		require.NoError(t, <-stopped)
		assert.Equal(t, []string{"j 00:06:00", "j 00:07:00"}, d.read(),
			"and the one that was being started")
		w.join([]Job{job}).lead()
		sleepUntil(10*time.Minute + 50*time.Second)
		wantEachTickOnce(t, w, "j", job.Spec, midnight, midnight.Add(10*time.Minute))
		assert.Len(t, d.read(), 5, "the next leader makes up the rest")
	})
}

// A row that this leader has started, and knows of, is not its lost write: here
// a request had exactly the time of the tick.
func TestATickThatIsInTheLedgerIsNotCarriedOutAgain(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"it runs": 5 * time.Second, "it has run": 0} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var d diary
				job := d.job("j", Every(10*time.Second).Offset(0), takes)
				job.Overlap = OverlapAllow
				a := w.join([]Job{job})
				a.lead()
				sleepUntil(9 * time.Second)
				w.setClock(time.Second)
				request, err := w.db.Trigger(ctx, ledger.Action{Job: "j", By: "alice"})
				require.NoError(t, err)
				w.setClock(-time.Second)
				require.Equal(t, midnight.Add(10*time.Second), request.At)
				sleepUntil(19 * time.Second)
				assert.Equal(t, []string{"j 00:00:10"}, d.read())
				assert.Equal(t, []string{"00:00:10 done"}, w.rows("j"))
				sleepUntil(26 * time.Second)
				assert.Equal(t, []string{"00:00:10 done", "00:00:20 done"}, w.rows("j"))
			})
		})
	}
}

func TestAPanicOfOnRunIsLogged(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		a := w.join([]Job{d.failing("j", Every(10*time.Second).Offset(0), 99)},
			WithOnRun(func(e RunEvent) {
				if e.Err != nil {
					panic("boom")
				}
			}))
		a.lead()
		sleepUntil(25 * time.Second)
		assert.Equal(t, 2, a.log.count("OnRun has panicked"))
		assert.Equal(t, []string{"00:00:10 failed", "00:00:20 failed"}, w.rows("j"))
	})
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		retry   Retry
		attempt int
		want    time.Duration
	}{
		{Retry{}, 1, time.Second},
		{Retry{}, 4, 8 * time.Second},
		{Retry{}, 500, 10 * time.Minute},
		{Retry{Backoff: time.Hour}, 1, time.Hour},
		{Retry{Backoff: time.Hour}, 3, time.Hour},
		{Retry{Backoff: time.Second, MaxBackoff: 3 * time.Second}, 2, 2 * time.Second},
		{Retry{Backoff: time.Second, MaxBackoff: 3 * time.Second}, 3, 3 * time.Second},
		{Retry{MaxBackoff: 100 * time.Millisecond}, 1, 100 * time.Millisecond},
	} {
		low, high := time.Duration(1<<62), time.Duration(0)
		for range 1000 {
			d := tc.retry.after(tc.attempt)
			low, high = min(low, d), max(high, d)
		}
		assert.GreaterOrEqual(t, low, tc.want/2, "%+v", tc)
		assert.Less(t, low, tc.want*6/10, "%+v: it is random", tc)
		assert.LessOrEqual(t, high, tc.want, "%+v", tc)
		assert.Greater(t, high, tc.want*9/10, "%+v", tc)
	}
}

func TestWhatALongRunOverlapsIsSoonSeenAndFewRows(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		w.join([]Job{d.job("j", Every(time.Second).Offset(0), time.Hour)}).lead()
		sleepUntil(4 * time.Second)
		require.Equal(t, []string{"00:00:01 in_progress", "00:00:02-00:00:03 (2) skipped overlap"},
			w.rows("j"))
		sleepUntil(30 * time.Minute)
		require.LessOrEqual(t, len(w.rows("j")), 12)
		require.Greater(t, len(w.rows("j")), 8)
		sleepUntil(time.Hour + 2*time.Second)
		wantEachTickOnce(t, w, "j", Every(time.Second).Offset(0), midnight,
			midnight.Add(time.Hour+2*time.Second))
	})
}
