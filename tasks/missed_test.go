package tasks

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func TestTicksMissedForTenMinutes(t *testing.T) {
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
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			job := d.job("j", minute, 2*time.Second)
			job.CatchUp = tc.catchUp
			w.leadsUntil(90*time.Second, []Job{job})
			sleepUntil(11*time.Minute + 5*time.Second)
			w.leader([]Job{job})
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
	}
}

// The second leader dies in the middle of what it makes up.
func TestWhatIsMadeUpOutlivesItsLeader(t *testing.T) {
	for i := range 20 { // things that happen at one instant happen in any order
		runInDiary(t, strconv.Itoa(i), func(t *testing.T, w *world, d *diary) {
			job := d.job("j", Every(time.Minute).Offset(0), 10*time.Second)
			job.CatchUp = All(5)
			lead := func(from, upto time.Duration) {
				sleepUntil(from)
				w.leadsUntil(upto, []Job{job})
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
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := d.job("j", Every(time.Second).Offset(0), 2500*time.Millisecond)
		job.CatchUp = All(4)
		w.leadsUntil(1500*time.Millisecond, []Job{job})
		sleepUntil(20*time.Second + 100*time.Millisecond)
		w.leader([]Job{job})
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
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("interval", Every(time.Second).Offset(0), 0),
			d.job("cron", Cron("* * * * * *", ""), 0)}
		w.leadsUntil(2500*time.Millisecond, jobs)
		const week = 7 * 24 * time.Hour
		sleepUntil(week + 500*time.Millisecond)
		w.leader(jobs)
		sleepUntil(week + 600*time.Millisecond)
		for _, j := range jobs {
			rows := w.rows(j.Name)
			require.Len(t, rows, 4)
			assert.Equal(t, []string{"00:00:01 done", "00:00:02 done",
				"00:00:03-23:59:59 (604797) skipped missed", "00:00:00 done"}, rows)
		}
	})
}
