package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

func nothing(context.Context, Run) error { return nil }

func TestNewRunnerNamesEverythingThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := NewRunner(nil, nil, []Job{
		{Name: " ", Spec: Every(time.Hour), Do: nothing},
		{Name: strings.Repeat("n", 201), Spec: Every(time.Hour), Do: nothing},
		{Name: "twice", Spec: Every(time.Hour), Do: nothing},
		{Name: "twice", Spec: Every(time.Hour), Do: nothing},
		{Name: "idle", Spec: Every(time.Hour)},
		{Name: "hasty", Spec: Every(time.Millisecond), Do: nothing},
		{Name: "never", Do: nothing},
		{Name: "eager", Spec: Every(time.Hour), Do: nothing,
			Retry: Retry{Attempts: -1, Backoff: -1}},
		{Name: "zero", Spec: Every(time.Hour), Do: nothing, CatchUp: All(0)},
		{Name: "lowest", Spec: Every(time.Hour), Do: nothing, CatchUp: All(math.MinInt)},
		{Name: "greedy", Spec: Every(time.Hour), Do: nothing, CatchUp: All(1001), Overlap: 3,
			AtMostOnce: true, Timeout: -1,
			Retry: Retry{Attempts: 1001, Backoff: 2, MaxBackoff: 1}},
	}, WithLogger(nil), WithDrain(-time.Second), WithOnStuck(nil), WithOnRun(nil),
		WithKeepRuns(-1))
	for _, want := range []string{
		"lock is nil", "ledger is nil", "logger is nil", "drain limit -1s is below 0",
		"the function for stuck jobs is nil", "the function for runs is nil",
		"to keep, -1, is below 0",
		"job 1 of 11 has no name", "job 2 of 11: the name has 201 bytes, 200 are allowed",
		`job "twice" is there twice`,
		`job "idle" has nothing to do`, `job "hasty": schedule every 1ms: the interval must be at ` +
			`least 100ms`, `job "never": schedule is empty`,
		`job "eager": retry: -1 attempts`, `job "eager": retry: backoff -1ns is below 0`,
		`job "zero": catch-up All(0): the number must be between 1 and 1000`,
		`job "lowest": catch-up All(-92`, `job "greedy": catch-up All(1001)`,
		`job "greedy": overlap 3`, `job "greedy": time-out -1ns is below 0`,
		`job "greedy": 1001 attempts, but it is AtMostOnce`, `job "greedy": retry: 1001 attempts`,
		"retry: longest backoff 1ns is below the backoff of 2ns",
	} {
		assert.ErrorContains(t, err, want)
	}
}

// A later term would else run what nobody has checked.
func TestTheJobsOfARunnerStayAsTheyWereGiven(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", at(time.Second), 0)}
		a := w.join(jobs)
		jobs[0] = Job{}
		a.lead()
		sleepUntil(2 * time.Second)
		assert.Equal(t, []string{"j 00:00:01"}, d.read())
	})
}

func TestJobsRunOnTheLeaderOnlyAndEachTickOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ofA, ofB diary
		second := Every(time.Second).Offset(0)
		a := w.leader([]Job{ofA.job("j", second, 0)})
		b := w.standby([]Job{ofB.job("j", second, 0)})

		sleepUntil(10*time.Second + 500*time.Millisecond)
		begin := time.Now()
		require.NoError(t, a.runner.Stop(ctx))
		assert.Zero(t, time.Since(begin), "an idle leader leaves at once")
		sleepUntil(20*time.Second + 500*time.Millisecond)

		assert.Len(t, ofA.read(), 10)
		assert.Len(t, ofB.read(), 10)
		assert.True(t, b.leads())
		var want []string
		for s := 1; s <= 20; s++ {
			want = append(want, fmt.Sprintf("00:00:%02d done", s))
		}
		assert.Equal(t, want, w.rows("j"))
		for i, r := range w.runs("j") {
			assert.Equal(t, 1+i/10, r.PID)
			assert.Equal(t, w.terms()[1-i/10].Term, r.Term)
			assert.Equal(t, r.ScheduledAt, r.StartedAt)
			assert.Equal(t, 1, r.Attempt)
		}
		for _, r := range []*replica{a, b} {
			assert.NotRegexp(t, "level=(INFO|WARN|ERROR).* job=j", r.log.String(), "of a run")
		}
	})
}

func TestAJobIsToldItsTickItsTermAndItsLease(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var got Run
		a := w.leader([]Job{{Name: "j", Spec: at(5 * time.Second),
			Do: func(_ context.Context, run Run) error {
				got = run
				return nil
			}}})
		sleepUntil(6 * time.Second)
		lease := a.lock.Lease()
		assert.Equal(t, Run{Job: "j", ScheduledAt: midnight.Add(5 * time.Second), Attempt: 1,
			Term: lease.Term(), Lease: lease}, got)
	})
}

func TestTheEndOfARunIsRecordedHoweverItEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ends := map[string]func() error{
			"done":    func() error { return nil },
			"failed":  func() error { return errors.New("no space left") },
			"panics":  func() error { explode(); return nil },
			"goexits": func() error { runtime.Goexit(); return nil },
		}
		var jobs []Job
		for name, end := range ends {
			jobs = append(jobs, Job{Name: name, Spec: Every(10 * time.Second).Offset(0),
				Do: func(context.Context, Run) error {
					time.Sleep(time.Second)
					return end()
				}})
		}
		a := w.leader(jobs)
		sleepUntil(25 * time.Second)
		for name, want := range map[string]string{"done": "", "failed": "no space left",
			"panics":  "panic: too many bans",
			"goexits": "panic: called runtime.Goexit instead of returning\ngoroutine "} {
			status := ledger.Failed
			if want == "" {
				status = ledger.Done
			}
			runs := w.runs(name)
			require.Len(t, runs, 2, "%s goes on afterwards", name)
			for _, r := range runs {
				assert.Equal(t, status, r.Status, name)
				assert.Contains(t, r.Error, want, name)
				assert.Equal(t, time.Second, r.FinishedAt.Sub(r.StartedAt), name)
			}
		}
		assert.Contains(t, w.runs("panics")[0].Error, "\ngoroutine ")
		assert.Contains(t, w.runs("panics")[0].Error, "tasks.explode", "the stack")
		assert.True(t, a.leads())
	})
}

func explode() { panic("too many bans") }

func TestAtOnceRunsANewJobAtOnceAndOnlyThen(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := d.job("j", Every(time.Hour).Offset(0), 0)
		job.AtOnce = true
		time.Sleep(7 * time.Second)
		w.leader([]Job{job})
		sleepUntil(8 * time.Second)
		require.Equal(t, []string{"j 00:00:07"}, d.read())
		sleepUntil(time.Hour)
		require.Equal(t, []string{"j 00:00:07", "j 01:00:00"}, d.read())
	})
}

// Issue: bare gocron never runs such a job.
func TestAnHourlyJobRunsAlthoughTheLeaderChangesEveryTenMinutes(t *testing.T) {
	missing.Long(t, "changes the leader often")
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("hourly", Every(time.Hour).Offset(17*time.Minute), time.Second)}
		leader := w.leader(jobs)
		for m := 10; m <= 130; m += 10 {
			sleepUntil(time.Duration(m) * time.Minute)
			next := w.standby(jobs)
			require.NoError(t, leader.runner.Stop(ctx))
			leader = next
		}
		sleepUntil(140 * time.Minute)
		assert.Equal(t, []string{"hourly 00:17:00", "hourly 01:17:00", "hourly 02:17:00"}, d.read())
	})
}

func TestTheDatabaseRefusesTheStartOfARunToAnybodyButTheHolder(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", Every(time.Second).Offset(0), 0)})
		sleepUntil(13*time.Second + 500*time.Millisecond) // the next heartbeat is due at 20 s
		require.Len(t, d.read(), 13)
		w.usurp()
		require.True(t, a.leads(), "it cannot know yet")
		a.link.log()

		sleepUntil(14 * time.Second)
		assert.Len(t, d.read(), 13)
		assert.False(t, a.leads(), "a heartbeat was sent at once to find out")
		calls := a.link.log()
		require.GreaterOrEqual(t, len(calls), 2)
		assert.Equal(t, []string{"decide", "heartbeat leading"}, calls[:2])
		sleepUntil(30 * time.Second)
		assert.Len(t, d.read(), 13)
	})
}

func TestNothingRunsBeforeStart(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.join([]Job{d.job("j", Every(time.Second).Offset(0), 0)})
		a.runner.Campaign()
		sleepUntil(5 * time.Minute)
		assert.True(t, a.leads())
		assert.Equal(t, midnight.Add(5*time.Minute), w.holder().HeartbeatAt,
			"the lock is kept alive")
		assert.GreaterOrEqual(t, w.holder().Beat, int64(30))
		assert.Empty(t, d.read())
		assert.Empty(t, w.rows("j"))
		a.runner.Start()
		a.runner.Start() // harmless
		sleepUntil(5*time.Minute + 3*time.Second)
		assert.Equal(t, []string{"j 00:05:01", "j 00:05:02", "j 00:05:03"}, d.read())
	})
}

// A lease renews itself, unless another does: under a Runner its gocron task.
func TestTheHeartbeatTaskIsTheOnlyRenewer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		sleepUntil(10 * time.Minute)
		assert.InDelta(t, 10*time.Minute/every, w.holder().Beat, 5)
		assert.Error(t, a.lock.Lease().TakeRenewal(), "it is taken")
	})
}

func TestAcquireOfARunnerThatCampaignsIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.leader(nil), w.standby(nil)
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		begin := time.Now()
		for _, r := range []*replica{a, b} {
			assert.ErrorIs(t, r.runner.Acquire(short), schedlock.ErrStopped,
				"as its doc comment says")
		}
		assert.Zero(t, time.Since(begin))
		assert.True(t, a.leads())
	})
}

func TestAcquireIsStrict(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.join(nil)
		b := w.join([]Job{d.job("j", Every(time.Second).Offset(0), 0)})
		a.lead()
		begin := time.Now()
		err := b.runner.Acquire(ctx)
		held, ok := errors.AsType[*schedlock.HeldError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, 1, held.Info.PID)
		assert.Zero(t, time.Since(begin))
		require.NoError(t, a.runner.Stop(ctx))
		sleepUntil(time.Minute)
		assert.False(t, b.leads(), "one try is one try")

		require.NoError(t, b.runner.Acquire(ctx))
		b.runner.Start()
		sleepUntil(time.Minute + 3*time.Second)
		assert.Len(t, d.read(), 3)
	})
}

func TestTwoHundredBlockedJobsDoNotStarveTheHeartbeat(t *testing.T) {
	missing.Long(t, "has 200 jobs")
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		mayReturn := make(chan struct{})
		var jobs []Job
		for i := range 200 {
			jobs = append(jobs, d.deaf(fmt.Sprintf("blocked %d", i),
				Every(5*time.Second).Offset(0), mayReturn))
		}
		a := w.leader(jobs)
		for beat := 1; beat <= 6; beat++ {
			sleepUntil(time.Duration(beat) * every)
			require.Equal(t, midnight.Add(time.Duration(beat)*every), w.holder().HeartbeatAt)
		}
		assert.Len(t, d.read(), 200)
		assert.True(t, a.leads())
		close(mayReturn)
	})
}

func TestALeaderWhoseTicksAreDueButNeverStartStepsDown(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", Every(10*time.Second).Offset(5*time.Second), 0)}
		a := w.leader(jobs)
		b := w.standby(jobs)
		sleepUntil(6 * time.Second)
		require.Len(t, d.read(), 1)
		a.link.set(on(usurp, "decide")) // heartbeats succeed, but nothing starts
		sleepUntil(15*time.Second + ttl)
		require.True(t, a.leads(), "not for longer than a TTL")
		sleepUntil(15*time.Second + ttl + every)
		assert.False(t, a.leads())
		assert.Equal(t, 1,
			a.log.Count(`stepped down: the tick of job \"j\" at 2000-01-01T00:00:15Z is due for`))
		sleepUntil(15*time.Second + ttl + 2*every)
		assert.True(t, b.leads(), "the row was given back")
		require.Greater(t, len(d.read()), 1)
		assert.Equal(t, "j 00:01:15", d.read()[1])
	})
}

func TestStalled(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join([]Job{{Name: "j", Spec: Every(time.Minute).Offset(0), Do: nothing}})
		lease, err := a.lock.Acquire(ctx)
		require.NoError(t, err)
		tm := a.runner.newTerm(lease, nil)
		require.NoError(t, tm.start(ctx))
		require.NoError(t, tm.cron.StopJobs()) // no alarm rings any more
		j := tm.jobs[0]
		set := func(row *ledger.Job) {
			j.turn.TryTake()
			j.row = row
			j.turn.Give()
		}
		set(nil)
		assert.NoError(t, tm.stalled(time.Minute), "not in the ledger yet")
		set(&ledger.Job{Name: "j", Spec: j.spec.String(), Cursor: midnight})
		time.Sleep(2*time.Minute + time.Second)
		assert.ErrorContains(t, tm.stalled(time.Minute),
			`the tick of job "j" at 2000-01-01T00:01:00Z is due for 1m1s`)
		assert.NoError(t, tm.stalled(61*time.Second), "at the limit")
		j.stir()
		assert.NoError(t, tm.stalled(time.Minute),
			"a run, or a pause, that was in the way has just ended")
		time.Sleep(time.Minute + time.Second)
		assert.ErrorContains(t, tm.stalled(time.Minute), "is due for 1m1s", "since then")
		j.turn.TryTake()
		assert.NoError(t, tm.stalled(time.Minute), "is being decided")
		j.turn.Give()
		j.active = 1
		assert.NoError(t, tm.stalled(time.Minute), "waits for a run")
		j.active = 0
		tm.pending.Pauses = []ledger.Pause{{Action: ledger.Action{Job: "j"}}}
		assert.NoError(t, tm.stalled(time.Minute), "is paused")
		require.NoError(t, tm.readPending(ctx))
		assert.NoError(t, tm.stalled(time.Minute), "its pause has just ended")
		time.Sleep(time.Minute + time.Second)
		set(&ledger.Job{Name: "j", Spec: "another", Cursor: midnight})
		assert.NoError(t, tm.stalled(time.Minute), "a changed spec is decided first")
		tm.end()
	})
}

// Another app that took the lock for a while, by mistake, must not keep the
// replicas that stand by in the background away for good.
func TestARunnerGoesOnWhenAnotherAppHasTheLockForAWhile(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		newLock := func(app string) *schedlock.Lock {
			lock, err := schedlock.New(w.db, schedlock.WithApp(app), schedlock.WithLogger(discard))
			require.NoError(t, err)
			return lock
		}
		shop := newLock("shop")
		lease, err := shop.Acquire(ctx)
		require.NoError(t, err)

		lock, log := newLock("billing"), &logtest.Log{}
		r, err := NewRunner(lock, w.db, nil, WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		require.NoError(t, err)
		require.ErrorIs(t, r.Acquire(ctx), driver.ErrPermanent)
		r.Campaign()
		r.Start()
		time.Sleep(5 * ttl / 2)
		require.ErrorIs(t, lock.IsLeader(ctx), schedlock.ErrNotLeader)
		require.Equal(t, 3, log.Count("campaign refused: it is repeated"))
		require.NoError(t, lease.Release(ctx))
		time.Sleep(ttl + retry)
		synctest.Wait()
		require.NoError(t, lock.IsLeader(ctx))
		require.NoError(t, r.Stop(ctx))
		require.NoError(t, lock.Stop(ctx))
		require.NoError(t, shop.Stop(ctx))
	})
}
