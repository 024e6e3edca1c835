package tasks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// How a term ends: on purpose, by an operator, by loss.

func TestADrainWaitsForRunningJobsAndReleasesLast(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("long", at(5*time.Second), 18*time.Second),
			d.job("each second", Every(time.Second).Offset(0), 0)}
		a, b := w.leader(jobs), w.standby(jobs)
		sleepUntil(6*time.Second + 100*time.Millisecond)
		a.link.log()
		stopped := make(chan error, 1)
		go func() { stopped <- a.runner.Stop(ctx) }()

		synctest.Wait()
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining)
		require.Equal(t, driver.StateDraining, w.holder().State,
			"at once, not at the next heartbeat")
		sleepUntil(23*time.Second - time.Millisecond)
		require.False(t, b.leads())
		require.Empty(t, stopped)
		require.Equal(t, []string{"heartbeat draining", "heartbeat draining", "heartbeat draining"},
			a.link.log(),
			"at 6.1, 10 and 20 s; nothing new starts")
		sleepUntil(23 * time.Second)
		require.NoError(t, <-stopped)
		assert.Equal(t, []string{"finish done", "release released"}, a.link.log())
		assert.Equal(t, driver.EndReleased, w.terms()[len(w.terms())-1].EndReason)
		assert.Empty(t, d.causes(), "it was not cancelled")

		sleepUntil(25 * time.Second)
		assert.True(t, b.leads())
		assert.Equal(t, []string{
			"00:00:01 done", "00:00:02 done", "00:00:03 done", "00:00:04 done", "00:00:05 done",
			"00:00:06 done",
		}, w.rows("each second")[:6])
		assert.Contains(t, w.rows("each second")[6], "00:00:07-00:00:2",
			"what nobody ran while a drained")
		sleepUntil(2 * time.Minute)
		assert.Empty(t, a.link.log(), "and never comes back")
	})
}

func TestADrainCancelsTheJobsAtItsLimit(t *testing.T) {
	for name, limit := range map[string]time.Duration{"after 3 s": 3 * time.Second, "at once": 0} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			a := w.leader([]Job{d.job("j", at(time.Second), time.Hour)}, WithDrain(limit),
				WithOnStuck(func([]Run) { d.write("stuck") }))
			sleepUntil(2 * time.Second)
			begin := time.Now()
			require.NoError(t, a.runner.Stop(ctx))
			assert.Equal(t, limit, time.Since(begin))
			require.Len(t, d.causes(), 1)
			assert.ErrorIs(t, d.causes()[0], errDrained)
			run := w.runs("j")[0]
			assert.Equal(t, ledger.Failed, run.Status)
			assert.Equal(t, "the drain limit has passed", run.Error)
			assert.Equal(t, []string{"j 00:00:01"}, d.read())
			assert.Nil(t, w.holder())
		})
	}
}

func TestAJobThatIgnoresItsCancellationKeepsTheLock(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var d, told diary
		mayReturn := make(chan struct{})
		jobs := []Job{d.deaf("deaf", at(time.Second), mayReturn),
			d.job("good", at(2*time.Second), time.Hour)}
		a := w.leader(jobs, WithDrain(5*time.Second), WithOnStuck(func(runs []Run) {
			told.write("%d %s", len(runs), runs[0].Job)
		}))
		b := w.standby(nil)
		sleepUntil(10 * time.Second)
		patience, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		stopped := make(chan error, 1)
		go func() { stopped <- a.runner.Stop(patience) }()

		sleepUntil(15*time.Second + drainGrace - time.Millisecond)
		require.Empty(t, told.read())
		require.Len(t, d.causes(), 1, "the other was cancelled")
		sleepUntil(15*time.Second + drainGrace)
		require.Equal(t, []string{"1 deaf"}, told.read())
		assert.Equal(t, 1, a.log.Count("job does not return although it was cancelled"))

		sleepUntil(10*time.Second + 5*time.Minute)
		require.ErrorIs(t, <-stopped, context.DeadlineExceeded)
		require.False(t, b.leads())
		before := w.holder()
		require.Equal(t, driver.StateDraining, before.State)
		sleepUntil(20 * time.Minute)
		require.False(t, b.leads(), "nobody else leads while it runs")
		require.Equal(t, before.Term, w.holder().Term)
		require.Greater(t, w.holder().Beat, before.Beat+80)
		require.Len(t, told.read(), 1, "said once")

		a.link.log()
		close(mayReturn)
		sleepUntil(20*time.Minute + 2*time.Second)
		assert.Equal(t, []string{"finish done", "release released"}, a.link.log())
		assert.True(t, b.leads())
		assert.NoError(t, a.runner.Stop(ctx))
	})
}

func TestALossCancelsTheJobsFirstAndTidiesUpWhenTheyHaveReturned(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := Job{Name: "j", Spec: Every(time.Hour).Offset(5 * time.Second),
			Do: func(ctx context.Context, run Run) error {
				<-ctx.Done()
				d.write("cancelled at %v: leader %v", time.Since(midnight), run.Lease.Err() == nil)
				d.end(context.Cause(ctx))
				time.Sleep(3 * time.Second)
				d.write("returned at %v", time.Since(midnight))
				return context.Cause(ctx)
			}}
		a, b := w.leader([]Job{once(job)}), w.standby(nil)
		sleepUntil(15 * time.Second)
		require.True(t, w.db.DeleteRow())
		a.link.log()

		sleepUntil(20*time.Second + time.Second)
		require.Equal(t, []string{"cancelled at 20s: leader false"}, d.read(),
			"at the next heartbeat")
		require.ErrorIs(t, d.causes()[0], schedlock.ErrLost)
		require.Equal(t, []string{"heartbeat leading"}, a.link.log(),
			"the database is left alone while the job returns")
		require.Nil(t, w.holder())
		require.False(t, b.leads())
		sleepUntil(23 * time.Second)
		require.Equal(t, "returned at 23s", d.read()[1])
		calls := a.link.log()
		require.GreaterOrEqual(t, len(calls), 2)
		require.Equal(t, []string{"finish failed", "release lost"}, calls[:2])
		ended := w.terms()[len(w.terms())-1]
		assert.Equal(t, driver.EndLost, ended.EndReason)
		assert.Equal(t, midnight.Add(23*time.Second), ended.EndedAt,
			"so that nobody waits for the TTL")

		sleepUntil(25 * time.Second)
		assert.True(t, a.leads() != b.leads(), "one of them leads again, under a new term")
		assert.Greater(t, w.holder().Term, ended.Term)
		assert.Equal(t, ledger.Failed, w.runs("j")[0].Status)
	})
}

func TestAReplicaLeadsAgainAfterALoss(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", Every(time.Second).Offset(500*time.Millisecond), 0)})
		first := a.lock.Lease()
		sleepUntil(11 * time.Second)
		w.usurp()
		sleepUntil(12 * time.Second)
		require.ErrorIs(t, first.Err(), schedlock.ErrLost)
		require.False(t, a.leads())
		require.Len(t, d.read(), 11)
		sleepUntil(12*time.Second + ttl + 2*retry)
		require.True(t, a.leads(), "the usurper never sent a heartbeat")
		assert.Greater(t, a.lock.Lease().Term(), first.Term())
		sleepUntil(2 * time.Minute)
		assert.GreaterOrEqual(t, len(d.read()), 11+int((2*time.Minute-a.leadsSince())/time.Second),
			"the newest missed tick, and all since")
		wantEachTickOnce(t, w, "j", Every(time.Second).Offset(500*time.Millisecond), midnight,
			midnight.Add(2*time.Minute))
	})
}

// leadsSince is when r's term began, after midnight.
func (r *replica) leadsSince() time.Duration { return r.w.terms()[0].AcquiredAt.Sub(midnight) }

// wantEachTickOnce fails unless the ledger has every tick of (after, upto], run
// or skipped, exactly once, and no others.
func wantEachTickOnce(t *testing.T, w *world, job string, spec Spec, after, upto time.Time) {
	t.Helper()
	spec = spec.ForJob(job)
	decided := map[time.Time]int{}
	for _, r := range w.runs(job) {
		last := r.ScheduledAt
		if !r.Until.IsZero() {
			last = r.Until
		}
		for tick := range spec.Ticks(r.ScheduledAt.Add(-time.Microsecond), last) {
			decided[tick]++
		}
	}
	for tick := range spec.Ticks(after, upto) {
		if decided[tick] != 1 {
			t.Errorf("tick %s was decided %d times", tick.Format("15:04:05"), decided[tick])
		}
		delete(decided, tick)
	}
	assert.Empty(t, decided, "ticks outside")
}

func TestOnStuckIsAskedBeforeAnotherMayLead(t *testing.T) {
	for name, drainFirst := range map[string]bool{"after a loss": false,
		"after a loss while it drains": true} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			mayReturn := make(chan struct{})
			var stuckAt atomic.Int64
			a := w.leader([]Job{d.deaf("deaf", at(time.Second), mayReturn)}, WithDrain(time.Hour),
				WithOnStuck(func([]Run) { stuckAt.Store(int64(time.Since(midnight))) }))
			b := w.standby(nil)
			sleepUntil(12 * time.Second)
			a.link.set(on(hang)) // the beat of 10 s was the last
			if drainFirst {
				go func() { _ = a.runner.Stop(ctx) }()
			}
			sleepUntil(10*time.Second + ttl - time.Millisecond)
			require.False(t, b.leads())
			assert.Equal(t, 10*time.Second+renew+(ttl-renew)*2/3, time.Duration(stuckAt.Load()))
			sleepUntil(10*time.Second + ttl + 2*retry)
			require.True(t, b.leads(),
				"only the process's end, or the fence, protects from a job that is deaf")
			close(mayReturn)
		})
	}
}

func TestALeaderThatIsRevokedDrainsAndAnotherLeads(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", Every(time.Hour).Offset(5*time.Second), 10*time.Second)}
		a, b := w.leader(jobs), w.standby(jobs)
		sleepUntil(6 * time.Second)
		require.True(t, w.db.Edit(func(r *driver.Row) { r.State = driver.StateRevoked }))
		sleepUntil(10 * time.Second)
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining,
			"told by its next heartbeat")
		sleepUntil(15 * time.Second)
		require.Equal(t, []string{"00:00:05 done"}, w.rows("j"), "the run may end")
		sleepUntil(15*time.Second + 2*retry)
		assert.True(t, b.leads())
		assert.False(t, a.leads())
		assert.Equal(t, driver.EndRevoked, w.terms()[1].EndReason)
		sleepUntil(time.Minute)
		require.NoError(t, b.runner.Stop(ctx))
		sleepUntil(2 * time.Minute)
		assert.True(t, a.leads(), "it stands by again")
	})
}

func TestTheOnlyReplicaLeadsAgainAfterItWasRevoked(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		require.True(t, w.db.Edit(func(r *driver.Row) { r.State = driver.StateRevoked }))
		sleepUntil(every)
		require.False(t, a.leads())
		sleepUntil(every + 4*retry)
		assert.True(t, a.leads())
		assert.Len(t, w.terms(), 2)
	})
}

func TestHandOverIsAtOnceOnTheReplicaThatLeads(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.leader(nil), w.standby(nil)
		sleepUntil(time.Second)
		term := w.holder().Term
		_, err := a.runner.HandOver(ctx, term-1, "alice", "")
		require.ErrorIs(t, err, driver.ErrConflict, "another term than the one that leads")
		require.True(t, a.leads())
		r, err := a.runner.HandOver(ctx, term, "alice", "a new disk")
		require.NoError(t, err)
		sleepUntil(time.Second + 2*retry)
		require.True(t, b.leads(), "long before a heartbeat was due")
		assert.Equal(t, r, w.terms()[1].Revoked)

		term = w.holder().Term
		_, err = a.runner.HandOver(ctx, term, "bob", "")
		require.NoError(t, err)
		sleepUntil(2 * time.Second)
		require.True(t, b.leads(), "it learns of it by its next heartbeat")
		sleepUntil(time.Second + every + 4*retry)
		assert.True(t, a.leads())
	})
}

func TestOnRunIsToldOfEverything(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var (
			mu   sync.Mutex
			seen []string
		)
		observe := WithOnRun(func(e RunEvent) {
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, e.Status == ledger.Failed || e.Status == ledger.Abandoned, e.Err != nil)
			assert.Equal(t, e.Status == ledger.Skipped, e.Attempt == 0)
			seen = append(seen, strings.TrimSpace(fmt.Sprintf("%v %s %s ×%d late %v took %v %s",
				time.Since(midnight).Truncate(time.Second), e.Job, e.Status, e.Count,
				e.Late.Truncate(time.Second), e.Took, e.Reason)))
		})
		fails := Job{Name: "bad", Spec: Every(time.Hour).Offset(30 * time.Second),
			Do: func(context.Context, Run) error {
				time.Sleep(2 * time.Second)
				return errors.New("no")
			}}
		var d diary
		jobs := []Job{d.job("good", Every(10*time.Second).Offset(0), 15*time.Second), fails}
		a, b := w.leader(jobs, observe), w.join(jobs, observe)
		sleepUntil(36 * time.Second)
		mu.Lock()
		assert.ElementsMatch(t, []string{ // two at 30 s
			"10s good in_progress ×1 late 0s took 0s",
			"20s good skipped ×1 late 0s took 0s overlap",
			"25s good done ×1 late 0s took 15s",
			"30s bad in_progress ×1 late 0s took 0s",
			"30s good in_progress ×1 late 0s took 0s",
			"32s bad failed ×1 late 0s took 2s",
		}, seen)
		seen = nil
		mu.Unlock()

		b.stand()
		a.link.set(on(hang))
		sleepUntil(115 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, []string{
			"1m20s good done ×1 late 0s took 15s", // but it could not write that down
			"1m36s good abandoned ×1 late 0s took 0s",
			"1m36s good skipped ×5 late 0s took 0s missed",
			"1m36s good in_progress ×1 late 6s took 0s",
			"1m40s good skipped ×1 late 0s took 0s overlap",
			"1m50s good skipped ×1 late 0s took 0s overlap",
			"1m51s good done ×1 late 0s took 15s",
			"1m51s good in_progress ×1 late 1m21s took 0s",
		}, seen)
	})
}

// What the database does to a term.

func TestAChangedSpecIsSaidAndStartsAtNow(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.leadsUntil(25*time.Second, []Job{d.job("j", Every(10*time.Second).Offset(0), 0)})
		sleepUntil(55 * time.Second)
		b := w.leader([]Job{d.job("j", Every(15*time.Second).Offset(time.Second), 0)})
		sleepUntil(80 * time.Second)
		assert.Equal(t, []string{"j 00:00:10", "j 00:00:20", "j 00:01:01", "j 00:01:16"}, d.read())
		assert.Len(t, w.rows("j"), 4, "the ticks of the old spec are not made up")
		assert.Equal(t, 1, b.log.Count("job has a new spec"))
	})
}

func TestASlowHeartbeatIsNoStepOfTheClock(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		a.link.set(on(freeze, "heartbeat"))
		// it was applied at once, and its answer is under way since
		sleepUntil(every + 3*time.Second)
		a.link.set(nil) // thaws
		sleepUntil(2*every + time.Second)
		assert.True(t, a.leads())
		assert.Equal(t, midnight.Add(2*every), w.holder().HeartbeatAt)
		assert.Zero(t, a.log.Count(`"the database's clock was set"`))
	})
}
