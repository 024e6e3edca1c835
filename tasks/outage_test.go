package tasks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

func TestATermWaitsForALedgerThatDoesNotAnswer(t *testing.T) {
	for name, f := range map[string]func(string) fault{
		"refuses":                      on(refuse, "abandon", "jobs"),
		"hangs":                        on(hang, "abandon", "jobs"),
		"does not tell what is owed":   on(refuse, "retries"),
		"does not tell what is asked":  on(refuse, "pending"),
		"does not tell of the cursors": on(refuse, "jobs"),
	} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			a := w.join([]Job{d.job("j", Every(10*time.Second).Offset(0), 0)})
			a.link.set(f)
			a.start()
			sleepUntil(2 * time.Minute)
			require.True(t, a.leads(), "the heartbeats succeed")
			require.Empty(t, d.read())
			require.Equal(t, 1, a.log.Count("run ledger does not answer"), "said once")
			require.Zero(t, a.log.Count("run ledger answers again"))
			a.link.set(nil)
			sleepUntil(2*time.Minute + 30*time.Second)
			assert.Equal(t, 1, a.log.Count("run ledger answers again"))
			assert.Equal(t, []string{"j 00:02:10", "j 00:02:20", "j 00:02:30"}, d.read())
		})
	}
}

// It would lead, and nothing would run.
func TestALeaderWhoseLedgerRefusesItStepsDown(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.join([]Job{d.job("j", Every(10*time.Second).Offset(0), 0)})
		a.link.set(on(usurp, "abandon"))
		a.start()
		sleepUntil(time.Second)
		require.False(t, a.leads())
		a.link.set(nil)
		sleepUntil(20 * time.Second)
		assert.Equal(t, []string{"j 00:00:10", "j 00:00:20"}, d.read())
	})
}

// Its heartbeats succeed, so nobody else would ever lead.
func TestALeaderWhoseLedgerDoesNotAnswerFollowsAnOrderToLeave(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuse, "hangs": hang} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			a, b := w.join(nil), w.join(nil)
			a.link.set(on(f, "abandon"))
			a.lead()
			b.stand()
			sleepUntil(time.Minute)
			_, err := schedlock.Revoke(ctx, w.db, w.holder().Term, "alice", "its disk is full")
			require.NoError(t, err)
			sleepUntil(time.Minute + every + retry)
			assert.True(t, b.leads())
		})
	}
}

// A retry that is owed must not start before all of the ledger was read, nor as often as that
// was tried.
func TestARetryWaitsUntilTheCursorsOfAllJobsArePutBack(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		fails := d.failing("fails", at(5*time.Second), 1)
		fails.Retry = Retry{Attempts: 2, Backoff: 10 * time.Second}
		jobs := []Job{fails, d.job("ahead", at(time.Hour), 0)}
		w.leadsUntil(6*time.Second, jobs)
		require.True(t, w.db.EditCursor("ahead", midnight.Add(72*time.Hour), ""))
		a := w.join(jobs)
		a.link.set(on(refuse, "decide"))
		a.start()
		sleepUntil(time.Minute)
		require.True(t, a.leads())
		require.Equal(t, 1, a.log.Count("run ledger does not answer"))
		require.Len(t, d.read(), 1, "nothing starts before the ledger was read")
		a.link.set(nil)
		sleepUntil(2 * time.Minute)
		assert.Equal(t, []string{"fails 00:00:05 attempt 1", "fails 00:00:05 attempt 2"}, d.read())
		assert.Equal(t, 1, a.log.Count("put back"))
	})
}

func TestAHeartbeatThatFailsIsRepeatedSoon(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		sleepUntil(every - time.Second)
		a.link.set(on(refuse, "heartbeat"))
		a.link.log()
		sleepUntil(every + 4*retry + retry/2)
		require.Len(t, a.link.log(), 5, "tried when it was due, and each second since")
		require.Zero(t, w.holder().Beat)
		a.link.set(nil)
		sleepUntil(every + 5*retry)
		assert.Equal(t, midnight.Add(every+5*retry), w.holder().HeartbeatAt)
		sleepUntil(2*every - time.Millisecond)
		assert.Equal(t, midnight.Add(every+5*retry), w.holder().HeartbeatAt,
			"and then at its pace again")
	})
}

func TestALeaderOnADamagedDatabaseStepsDownAndRests(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		first := a.lock.Lease()
		a.link.set(on(ruin, "heartbeat"))
		sleepUntil(every)
		require.ErrorIs(t, first.Err(), schedlock.ErrCorrupt)
		require.False(t, a.leads())
		sleepUntil(ttl)
		require.Len(t, w.terms(), 1, "winning again would only lead here again")
		a.link.set(nil)
		sleepUntil(2 * ttl)
		assert.True(t, a.leads(), "it was repaired")
	})
}

func TestOnStuckIsNotAskedForALedgerThatDoesNotAnswer(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", at(time.Second), 5*time.Second)}, WithDrain(10*time.Second),
			WithOnStuck(func([]Run) { d.write("stuck") }))
		sleepUntil(3 * time.Second)
		a.link.set(on(refuse, "finish"))
		go func() { assert.NoError(t, a.runner.Stop(ctx)) }()
		sleepUntil(time.Minute)
		require.NotNil(t, w.holder())
		assert.Equal(t, []string{"j 00:00:01"}, d.read(), "the job has returned")
		assert.Equal(t, 1, a.log.Count(`msg="run ledger does not answer" job=j`))
		a.link.set(nil)
		sleepUntil(time.Minute + 2*retry)
		assert.Nil(t, w.holder())
		assert.Equal(t, []string{"00:00:01 done"}, w.rows("j"))
	})
}

func TestAnOutageShorterThanTheRenewDeadlineLosesNoTick(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuse, "hangs": hang} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			spec := Every(time.Second).Offset(0)
			a := w.leader([]Job{d.job("j", spec, 300*time.Millisecond)})
			term := a.lock.Lease().Term()
			sleepUntil(10*time.Second + 100*time.Millisecond) // in the middle of a run
			a.link.set(on(f))
			sleepUntil(40 * time.Second)
			require.True(t, a.leads())
			require.Len(t, d.read(), 10)
			a.link.set(nil)
			sleepUntil(time.Minute)
			require.Equal(t, term, a.lock.Lease().Term())
			assert.Equal(t, ledger.Done, w.runs("j")[9].Status,
				"the end of the run of 10 s was written later")
			wantEachTickOnce(t, w, "j", spec, midnight, midnight.Add(time.Minute))
			assert.GreaterOrEqual(t, len(d.read()), 10+18)
		})
	}
}

func TestTheEndOfARunIsGivenUpSomeTimeAfterALoss(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{once(d.job("j", at(5*time.Second), time.Hour))})
		sleepUntil(6 * time.Second)
		a.link.set(on(refuse))
		sleepUntil(renew)
		require.Len(t, d.causes(), 1)
		require.NotContains(t, a.log.String(), "end of run not recorded")
		sleepUntil(renew + finishLimit)
		assert.Equal(t, 1, a.log.Count("end of run not recorded"))
		a.link.set(nil)
		sleepUntil(3 * time.Minute)
		assert.True(t, a.leads())
		assert.Equal(t, []string{"00:00:05 abandoned"}, w.rows("j"))
	})
}

// The first statement is on its way for long. Sent again, it is refused because of a pause; the
// first one arrives when that is over. Its run is carried out, but it waits for the one that has
// begun meanwhile: the job does not overlap itself. See also TestFound of package simulate.
func TestARunThatStartsLateDoesNotOverlapAnother(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", Every(time.Minute).Offset(0), 3*time.Second)})
		sleepUntil(59 * time.Second)
		sent := 0
		a.link.set(func(what string) fault {
			if what != "decide" {
				return none
			}
			if sent++; sent == 1 {
				return delay
			}
			return none
		})
		sleepUntil(60500 * time.Millisecond)
		first := a.trigger("j", "alice", "")
		sleepUntil(61 * time.Second)
		_, err := a.runner.Pause(ctx, "j", "alice", "")
		require.NoError(t, err)
		sleepUntil(120100 * time.Millisecond) // the tick of then comes after the request
		_, err = a.runner.Resume(ctx, "j", "alice")
		require.NoError(t, err)
		sleepUntil(121 * time.Second)
		require.Equal(t, []string{"j 00:01:00"}, d.read(), "the request of %v runs", first.At)
		a.link.set(nil)
		sleepUntil(121500 * time.Millisecond)
		a.trigger("j", "alice", "") // wakes the job
		sleepUntil(123 * time.Second)
		assert.Len(t, d.read(), 1)
		sleepUntil(124 * time.Second)
		assert.Equal(t, []string{"j 00:01:00", "j 00:01:00"}, d.read())
		sleepUntil(130 * time.Second)
		rows := w.rows("j")
		assert.Contains(t, rows, "00:01:00 done")
		assert.NotContains(t, rows, "00:01:00 in_progress")
		assert.Equal(t, 1, a.log.Count("a run has started long after it was asked for"))
	})
}
