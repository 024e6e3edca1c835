package tasks

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

func TestAJobThatIsLongerThanItsInterval(t *testing.T) {
	for overlap, want := range map[Overlap][]string{
		OverlapSkip: {"00:00:01 done", "00:00:02-00:00:03 (2) skipped overlap", "00:00:04 done",
			"00:00:05-00:00:06 (2) skipped overlap", "00:00:07 in_progress"},
		OverlapQueue: {"00:00:01 done", "00:00:02 skipped overlap", "00:00:03 done",
			"00:00:04-00:00:05 (2) skipped overlap", "00:00:06 in_progress"},
		OverlapAllow: {"00:00:01 done", "00:00:02 done", "00:00:03 done", "00:00:04 done",
			"00:00:05 in_progress", "00:00:06 in_progress", "00:00:07 in_progress"},
	} {
		runInDiary(t, fmt.Sprint(overlap), func(t *testing.T, w *world, d *diary) {
			job := d.job("j", Every(time.Second).Offset(0), 2500*time.Millisecond)
			job.Overlap = overlap
			w.leader([]Job{job})
			sleepUntil(7 * time.Second)
			assert.Equal(t, want, w.rows("j"))
			if overlap == OverlapQueue {
				assert.Equal(t, midnight.Add(3500*time.Millisecond), w.runs("j")[2].StartedAt)
			}
		})
	}
}

func TestAQueuedTickOutlivesItsLeader(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := d.job("j", Every(time.Minute).Offset(0), 90*time.Second)
		job.Overlap = OverlapQueue
		a := w.leader([]Job{job})
		sleepUntil(2*time.Minute + 10*time.Second) // the second waits for the first
		require.NoError(t, a.runner.Stop(ctx))
		require.Len(t, d.read(), 1)
		w.leader([]Job{job})
		sleepUntil(2*time.Minute + 31*time.Second)
		assert.Equal(t, []string{"j 00:01:00", "j 00:02:00"}, d.read())
	})
}

// The retry of one run and the next tick both need the job.
func TestARetryWaitsForARunThatIsUnderWay(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
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
		w.leader([]Job{job})
		sleepUntil(time.Minute)
		// Due between 22 and 26 s, while the run of 00:00:20 is under way.
		assert.Equal(t, []string{"00:00:10 attempt 1 at 10s", "00:00:20 attempt 1 at 20s"},
			d.read()[:2])
		assert.Contains(t, d.read()[2:], "00:00:10 attempt 2 at 28s")
		wantEachTickOnce(t, w, "j", job.Spec, midnight, midnight.Add(time.Minute))
	})
}

func TestWhatALongRunOverlapsIsSoonSeenAndFewRows(t *testing.T) {
	missing.Long(t, "makes many runs")
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.leader([]Job{d.job("j", Every(time.Second).Offset(0), time.Hour)})
		sleepUntil(4 * time.Second)
		require.Equal(t, []string{"00:00:01 in_progress", "00:00:02-00:00:03 (2) skipped overlap"},
			w.rows("j"))
		sleepUntil(30 * time.Minute)
		require.LessOrEqual(t, len(w.rows("j")), 12)
		require.Greater(t, len(w.rows("j")), 8)
		require.Len(t, w.terms(), 1, "a run that goes on is not stalled")
		sleepUntil(time.Hour + 2*time.Second)
		wantEachTickOnce(t, w, "j", Every(time.Second).Offset(0), midnight,
			midnight.Add(time.Hour+2*time.Second))
	})
}
