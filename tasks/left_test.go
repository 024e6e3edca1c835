package tasks

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func TestARunThatItsLeaderLeftIsTakenUpByTheNext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var (
			d diary
			f failures
		)
		jobs := []Job{d.job("j", at(5*time.Second), 20*time.Second),
			once(d.job("mail", at(5*time.Second), 20*time.Second))}
		a := w.leader(jobs)
		sleepUntil(6 * time.Second)
		a.link.set(on(hang)) // for ever, as if its machine had gone
		b := w.standby(jobs, WithOnRun(f.add))
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
		assert.Equal(t, 1, b.log.Count("run abandoned by its leader: it is not repeated"))
		wrote := d.read()
		slices.Sort(wrote)
		assert.Equal(t, []string{"j 00:00:05", "j 00:00:05", "mail 00:00:05"}, wrote)
		a.link.set(nil)
		sleepUntil(3 * time.Minute)
		assert.Equal(t, ledger.Done, w.runs("j")[0].Status, "and the old leader cannot change it")
	})
}

// What is repeated finds nothing to abandon: the statement before has marked it.
func TestAnAbandonedRunIsToldOfOnceThoughTheAnswerWasLost(t *testing.T) {
	for name, fails := range map[string][]string{
		"the answer is lost":        {"abandon"},
		"the ledger fails after it": {"retries"},
		"both":                      {"abandon", "retries"},
		"the answer is lost, and others come late": {"abandon", "pending", "jobs"},
	} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			var (
				d diary
				f failures
			)
			before := at(5 * time.Second)
			jobs := []Job{d.job("j", before, time.Hour), once(d.job("mail", before, time.Hour))}
			first := w.leader(jobs)
			sleepUntil(6 * time.Second)
			first.link.set(on(hang))
			second := w.standby(jobs)
			sleepUntil(6*time.Second + ttl + 5*time.Second)
			require.True(t, second.leads())
			second.link.set(on(hang))
			third := w.join(jobs, WithOnRun(f.add))
			third.link.set(on(lose, fails...))
			third.start()
			sleepUntil(6*time.Second + 2*ttl + 20*time.Second)
			require.True(t, third.leads())
			third.link.set(nil)
			sleepUntil(6*time.Second + 2*ttl + 30*time.Second)
			require.Len(t, f.read(), 1, "not that of the term before")
			assert.Equal(t, "j", f.read()[0].Job)
			assert.Equal(t, ledger.Abandoned, f.read()[0].Status)
			assert.Equal(t, 1, third.log.Count("run abandoned by its leader"))
		})
	}
}

func TestARunThatKillsEachOfItsLeadersIsGivenUp(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", at(5*time.Second), time.Hour)}
		for i := range 5 {
			r := w.join(jobs)
			r.start()
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
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", at(5*time.Second), 30*time.Second),
			once(d.job("mail", at(5*time.Second), 30*time.Second))}
		a := w.leader(jobs, WithDrain(time.Second))
		w.standby(jobs)
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
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		job := d.failing("j", at(5*time.Second), 1)
		job.Retry = Retry{Attempts: 2, Backoff: time.Minute}
		a := w.leader([]Job{job})
		sleepUntil(10 * time.Second)
		due := w.runs("j")[0].RetryAt
		require.NoError(t, a.runner.Stop(ctx))
		w.leader([]Job{job})
		sleepUntil(due.Sub(midnight) - time.Millisecond)
		require.Len(t, d.read(), 1)
		sleepUntil(due.Sub(midnight))
		assert.Equal(t, []string{"j 00:00:05 attempt 1", "j 00:00:05 attempt 2"}, d.read())
	})
}

// A deploy may change what is owed: the job's policy, and whether there is one.
func TestWhatIsOwedFollowsTheCodeOfTheLeader(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		other := Job{Name: "other", Spec: at(time.Hour), Do: nothing}
		job := d.failing("j", Every(10*time.Minute).Offset(5*time.Second), 1)
		job.Retry = Retry{Attempts: 5, Backoff: time.Minute}
		w.leadsUntil(10*time.Second, []Job{job, other})

		w.leadsUntil(5*time.Minute, []Job{other}) // that code does not know the job
		require.Len(t, d.read(), 1)
		require.False(t, w.runs("j")[0].Final(), "still owed")

		c := w.leader([]Job{job, other}) // it is back
		sleepUntil(6 * time.Minute)
		require.Equal(t, ledger.Done, w.runs("j")[0].Status)
		assert.Equal(t, 2, w.runs("j")[0].Attempt)

		sleepUntil(10*time.Minute + 10*time.Second) // the next tick has failed
		require.NoError(t, c.runner.Stop(ctx))
		require.False(t, w.runs("j")[1].Final())
		job.Retry, job.AtMostOnce = Retry{}, true
		e := w.leader([]Job{job, other})
		sleepUntil(20 * time.Minute)
		assert.Len(t, d.read(), 3, "now it must not be repeated")
		assert.True(t, w.runs("j")[1].Final())
		assert.Equal(t, 1, e.log.Count("run is not tried again"))
	})
}
