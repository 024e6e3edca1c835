package tasks

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

func TestAStandbyTriggersAJobThatTheLeaderRunsWithinASecond(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ofA, ofB diary
		a := w.leader([]Job{ofA.job("j", at(time.Hour), 3*time.Second)})
		b := w.standby([]Job{ofB.job("j", at(time.Hour), 3*time.Second)})
		sleepUntil(10*time.Second + 123*time.Millisecond)
		request := b.trigger("j", "alice", "the list is new")
		require.Equal(t, midnight.Add(10*time.Second+123*time.Millisecond), request.At)
		begin := time.Now()
		run := b.await(request)
		assert.Less(t, time.Since(begin), 3*time.Second+inboxInterval+time.Second)
		assert.Equal(t, ledger.Done, run.Status)
		assert.Equal(t, 1, run.PID)
		assert.Equal(t, "alice", run.RequestedBy)
		assert.Equal(t, "the list is new", run.RequestReason)
		assert.Equal(t, request.At, run.ScheduledAt)
		assert.Less(t, run.StartedAt.Sub(request.At), time.Second)
		sleepUntil(time.Minute)
		assert.Equal(t, []string{"j 00:00:10"}, ofA.read())
		assert.Empty(t, ofB.read())
		assert.Equal(t, 1, a.log.Count("requested_by=alice"))
	})
}

func TestTheLeaderItselfLooksAtOnce(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", at(time.Hour), 0)})
		sleepUntil(10*time.Second + 100*time.Millisecond)
		a.trigger("j", "alice", "")
		synctest.Wait()
		assert.Len(t, d.read(), 1)
	})
}

func TestARequestWaitsForALeader(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", at(time.Hour), 0)}
		w.leadsUntil(0, jobs)
		b := w.join(jobs)
		request := b.trigger("j", "alice", "")
		patience, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err := b.runner.Await(patience, request)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "nobody has started it")
		require.Empty(t, d.read())
		b.lead()
		run := b.await(request)
		assert.Equal(t, ledger.Done, run.Status)
		assert.Len(t, d.read(), 1)
	})
}

func TestARequestMeetsARunThatIsUnderWay(t *testing.T) {
	for overlap, want := range map[Overlap][]string{
		OverlapSkip:  {"00:00:05 done", "00:00:06 skipped overlap"},
		OverlapQueue: {"00:00:05 done", "00:00:06 done"},
		OverlapAllow: {"00:00:05 done", "00:00:06 done"},
	} {
		runInDiary(t, fmt.Sprint(overlap), func(t *testing.T, w *world, d *diary) {
			job := d.job("j", at(5*time.Second), 10*time.Second)
			job.Overlap = overlap
			a := w.leader([]Job{job})
			sleepUntil(6 * time.Second)
			request := a.trigger("j", "alice", "")
			run := a.await(request)
			sleepUntil(30 * time.Second)
			assert.Equal(t, want, w.rows("j"))
			assert.Equal(t, overlap == OverlapSkip, a.log.Count("request skipped") == 1)
			started := map[Overlap]time.Duration{OverlapQueue: 15 * time.Second,
				OverlapAllow: 6 * time.Second}[overlap]
			if started > 0 {
				assert.Equal(t, midnight.Add(started), run.StartedAt)
			}
		})
	}
}

func TestARequestForAJobThatTheLeaderDoesNotHaveIsSkipped(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.leadsUntil(0, []Job{d.job("j", at(time.Hour), 0)})
		var told diary
		a := w.leader(nil, WithOnRun(func(e RunEvent) {
			told.write("%s %s ×%d: %s", e.Job, e.Status, e.Count, e.Reason)
		}))
		request := a.trigger("j", "alice", "")
		run := a.await(request)
		assert.Equal(t, ledger.Skipped, run.Status)
		assert.Equal(t, ledger.UnknownJob, run.Error)
		assert.Empty(t, d.read())
		assert.Equal(t, []string{"j skipped ×1: " + ledger.UnknownJob}, told.read())
		assert.Equal(t, 1, a.log.Count("request skipped"))
	})
}

func TestWhatCannotBeAskedIsRefusedInWords(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", at(time.Hour), 0)})
		_, err := a.runner.Trigger(ctx, "typo", "alice", "")
		assert.ErrorIs(t, err, ledger.ErrNoJob)
		assert.ErrorContains(t, err, `trigger job "typo"`)
		_, err = a.runner.Pause(ctx, "typo", "alice", "")
		assert.ErrorIs(t, err, ledger.ErrNoJob)
		_, err = a.runner.Trigger(ctx, "j", " ", "")
		assert.ErrorContains(t, err, "it does not say by whom")
		_, err = a.runner.Resume(ctx, "j", "alice\x00")
		assert.ErrorContains(t, err, "NUL")
		resumed, err := a.runner.Resume(ctx, "j", "alice")
		assert.NoError(t, err)
		assert.False(t, resumed, "it was not paused")
		_, err = a.runner.Pause(ctx, "", "alice", "")
		assert.ErrorContains(t, err, "the name of the job is empty: PauseAll pauses every job")
		_, err = a.runner.Resume(ctx, "", "alice")
		assert.ErrorContains(t, err, "ResumeAll")
		resumed, err = a.runner.ResumeAll(ctx, "alice")
		assert.NoError(t, err)
		assert.False(t, resumed, "nothing was paused")
		synctest.Wait()
		assert.Empty(t, d.read())
	})
}

func TestAPauseKeepsEverythingFromStarting(t *testing.T) {
	for _, what := range []string{"j", ""} {
		runInDiary(t, what, func(t *testing.T, w *world, d *diary) {
			failing := d.failing("j", Every(10*time.Second).Offset(0), 1)
			failing.Retry = Retry{Attempts: 2, Backoff: 4 * time.Second}
			jobs := []Job{failing, d.job("other", Every(10*time.Second).Offset(0), 0)}
			a, b := w.leader(jobs), w.standby(jobs)
			sleepUntil(21 * time.Second) // the retry of 00:00:20 is due
			pauseBy := func(r *replica, by, reason string) (ledger.Pause, error) {
				if what == "" {
					return r.runner.PauseAll(ctx, by, reason)
				}
				return r.runner.Pause(ctx, what, by, reason)
			}
			pause, err := pauseBy(b, "alice", "disk is full")
			require.NoError(t, err)
			require.Equal(t, midnight.Add(21*time.Second), pause.Since)
			again, err := pauseBy(a, "bob", "too")
			require.NoError(t, err)
			require.Equal(t, pause, again, "the first stays")
			_, err = b.runner.Trigger(ctx, "j", "carol", "")
			var paused *ledger.PausedError
			require.ErrorAs(t, err, &paused)
			require.ErrorContains(t, err,
				"is paused by alice since 2000-01-01T00:00:21Z: disk is full")

			sleepUntil(55 * time.Second)
			require.Equal(t, []string{"00:00:10 done", "00:00:20 failed"}, w.rows("j"))
			want := 5
			if what == "" {
				want = 2
			}
			require.Len(t, w.rows("other"), want)
			require.Equal(t, 1, a.log.Count("paused: nothing starts"))
			info, err := b.runner.Jobs(ctx)
			require.NoError(t, err)
			require.Equal(t, "alice", info[0].Pause.By)
			require.Equal(t, what != "", info[1].Pause == nil)

			resume := func() (bool, error) {
				if what == "" {
					return b.runner.ResumeAll(ctx, "dave")
				}
				return b.runner.Resume(ctx, what, "dave")
			}
			resumed, err := resume()
			require.NoError(t, err)
			require.True(t, resumed)
			sleepUntil(59*time.Second + 900*time.Millisecond)
			assert.Equal(t, []string{"00:00:10 done", "00:00:20 done",
				"00:00:30-00:00:40 (2) skipped paused", "00:00:50 done"}, w.rows("j"),
				"the newest that was missed, and the retries")
			assert.Equal(t, 1, a.log.Count("msg=resumed"))
			sleepUntil(90 * time.Second)
			wantEachTickOnce(t, w, "j", failing.Spec, midnight, midnight.Add(90*time.Second))
			wantEachTickOnce(t, w, "other", failing.Spec, midnight,
				midnight.Add(90*time.Second))
		})
	}
}

func TestARunThatIsUnderWayOutlastsAPause(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", Every(10*time.Second).Offset(0), 8*time.Second)})
		sleepUntil(12 * time.Second)
		_, err := a.runner.Pause(ctx, "j", "alice", "")
		require.NoError(t, err)
		sleepUntil(40 * time.Second)
		assert.Equal(t, []string{"00:00:10 done"}, w.rows("j"))
		assert.Empty(t, d.causes())
	})
}

// What is due during a pause was not due while this replica led.
func TestAJobThatSkipsRunsNothingThatWasDueDuringAPause(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := d.job("j", Every(10*time.Second).Offset(0), time.Second)
		job.CatchUp = Skip
		a := w.leader([]Job{job, d.job("other", job.Spec, 25*time.Second)})
		sleepUntil(15 * time.Second)
		_, err := a.runner.Pause(ctx, "j", "alice", "")
		require.NoError(t, err)
		sleepUntil(45 * time.Second)
		_, err = a.runner.Resume(ctx, "j", "alice")
		require.NoError(t, err)
		sleepUntil(55 * time.Second)
		assert.Equal(t, []string{"00:00:10 done", "00:00:20-00:00:40 (3) skipped paused",
			"00:00:50 done"}, w.rows("j"))
		assert.Equal(t, []string{"00:00:10 done", "00:00:20 skipped overlap",
			"00:00:30 skipped overlap", "00:00:40 in_progress", "00:00:50 skipped overlap"},
			w.rows("other"), "not paused")
		assert.Equal(t, 1, a.log.Count("ticks skipped\" job=j reason=paused"))
	})
}

// Also one that ended while nobody led.
func TestAPauseOutlivesItsLeader(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := d.job("j", Every(time.Minute).Offset(0), 0)
		job.CatchUp = Skip
		lead := func(from, upto time.Duration, paused int) {
			sleepUntil(from)
			r := w.leadsUntil(upto, []Job{job})
			assert.Equal(t, paused, r.log.Count("paused: nothing starts"))
		}
		ask := w.join(nil).runner
		lead(0, 90*time.Second, 0)
		sleepUntil(150 * time.Second)
		_, err := ask.PauseAll(ctx, "alice", "")
		require.NoError(t, err)
		lead(3*time.Minute+10*time.Second, 5*time.Minute+10*time.Second, 1)
		sleepUntil(6*time.Minute + 10*time.Second)
		_, err = ask.ResumeAll(ctx, "alice")
		require.NoError(t, err)
		lead(8*time.Minute+10*time.Second, 9*time.Minute+10*time.Second, 0)
		assert.Equal(t, []string{"00:01:00 done",
			"00:02:00 skipped missed", "00:03:00-00:06:00 (4) skipped paused",
			"00:07:00-00:08:00 (2) skipped missed", "00:09:00 done"}, w.rows("j"))
	})
}

func TestJobsTellsAPersonHowTheyAre(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		n := 0
		jobs := []Job{{Name: "j", Spec: Every(10 * time.Second).Offset(0),
			Do: func(context.Context, Run) error {
				n++
				time.Sleep(time.Duration(n) * time.Second)
				if n == 2 || n > 3 {
					return fmt.Errorf("failure %d", n)
				}
				return nil
			}}, d.job("a", at(time.Hour), 0)}
		old := w.join([]Job{d.job("old", at(time.Hour), 0)})
		infos, err := old.runner.Jobs(ctx)
		require.NoError(t, err)
		require.Equal(t, []JobInfo{{Job: ledger.Job{Name: "old",
			Spec: "every 24h0m0s offset 1h0m0s"}, Known: true}}, infos, "before anybody led")
		old.lead()
		require.NoError(t, old.runner.Stop(ctx))
		a := w.leader(jobs)
		sleepUntil(56 * time.Second) // 10 done in 1 s, 20 failed, 30 done in 3 s, 40 and 50 failed
		infos, err = a.runner.Jobs(ctx)
		require.NoError(t, err)
		require.Len(t, infos, 3)
		assert.Equal(t, "a", infos[0].Name)
		assert.Equal(t, midnight.Add(time.Hour), infos[0].Next)
		j := infos[1]
		assert.Equal(t, "j", j.Name)
		assert.True(t, j.Known)
		assert.Nil(t, j.Pause)
		assert.Equal(t, midnight.Add(time.Minute), j.Next)
		assert.Equal(t, ledger.Stats{Done: 2, Failed: 3, Streak: 2,
			LastDone: midnight.Add(33 * time.Second), LastFailed: midnight.Add(55 * time.Second),
			LastError: "failure 5", Total: 4 * time.Second, Longest: 3 * time.Second}, j.Stats)
		assert.Equal(t, 2*time.Second, j.Average())
		assert.Equal(t, "old", infos[2].Name)
		assert.False(t, infos[2].Known)
	})
}

func TestTheLeaderKeepsTheLedgerBounded(t *testing.T) {
	missing.Long(t, "makes many runs")
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", Every(100*time.Millisecond).Offset(0), 0),
			d.job("seldom", at(time.Second), 0)}
		w.leadsUntil(5*time.Minute, jobs, WithKeepRuns(50))
		runs := w.runs("j")
		assert.LessOrEqual(t, len(runs), 50+int(pruneInterval/(100*time.Millisecond)),
			"of 3,000: what has come since it was last pruned")
		assert.GreaterOrEqual(t, len(runs), 50)
		assert.WithinRange(t, runs[len(runs)-1].ScheduledAt,
			midnight.Add(5*time.Minute-time.Second), midnight.Add(5*time.Minute))
		assert.Len(t, w.runs("seldom"), 1)

		// Also what a job left that is no more.
		w.leader(nil, WithKeepRuns(10))
		sleepUntil(6 * time.Minute)
		assert.Len(t, w.runs("j"), 10)
	})
}

func TestAPruningThatFailsIsTriedAgain(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", Every(time.Second).Offset(0), 0)}, WithKeepRuns(10))
		a.link.set(on(refuse, "prune"))
		sleepUntil(30 * time.Second)
		require.Equal(t, 1, a.log.Count("run ledger not pruned"))
		a.link.set(nil)
		sleepUntil(pruneDelay + pruneInterval + 500*time.Millisecond)
		assert.LessOrEqual(t, len(w.runs("j")), 11, "and a tick at the same instant")
	})
}

// A leader asks four times a second, for each of its jobs.
func TestWhoHasManyJobsDoesNotPayForEachPairOfThem(t *testing.T) {
	var (
		inbox ledger.Pending
		rows  []ledger.Job
	)
	for i := range 100 {
		name := fmt.Sprint(i)
		inbox.Pauses = append(inbox.Pauses, ledger.Pause{Action: ledger.Action{Job: name},
			Resumed: midnight})
		rows = append(rows, ledger.Job{Name: name})
	}
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		_, _ = inbox.Paused("99"), findJob(rows, "99")
	}))
}

func TestAwaitGivesUpOnAnErrorThatStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join(nil)
		a.link.set(on(ruin, "run"))
		_, err := a.runner.Await(ctx, ledger.Request{Action: ledger.Action{Job: "j"}, At: midnight})
		require.Error(t, err)
		a.link.set(on(refuse, "run"))
		patience, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("enough"))
		defer cancel()
		_, err = a.runner.Await(patience, ledger.Request{Action: ledger.Action{Job: "j"},
			At: midnight})
		require.ErrorContains(t, err, "connection refused")
		require.ErrorContains(t, err, "enough")
	})
}

// Whoever awaits a run has the time that it takes: one look must not take all of that.
func TestAwaitAsksAgainAfterALookThatHangs(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", at(time.Hour), time.Second)})
		request := a.trigger("j", "alice", "")
		a.link.set(on(hang, "run"))
		time.AfterFunc(3*time.Second, func() { a.link.set(nil) })
		hour, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		run, err := a.runner.Await(hour, request)
		require.NoError(t, err)
		assert.Equal(t, ledger.Done, run.Status)
		assert.Less(t, time.Since(midnight), 15*time.Second)
	})
}

func TestAStopDoesNotWaitForWhoAwaitsARun(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", at(time.Hour), time.Hour)})
		request, err := a.runner.Trigger(ctx, "j", "alice", "")
		require.NoError(t, err)
		awaited := make(chan error, 1)
		go func() {
			_, err := a.runner.Await(ctx, request)
			awaited <- err
		}()
		sleepUntil(time.Second)
		require.Empty(t, awaited)
		require.NoError(t, a.runner.Stop(ctx))
		require.ErrorIs(t, <-awaited, schedlock.ErrStopped)
	})
}
