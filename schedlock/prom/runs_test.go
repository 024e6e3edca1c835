package prom_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/tasks"
)

// every is due at the full d; a bubble begins at midnight.
func every(name string, d time.Duration, do func() error) tasks.Job {
	return tasks.Job{Name: name, Spec: tasks.Every(d).Offset(0),
		Do: func(context.Context, tasks.Run) error {
			return do()
		}}
}

func nothing() error { return nil }

func TestRunsAreCountedAndTimed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		slow := every("slow", 10*time.Second, func() error {
			time.Sleep(2 * time.Second)
			return nil
		})
		bad := every("bad", 20*time.Second, func() error { return errors.New("always") })
		a := w.join(slow, bad)
		sleep(31 * time.Second) // the run of 30 s is under way
		s := a.scrape()
		require.Equal(t, map[string]float64{"slow done": 2, "bad failed": 1},
			s.all("schedlock_runs_total"))
		require.Equal(t, map[string]float64{"slow": 1}, s.all("schedlock_runs_in_progress"))
		n, sum := s.observed("schedlock_run_duration_seconds", "job_name=slow")
		require.Equal(t, 2, n)
		require.InDelta(t, 4, sum, 0.1)
		n, sum = s.observed("schedlock_run_delay_seconds", "job_name=slow")
		require.Equal(t, 3, n)
		require.InDelta(t, 0, sum, 0.5)
		s.is(1, "schedlock_run_duration_seconds", "job_name=bad")
		require.Empty(t, s.all("schedlock_runs_skipped_total"))
	})
}

func TestSkippedTicksAreCountedByReason(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		picky := every("picky", 10*time.Second, nothing)
		picky.CatchUp = tasks.Skip
		a := w.join(picky, every("long", 10*time.Second, func() error {
			time.Sleep(25 * time.Second)
			return nil
		}))
		sleep(15 * time.Second)
		_, err := a.runner.Pause(ctx, "picky", "ann", "")
		require.NoError(t, err)
		sleep(20 * time.Second) // long's run of 10 s has passed 20 s and 30 s
		s := a.scrape()
		s.is(2, "schedlock_runs_total", "job_name=long", "status=skipped")
		s.is(2, "schedlock_runs_skipped_total", "job_name=long", "reason=overlap")

		_, err = a.runner.Resume(ctx, "picky", "ann")
		require.NoError(t, err)
		sleep(time.Second)
		a.scrape().is(2, "schedlock_runs_skipped_total", "job_name=picky", "reason=paused")

		a.stop()
		sleep(time.Minute)
		b := w.join(every("long", 10*time.Second, nothing))
		sleep(time.Second)
		s = b.scrape()
		missed := s.value("schedlock_runs_skipped_total", "job_name=long", "reason=missed")
		require.Greater(t, missed, 3.0)
		s.is(missed, "schedlock_runs_total", "job_name=long", "status=skipped")
		n, late := s.observed("schedlock_run_delay_seconds", "job_name=long")
		require.Equal(t, 1, n)
		require.Greater(t, late, 0.5, "the newest of them runs late")
	})
}

func TestTheNextLeaderCountsWhatWasAbandoned(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		stay := make(chan struct{})
		stays := every("stays", time.Hour, func() error { <-stay; return nil })
		stays.AtOnce, stays.AtMostOnce = true, true
		a := w.join(stays)
		stays.AtOnce, stays.Do = false, func(context.Context, tasks.Run) error { return nil }
		b := w.join(stays)
		sleep(time.Second)
		a.link.set(refuse())
		sleep(75 * time.Second)
		b.scrape().is(1, "schedlock_runs_total", "job_name=stays", "status=abandoned")
		// It does not heed its context.
		a.scrape().is(1, "schedlock_runs_in_progress", "job_name=stays")
		close(stay)
		sleep(10 * time.Second)
		a.scrape().is(0, "schedlock_runs_in_progress", "job_name=stays")
	})
}

func TestWhatNobodyKnowsMakesNoSeriesOfItsOwn(t *testing.T) {
	t.Parallel()
	m := prom.New()
	gone := tasks.Run{Job: "gone"}
	m.OnRun(tasks.RunEvent{Run: gone, Status: ledger.Skipped, Reason: ledger.UnknownJob,
		Count: 1})
	m.OnRun(tasks.RunEvent{Run: gone, Status: ledger.Skipped, Reason: "of a later version",
		Count: 2})
	m.OnRun(tasks.RunEvent{Run: gone, Status: "of a later version", Count: 2})
	m.OnRun(tasks.RunEvent{Run: gone, Status: ledger.Skipped, Reason: ledger.Missed, Count: -1})
	s := scraped(t, m)
	require.Equal(t, map[string]float64{"gone unknown_job": 1, "gone other": 2},
		s.all("schedlock_runs_skipped_total"))
	require.Equal(t, map[string]float64{"gone skipped": 3}, s.all("schedlock_runs_total"))
	s.is(0, "schedlock_runs_total", "job_name=gone", "status=done") // all of them at once
}

func TestTheLeaderTellsHowTheJobsAre(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var fail atomic.Bool
		fail.Store(true)
		job := every("import", time.Minute, func() error {
			if fail.Load() {
				return errors.New("told to")
			}
			return nil
		})
		midnight := float64(time.Now().Unix())
		gone := w.join(every("of a former version", time.Minute, nothing))
		sleep(time.Second)
		gone.stop()
		a := w.join(job)
		b := w.join(job)
		sleep(149 * time.Second) // two runs, both failed
		s := a.scrape()
		s.is(2, "schedlock_job_failures_in_a_row", "job_name=import")
		s.is(midnight+180, "schedlock_job_next_tick_timestamp_seconds", "job_name=import")
		s.is(0, "schedlock_job_overdue_seconds", "job_name=import")
		s.is(0, "schedlock_job_paused", "job_name=import")
		require.NotContains(t, s.families, "schedlock_job_last_success_timestamp_seconds",
			"there was none")
		require.Nil(t, s.find("schedlock_job_overdue_seconds", "job_name=of a former version"),
			"nobody is late with it")
		require.NotContains(t, b.scrape().families, "schedlock_job_overdue_seconds",
			"it does not lead")

		fail.Store(false)
		sleep(time.Minute)
		s = a.scrape()
		s.is(0, "schedlock_job_failures_in_a_row", "job_name=import")
		require.InDelta(t, midnight+180, s.value("schedlock_job_last_success_timestamp_seconds",
			"job_name=import"), 1)

		_, err := a.runner.PauseAll(ctx, "ann", "")
		require.NoError(t, err)
		sleep(5 * time.Minute)
		s = a.scrape()
		s.is(1, "schedlock_job_paused", "job_name=import")
		s.is(0, "schedlock_job_overdue_seconds", "job_name=import") // it is not late
		require.NotContains(t, s.families, "schedlock_job_next_tick_timestamp_seconds")
		_, err = a.runner.ResumeAll(ctx, "ann")
		require.NoError(t, err)
		sleep(6 * time.Second)

		// Nothing is decided any more, although the lock is kept.
		a.link.set(refuse("decide"))
		due := a.scrape().value("schedlock_job_next_tick_timestamp_seconds", "job_name=import")
		sleep(70 * time.Second)
		s = a.scrape()
		s.is(1, "schedlock_leader")
		s.is(due, "schedlock_job_next_tick_timestamp_seconds", "job_name=import")
		require.InDelta(t, float64(time.Now().Unix())-due,
			s.value("schedlock_job_overdue_seconds", "job_name=import"), 0.01)
		require.Positive(t, s.value("schedlock_job_overdue_seconds", "job_name=import"))
	})
}

func TestAJobWithARunUnderWayIsNotOverdue(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join(every("long", 10*time.Second, func() error {
			time.Sleep(5 * time.Minute)
			return nil
		}))
		var behind bool
		for range 30 {
			sleep(7 * time.Second)
			s := a.scrape()
			s.is(0, "schedlock_job_overdue_seconds", "job_name=long")
			next := s.value("schedlock_job_next_tick_timestamp_seconds", "job_name=long")
			behind = behind || next < float64(time.Now().Unix())-5
		}
		require.True(t, behind,
			"else this shows nothing: what it overlaps is recorded ever more seldom")
	})
}

func TestAJobOfWhichNothingWasDecidedIsNotOverdue(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.prepare(every("import", time.Hour, nothing))
		a.link.set(refuse("decide"))
		a.campaign()
		s := a.scrape()
		s.is(0, "schedlock_job_overdue_seconds", "job_name=import")
		require.NotContains(t, s.families, "schedlock_job_next_tick_timestamp_seconds")
	})
}

func TestAScrapeAsksTheDatabaseAtMostEveryFiveSeconds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join(every("import", time.Hour, nothing))
		b := w.join(every("import", time.Hour, nothing))
		sleep(time.Second)
		before, standby := a.link.reads.Load(), b.link.reads.Load()
		for range 40 { // 20 s
			a.scrape()
			b.scrape()
			sleep(500 * time.Millisecond)
		}
		require.EqualValues(t, 4, a.link.reads.Load()-before)
		require.Zero(t, b.link.reads.Load()-standby, "a standby tells nothing of them")
	})
}

func TestAScrapeDoesNotWaitForADatabaseThatHangs(t *testing.T) {
	for name, heeds := range map[string]bool{"and heeds contexts": true, "and heeds none": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.join(every("import", 10*time.Minute, nothing))
				sleep(time.Second)
				require.Contains(t, a.scrape().families, "schedlock_job_overdue_seconds")
				sleep(6 * time.Second)

				thawed := make(chan struct{})
				thaw := sync.OnceFunc(func() { close(thawed) })
				defer thaw()
				time.AfterFunc(time.Hour, thaw) // a scrape that waits for it fails
				a.link.set(func(ctx context.Context, op string) error {
					if op != "jobs" && op != "count" {
						return nil
					}
					if heeds {
						<-ctx.Done()
					} else {
						<-thawed
					}
					return errRefused
				})
				before := a.link.reads.Load()
				for range 3 {
					begin := time.Now()
					s := a.scrape()
					require.Equal(t, time.Second, time.Since(begin))
					s.is(1, "schedlock_leader")
					require.Contains(t, s.families, "schedlock_job_overdue_seconds",
						"as of seconds ago")
					synctest.Wait()
				}
				want := int64(3)
				if !heeds {
					want = 1 // one goroutine is left behind, not one for each scrape
				}
				require.Equal(t, want, a.link.reads.Load()-before)
				sleep(time.Minute)
				s := a.scrape()
				s.is(1, "schedlock_leader")
				require.NotContains(t, s.families, "schedlock_job_overdue_seconds", "too old")

				a.link.set(nil)
				thaw()
				sleep(time.Second)
				require.Contains(t, a.scrape().families, "schedlock_job_overdue_seconds")
			})
		})
	}
}

func TestWhatAFormerTermHasReadIsForgotten(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join(every("import", 10*time.Minute, nothing))
		sleep(time.Second)
		require.Contains(t, a.scrape().families, "schedlock_job_overdue_seconds")
		a.lock.Lease().StepDown(errRefused)
		sleep(3 * time.Second)
		require.NoError(t, a.lock.IsLeader(ctx), "it leads again")
		a.link.set(refuse("jobs"))
		require.NotContains(t, a.scrape().families, "schedlock_job_overdue_seconds")
		a.link.set(nil)
		require.Contains(t, a.scrape().families, "schedlock_job_overdue_seconds", "asked anew")
	})
}

func TestALeaseMayEndWhileTheJobsAreRead(t *testing.T) {
	for name, until := range map[string]time.Duration{
		"and another begins": time.Second / 2,
		"and that is all":    0,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.join(every("import", 10*time.Minute, nothing))
				sleep(time.Second)
				lease := a.lock.Lease()
				a.link.set(func(_ context.Context, op string) error {
					if op == "jobs" {
						lease.StepDown(errRefused)
						time.Sleep(until)
					}
					return nil
				})
				require.NotContains(t, a.scrape().families, "schedlock_job_overdue_seconds")
				require.NotSame(t, lease, a.lock.Lease())
				if until != 0 {
					require.NotNil(t, a.lock.Lease(), "it leads again")
				}
			})
		})
	}
}
