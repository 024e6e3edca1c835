package tasks

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func TestTheDatabasesClockIsSetForward(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		spec := Every(10 * time.Minute).Offset(0)
		a := w.leader([]Job{d.job("j", spec, 0)})
		term := a.lock.Lease().Term()
		sleepUntil(15 * time.Minute)
		w.setClock(time.Hour)
		sleepUntil(16 * time.Minute)
		assert.Equal(t, []string{"j 00:10:00", "j 01:10:00"}, d.read(),
			"caught up after the next heartbeat")
		assert.Equal(t, "00:20:00-01:00:00 (5) skipped missed", w.rows("j")[1])
		sleepUntil(25 * time.Minute)
		assert.Equal(t, "j 01:20:00", d.read()[2], "and the alarm follows the new time")
		wantEachTickOnce(t, w, "j", spec, midnight, midnight.Add(85*time.Minute))
		assert.Equal(t, term, a.lock.Lease().Term())
		assert.Equal(t, 1, a.log.Count(`"the database's clock was set" by=1h0m0s`))
	})
}

func TestARunDoesNotOverlapWhatTheClockHasPassedOver(t *testing.T) {
	for name, tc := range map[string]struct {
		job  Job
		rows []string
	}{
		"Latest": {Job{}, []string{"00:01:00 done", "01:01:00-02:01:00 (2) skipped missed",
			"03:01:00 done"}},
		"All(2)": {Job{CatchUp: All(2)}, []string{"00:01:00 done", "01:01:00 skipped missed",
			"02:01:00 done", "03:01:00 done"}},
		"queue": {Job{Overlap: OverlapQueue}, []string{"00:01:00 done",
			"01:01:00-02:01:00 (2) skipped missed", "03:01:00 done"}},
	} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			tc.job.Name, tc.job.Spec = "j", Every(time.Hour).Offset(time.Minute)
			tc.job.Do = d.job("j", tc.job.Spec, time.Minute).Do
			w.leader([]Job{tc.job})
			sleepUntil(90 * time.Second)
			w.setClock(3 * time.Hour)
			sleepUntil(10 * time.Minute)
			assert.Equal(t, tc.rows, w.rows("j"))
			wantEachTickOnce(t, w, "j", tc.job.Spec, midnight, midnight.Add(190*time.Minute))
		})
	}
}

func TestTheDatabasesClockIsSetBack(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		spec := Every(10 * time.Minute).Offset(0)
		a := w.leader([]Job{d.job("j", spec, 0)})
		term := a.lock.Lease().Term()
		sleepUntil(95 * time.Minute)
		require.Len(t, d.read(), 9)
		w.setClock(-time.Hour)
		sleepUntil((90 + 60 + 10) * time.Minute)
		require.Equal(t, 1, a.log.Count(`"the database's clock was set" by=-1h0m0s`))
		require.Equal(t, "j 01:40:00", d.read()[9], "it waits until the cursor is passed")
		require.Len(t, d.read(), 10)
		sleepUntil((90 + 60 + 30) * time.Minute)
		assert.Len(t, d.read(), 12)
		wantEachTickOnce(t, w, "j", spec, midnight, midnight.Add(2*time.Hour))
		assert.Equal(t, term, a.lock.Lease().Term())
		assert.True(t, a.leads(), "a job that waits for its cursor is not stalled")
	})
}

func TestTheDatabasesClockStepsAllTheTime(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		spec := Every(7 * time.Second).Offset(0)
		jobs := []Job{d.job("j", spec, 2*time.Second)}
		a := w.leader(jobs)
		w.standby(jobs)
		newest := midnight
		for i, step := range []time.Duration{time.Hour, -time.Hour, -90 * time.Second,
			40 * time.Minute, time.Second, -time.Hour, 3 * time.Hour} {
			sleepUntil(time.Duration(i+1) * 3 * time.Minute)
			newest = later(newest, w.now())
			w.setClock(step)
			if i == 6 { // else the next leader puts the cursor back
				require.NoError(t, a.runner.Stop(ctx))
			}
		}
		sleepUntil(time.Hour)
		newest = later(newest, w.now())
		// Until the next heartbeat a leader goes on with the time that was.
		rows := w.runs("j")
		last := rows[len(rows)-1].ScheduledAt
		assert.WithinRange(t, last, newest.Add(-7*time.Second), newest.Add(every))
		wantEachTickOnce(t, w, "j", spec, midnight, last)
		runs := d.read()
		slices.Sort(runs)
		assert.Equal(t, runs, slices.Compact(slices.Clone(runs)), "no tick ran twice")
	})
}

// The clock is a day ahead for a while. Nothing that was noted meanwhile keeps a job from running
// once its cursor is right again.
func TestAJobGoesOnAfterTheClockWasAhead(t *testing.T) {
	reset := func(a *replica, _ Job) {
		_, err := a.w.db.ResetCursor(ctx, ledger.Action{Job: "j", By: "alice"})
		require.NoError(a.w.t, err)
	}
	for name, tc := range map[string]struct {
		job   Job
		takes time.Duration
		when  time.Duration
		ahead func(a *replica) // what happens meanwhile
		cure  func(a *replica, job Job)
	}{
		"a run was under way": {takes: 15 * time.Second, when: 67 * time.Second, cure: reset},
		"all that was missed was being made up": {job: Job{CatchUp: All(3)},
			takes: 90 * time.Second, when: 155 * time.Second, cure: reset},
		"nothing is made up": {job: Job{CatchUp: Skip}, when: 67 * time.Second, cure: reset},
		"nothing is made up, and a pause ended": {job: Job{CatchUp: Skip},
			when: 67 * time.Second,
			ahead: func(a *replica) {
				_, err := a.runner.Pause(ctx, "j", "alice", "")
				require.NoError(a.w.t, err)
				_, err = a.runner.Resume(ctx, "j", "alice")
				require.NoError(a.w.t, err)
			},
			cure: func(a *replica, job Job) { // a term that begins puts the cursor back
				require.NoError(a.w.t, a.runner.Stop(ctx))
				a.w.leader([]Job{job})
			}},
	} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			tc.job.Name, tc.job.Spec = "j", Every(time.Minute).Offset(0)
			tc.job.Do = d.job("j", tc.job.Spec, tc.takes).Do
			a := w.leader([]Job{tc.job})
			sleepUntil(tc.when)
			w.setClock(24 * time.Hour)
			if tc.ahead != nil {
				tc.ahead(a)
			}
			sleepUntil(tc.when + 30*time.Second)
			w.setClock(-24 * time.Hour)
			sleepUntil(5 * time.Minute)
			tc.cure(a, tc.job)
			sleepUntil(time.Hour)
			var last time.Time
			for _, r := range w.runs("j") {
				if r.Status != ledger.Skipped && r.ScheduledAt.Before(midnight.Add(2*time.Hour)) {
					last = r.ScheduledAt
				}
			}
			assert.WithinRange(t, last, time.Now().Add(-3*time.Minute), time.Now())
		})
	}
}

func TestNothingThatWasNotedOfARunLiesAheadOfTheClock(t *testing.T) {
	now := midnight.Add(time.Hour)
	j := &termJob{busyFrom: now.Add(time.Hour), busyUntil: now.Add(2 * time.Hour)}
	j.clockSet(-time.Hour, now)
	require.Equal(t, []time.Time{now, now}, []time.Time{j.busyFrom, j.busyUntil})
}
