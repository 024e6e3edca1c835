package tasks

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// What is repeated finds the attempt ended: by the statement before, and nobody else.
func TestARunIsTriedAgainThoughTheAnswerToItsEndWasLost(t *testing.T) {
	for name, look := range map[string]func(string) fault{
		"the ledger answers again":    nil,
		"it does not say what it has": on(refuse, "run"),
	} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			job := d.failing("j", at(5*time.Second), 1)
			job.Retry = Retry{Attempts: 2, Backoff: 10 * time.Second}
			a := w.leader([]Job{job})
			a.link.set(on(lose, "finish"))
			sleepUntil(5*time.Second + retry/2)
			a.link.set(look)
			sleepUntil(time.Minute)
			assert.Equal(t, []string{"j 00:00:05 attempt 1", "j 00:00:05 attempt 2"}, d.read())
			assert.Equal(t, []string{"00:00:05 done"}, w.rows("j"))
			assert.Zero(t, a.log.Count("end of run came too late"))
		})
	}
}

// A hand may have ended it, and written what cannot be read.
func TestNobodyIsAskedForEverWhoHasEndedARun(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", Every(10*time.Second).Offset(5*time.Second), 2*time.Second)})
		sleepUntil(6 * time.Second)
		written, err := w.db.Finish(ctx, w.runs("j")[0], ledger.End{Status: ledger.Failed})
		require.NoError(t, err)
		require.True(t, written)
		a.link.set(on(refuse, "run"))
		sleepUntil(16 * time.Second)
		assert.Equal(t, []string{"j 00:00:05", "j 00:00:15"}, d.read())
		assert.Equal(t, 1, a.log.Count("end of run came too late"))
	})
}

func TestARunThatFailsIsTriedAgainByItsPolicy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var (
			d diary
			f failures
		)
		job := d.failing("j", at(5*time.Second), 2)
		job.Retry = Retry{Attempts: 4, Backoff: 10 * time.Second}
		a := w.leader([]Job{job}, WithOnRun(f.add))
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
		assert.Equal(t, 2, a.log.Count(`level=WARN msg="run failed"`), "it is tried again")
		assert.Equal(t, 1, a.log.Count(`msg="run done" job=j`))

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
		runInWorld(t, name, func(t *testing.T, w *world) {
			var (
				d diary
				f failures
			)
			job := d.failing("j", Every(10*time.Minute).Offset(5*time.Second), 99)
			job.Retry, job.AtMostOnce = tc.retry, tc.once
			a := w.leader([]Job{job}, WithOnRun(f.add))
			sleepUntil(9 * time.Minute)
			assert.Len(t, d.read(), tc.want)
			assert.Equal(t, tc.want-1, a.log.Count(`level=WARN msg="run failed"`))
			assert.Equal(t, 1, a.log.Count(`level=ERROR msg="run failed"`), "the last")
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
	}
}

func TestATimeoutEndsTheContextOfARun(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
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
		w.leader([]Job{slow, plain, deaf, quick})
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

func TestAJobRenamedAndAJobRemovedAndAddedAgain(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		spec := Every(time.Minute).Offset(0)
		lead := func(upto time.Duration, names ...string) {
			var jobs []Job
			for _, n := range names {
				jobs = append(jobs, d.job(n, spec, 0))
			}
			w.leadsUntil(upto, jobs)
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
	for _, op := range []string{"decide", "retry", "answer"} {
		runInDiary(t, op, func(t *testing.T, w *world, d *diary) {
			job := d.failing("j", Every(10*time.Second).Offset(0), 1)
			job.Retry = Retry{Attempts: 2}
			a := w.leader([]Job{job})
			sleepUntil(5 * time.Second)
			lost := 0
			a.link.set(func(o string) fault {
				if o == op && lost < 3 {
					lost++
					return lose
				}
				return none
			})
			request := a.trigger("j", "test", "")
			sleepUntil(59 * time.Second)
			require.Positive(t, lost)
			require.Positive(t, a.log.Count(`msg="run ledger does not answer" job=j`))
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
	}
}

func TestADrainStopsWhatIsBeingMadeUp(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := d.job("j", Every(time.Minute).Offset(0), time.Second)
		job.CatchUp, job.Overlap = All(5), OverlapAllow
		w.leadsUntil(0, []Job{job})
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
		a.start()
		synctest.Wait()
		stopped := make(chan error, 1)
		go func() { stopped <- a.runner.Stop(ctx) }()
		synctest.Wait()
		a.link.set(nil)
		require.NoError(t, <-stopped)
		assert.Equal(t, []string{"j 00:06:00", "j 00:07:00"}, d.read(),
			"and the one that was being started")
		w.leader([]Job{job})
		sleepUntil(10*time.Minute + 50*time.Second)
		wantEachTickOnce(t, w, "j", job.Spec, midnight, midnight.Add(10*time.Minute))
		assert.Len(t, d.read(), 5, "the next leader makes up the rest")
	})
}

// A row that this leader has started, and knows of, is not its lost write: here
// a request had exactly the time of the tick.
func TestATickThatIsInTheLedgerIsNotCarriedOutAgain(t *testing.T) {
	for name, takes := range map[string]time.Duration{"it runs": 5 * time.Second, "it has run": 0} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			job := d.job("j", Every(10*time.Second).Offset(0), takes)
			job.Overlap = OverlapAllow
			w.leader([]Job{job})
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
	}
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
		{Retry{MaxBackoff: math.MaxInt64}, 1000, math.MaxInt64},
	} {
		low, high := tc.want, time.Duration(0)
		for range 1000 {
			d := tc.retry.after(tc.attempt)
			low, high = min(low, d), max(high, d)
		}
		assert.GreaterOrEqual(t, low, tc.want/2, "%+v", tc)
		assert.Less(t, low, tc.want/10*6, "%+v: it is random", tc)
		assert.LessOrEqual(t, high, tc.want, "%+v", tc)
		assert.Greater(t, high, tc.want/10*9, "%+v", tc)
	}
}
