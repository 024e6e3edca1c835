package prom_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/build"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/tasks"
)

func TestEverySeriesIsThereFromTheStart(t *testing.T) {
	t.Parallel()
	s := scraped(t, prom.New(prom.WithJobs([]tasks.Job{{Name: "import"}, {Name: "bad \xff name"}})))
	for name, label := range map[string][2]string{
		"schedlock_elections_total": {"previous",
			"released expired proven_dead session_ended revoked lost other none"},
		"schedlock_handover_seconds": {"previous",
			"released expired proven_dead session_ended revoked lost other"},
		"schedlock_losses_total": {"reason", "deadline row session stepped_down other"},
		"schedlock_state":        {"state", "standby leading suspended draining stopped"},
	} {
		for value := range strings.FieldsSeq(label[1]) {
			s.is(0, name, label[0]+"="+value)
		}
	}
	for _, job := range []string{"job_name=import", `job_name="bad \xff name"`} {
		for _, name := range []string{"runs_in_progress", "run_delay_seconds",
			"run_duration_seconds"} {
			s.is(0, "schedlock_"+name, job)
		}
		for _, status := range []string{"done", "failed", "abandoned", "skipped"} {
			s.is(0, "schedlock_runs_total", job, "status="+status)
		}
		for _, reason := range []string{"missed", "overlap", "paused", "unknown_job", "other"} {
			s.is(0, "schedlock_runs_skipped_total", job, "reason="+reason)
		}
	}
	for _, name := range []string{"leader", "term", "ttl_seconds", "heartbeat_failures_total",
		"revocations_total", "store_failures_total", "heartbeat_duration_seconds",
		"drain_seconds"} {
		s.is(0, "schedlock_"+name)
	}
	require.Equal(t, map[string]float64{build.Version(): 1}, s.all("schedlock_build_info"))
	s.is(1, "schedlock_state", "state=starting")
	require.NotContains(t, s.families, "schedlock_last_heartbeat_age_seconds")
	require.NotContains(t, s.families, "schedlock_job_overdue_seconds")
}

func TestGaugesAreTheLocksOwnWord(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join()
		b := w.join()
		sleep(13 * time.Second) // a heartbeat was 3 s ago
		s := a.scrape()
		s.is(1, "schedlock_leader")
		require.Equal(t, map[string]float64{"leading": 1}, s.all("schedlock_state"))
		s.is(float64(a.lock.Lease().Term()), "schedlock_term")
		s.is(60, "schedlock_ttl_seconds")
		require.InDelta(t, 3, s.value("schedlock_last_heartbeat_age_seconds"), 0.01)

		s = b.scrape()
		s.is(0, "schedlock_leader")
		require.Equal(t, map[string]float64{"standby": 1}, s.all("schedlock_state"))
		s.is(0, "schedlock_term")
		s.is(60, "schedlock_ttl_seconds")
		require.NotContains(t, s.families, "schedlock_last_heartbeat_age_seconds")

		// A lease that has ended unnoticed is no leader: no event tells.
		term := a.lock.Lease().Term()
		a.link.set(refuse())
		sleep(43 * time.Second) // the last heartbeat was 46 s ago, the renew deadline is 45 s
		s = a.scrape()
		s.is(0, "schedlock_leader")
		require.Equal(t, map[string]float64{"standby": 1}, s.all("schedlock_state"))
		s.is(float64(term), "schedlock_term") // of its last lease
		require.NotContains(t, s.families, "schedlock_last_heartbeat_age_seconds")

		b.stop()
		require.Equal(t, map[string]float64{"stopped": 1}, b.scrape().all("schedlock_state"))
	})
}

func TestWatchNeedsALock(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, "prom: Watch: lock is nil: call it once the lock exists", func() {
		prom.New().Watch(nil, nil)
	})
}

func TestHeartbeatsAreTimedAndTheirFailuresCounted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join()
		sleep(25 * time.Second) // heartbeats at 10 s and 20 s
		a.link.set(hang("heartbeat"))
		sleep(15 * time.Second) // the one of 30 s hangs for its limit, 10 s
		a.link.set(nil)
		sleep(2 * time.Second)
		s := a.scrape()
		s.is(1, "schedlock_heartbeat_failures_total")
		n, sum := s.observed("schedlock_heartbeat_duration_seconds")
		require.Equal(t, 4, n, "the failed one too")
		require.InDelta(t, 10, sum, 0.5)
		require.Empty(t, s.all("schedlock_losses_total"))
	})
}

func TestElectionsTellHowTheTermBeforeHadEnded(t *testing.T) {
	// Each case ends the term of a leader that b stands by for.
	for previous, c := range map[string]struct {
		end      func(a *replica)
		within   time.Duration // by when b leads
		gap      float64       // at the least, in seconds
		loss     string        // of a
		draining bool
	}{
		"released": {end: func(a *replica) { a.stop() }, within: 2 * time.Second, draining: true},
		"revoked": {end: func(a *replica) {
			_, err := a.runner.HandOver(ctx, a.lock.Lease().Term(), "ann", "")
			require.NoError(a.t, err)
		}, within: 2 * time.Second, draining: true},
		"lost": {end: func(a *replica) {
			a.link.set(refuse("look")) // else it takes the lock again
			a.lock.Lease().StepDown(errRefused)
		}, within: 2 * time.Second, loss: "stepped_down"},
		"expired": {end: func(a *replica) {
			a.link.set(refuse())
		}, within: 75 * time.Second, gap: 60, loss: "deadline"},
	} {
		t.Run(previous, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.join()
				b := w.join()
				sleep(10 * time.Second)
				require.Equal(t, map[string]float64{"none": 1},
					a.scrape().all("schedlock_elections_total"))
				require.Empty(t, a.scrape().all("schedlock_handover_seconds"),
					"there was nobody to hand over")
				require.Empty(t, b.scrape().all("schedlock_elections_total"))

				c.end(a)
				sleep(c.within)
				require.NoError(t, b.lock.IsLeader(ctx))
				s := b.scrape()
				require.Equal(t, map[string]float64{previous: 1},
					s.all("schedlock_elections_total"))
				require.Equal(t, map[string]float64{previous: 1},
					s.all("schedlock_handover_seconds"))
				_, sum := s.observed("schedlock_handover_seconds", "previous="+previous)
				require.GreaterOrEqual(t, sum, c.gap)
				require.LessOrEqual(t, sum, c.within.Seconds())

				s = a.scrape()
				losses := map[string]float64{}
				if c.loss != "" {
					losses[c.loss] = 1
				}
				require.Equal(t, losses, s.all("schedlock_losses_total"))
				require.Equal(t, c.draining, s.value("schedlock_drain_seconds") == 1)
				require.Equal(t, previous == "revoked",
					s.value("schedlock_revocations_total") == 1)
				require.Equal(t, c.loss != "", s.value("schedlock_store_failures_total") > 0,
					"it cannot look any more")
			})
		})
	}
}

func TestWhatOnlyADatabaseCanTellIsCountedToo(t *testing.T) {
	t.Parallel()
	m := prom.New()
	for _, reason := range []driver.EndReason{driver.EndProvenDead, driver.EndSessionEnded,
		"edited by hand"} {
		m.Observe(schedlock.Event{Kind: schedlock.EventElected, Term: 7, Reason: reason,
			Gap: 2 * time.Second})
	}
	m.Observe(schedlock.Event{Kind: schedlock.EventLost, Term: 7, Loss: schedlock.LossRow})
	m.Observe(schedlock.Event{Kind: schedlock.EventLost, Term: 7, Loss: schedlock.LossSession})
	m.Observe(schedlock.Event{Kind: schedlock.EventLost, Term: 7})
	s := scraped(t, m)
	require.Equal(t, map[string]float64{"proven_dead": 1, "session_ended": 1, "other": 1},
		s.all("schedlock_elections_total"))
	require.Equal(t, map[string]float64{"proven_dead": 1, "session_ended": 1, "other": 1},
		s.all("schedlock_handover_seconds"))
	require.Equal(t, map[string]float64{"row": 1, "session": 1, "other": 1},
		s.all("schedlock_losses_total"))
}

func TestADrainIsTimedUntilTheRelease(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		slow := every("slow", time.Hour, func() error { time.Sleep(5 * time.Second); return nil })
		slow.AtOnce = true
		a := w.join(slow)
		sleep(time.Second)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			a.stop()
		}()
		sleep(time.Second)
		s := a.scrape()
		s.is(0, "schedlock_leader") // it starts nothing any more
		require.Equal(t, map[string]float64{"draining": 1}, s.all("schedlock_state"))
		require.InDelta(t, 1, s.value("schedlock_last_heartbeat_age_seconds"), 0.5,
			"it holds the lock still")
		require.NotContains(t, s.families, "schedlock_job_overdue_seconds")
		<-stopped
		n, sum := a.scrape().observed("schedlock_drain_seconds")
		require.Equal(t, 1, n)
		require.InDelta(t, 4, sum, 0.5)
	})
}

func TestADrainThatEndsInALossIsNone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.prepare()
		lease, err := a.lock.Acquire(ctx)
		require.NoError(t, err)
		lease.Drain()
		lease.StepDown(errRefused)
		require.NoError(t, lease.Release(ctx))
		a.scrape().is(0, "schedlock_drain_seconds")
	})
}

// For the race detector, and the sums must be right.
func TestEverythingMayBeCalledAtOnce(t *testing.T) {
	t.Parallel()
	const workers, rounds = 4, 50
	kinds := []schedlock.EventKind{
		schedlock.EventElected, schedlock.EventHeartbeat, schedlock.EventHeartbeatFailed,
		schedlock.EventDraining, schedlock.EventRevoked, schedlock.EventLost,
		schedlock.EventReleased, schedlock.EventStoreFailed, schedlock.EventStandby,
	}
	m := prom.New()
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for range rounds {
				for _, kind := range kinds {
					m.Observe(schedlock.Event{Kind: kind, Term: int64(i),
						Reason: driver.EndReleased, Loss: schedlock.LossRow})
				}
				run := tasks.Run{Job: fmt.Sprintf("job %d", i%2)}
				m.OnRun(tasks.RunEvent{Run: run, Status: ledger.InProgress, Count: 1})
				m.OnRun(tasks.RunEvent{Run: run, Status: ledger.Done, Count: 1})
			}
			_ = scraped(t, m)
		})
	}
	wg.Wait()
	s := scraped(t, m)
	s.is(workers*rounds, "schedlock_revocations_total")
	s.is(workers*rounds/2, "schedlock_runs_total", "job_name=job 1", "status=done")
	s.is(0, "schedlock_runs_in_progress", "job_name=job 1")
}

func TestTheLockIsWatchedAtTheScrape(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		m := prom.New()
		var early scrape // between the election and its event
		scrapeEarly := func(e schedlock.Event) {
			if e.Kind == schedlock.EventElected {
				early = scraped(t, m)
			}
		}
		lock, err := schedlock.New(w.db, schedlock.WithLogger(slog.New(slog.DiscardHandler)),
			schedlock.WithObserver(scrapeEarly), schedlock.WithObserver(m.Observe))
		require.NoError(t, err)
		lease, err := lock.Acquire(ctx)
		require.NoError(t, err)
		early.is(0, "schedlock_leader") // not watched yet
		require.NoError(t, lease.Release(ctx))

		m.Watch(lock, nil)
		lease, err = lock.Acquire(ctx)
		require.NoError(t, err)
		early.is(1, "schedlock_leader")
		early.is(float64(lease.Term()), "schedlock_term")
		require.NoError(t, lease.Release(ctx))
		s := scraped(t, m)
		s.is(0, "schedlock_leader")
		s.is(float64(lease.Term()), "schedlock_term")
	})
}
