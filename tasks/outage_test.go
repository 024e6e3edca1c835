package tasks

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

func TestATermWaitsForALedgerThatDoesNotAnswer(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuse, "hangs": hang} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			var d diary
			a := w.join([]Job{d.job("j", Every(10*time.Second).Offset(0), 0)})
			a.link.set(on(f, "abandon", "jobs"))
			a.start()
			sleepUntil(2 * time.Minute)
			require.True(t, a.leads(), "the heartbeats succeed")
			require.Empty(t, d.read())
			require.Equal(t, 1, a.log.count("run ledger does not answer"), "said once")
			a.link.set(nil)
			sleepUntil(2*time.Minute + 30*time.Second)
			assert.Equal(t, []string{"j 00:02:10", "j 00:02:20", "j 00:02:30"}, d.read())
		})
	}
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
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		a := w.leader([]Job{d.job("j", at(time.Second), 5*time.Second)}, WithDrain(10*time.Second),
			WithOnStuck(func([]Run) { d.write("stuck") }))
		sleepUntil(3 * time.Second)
		a.link.set(on(refuse, "finish"))
		go func() { assert.NoError(t, a.runner.Stop(ctx)) }()
		sleepUntil(time.Minute)
		require.NotNil(t, w.holder())
		assert.Equal(t, []string{"j 00:00:01"}, d.read(), "the job has returned")
		a.link.set(nil)
		sleepUntil(time.Minute + 2*retry)
		assert.Nil(t, w.holder())
		assert.Equal(t, []string{"00:00:01 done"}, w.rows("j"))
	})
}

func TestAnOutageShorterThanTheRenewDeadlineLosesNoTick(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuse, "hangs": hang} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			var d diary
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

func TestAnOutageLongerThanTheRenewDeadlineHealsByItself(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		spec := Every(10 * time.Second).Offset(0)
		a := w.leader([]Job{d.job("j", spec, time.Second)})
		sleepUntil(15 * time.Second)
		a.link.set(on(refuse))
		sleepUntil(10*time.Minute + 5*time.Second)
		require.False(t, a.leads())
		require.Equal(t, []string{"j 00:00:10"}, d.read())
		a.link.set(nil)
		sleepUntil(12 * time.Minute)
		require.True(t, a.leads())
		wantEachTickOnce(t, w, "j", spec, midnight, midnight.Add(12*time.Minute))
		assert.Equal(t, "j 00:10:00", d.read()[1], "the newest that was missed")
	})
}

func TestTheEndOfARunIsGivenUpSomeTimeAfterALoss(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		a := w.leader([]Job{once(d.job("j", at(5*time.Second), time.Hour))})
		sleepUntil(6 * time.Second)
		a.link.set(on(refuse))
		sleepUntil(renew)
		require.Len(t, d.causes(), 1)
		require.NotContains(t, a.log.String(), "end of run not recorded")
		sleepUntil(renew + finishLimit)
		assert.Equal(t, 1, a.log.count("end of run not recorded"))
		a.link.set(nil)
		sleepUntil(3 * time.Minute)
		assert.True(t, a.leads())
		assert.Equal(t, []string{"00:00:05 abandoned"}, w.rows("j"))
	})
}

// A decision that was written, and whose answer was lost, is not taken twice.
func TestADecisionWhoseAnswerWasLostIsNotRepeated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		spec := Every(10 * time.Second).Offset(0)
		a := w.leader([]Job{d.job("j", spec, 0)})
		sleepUntil(15 * time.Second)
		once := true
		a.link.set(func(op string) fault {
			if op == "decide" && once {
				once = false
				return lose
			}
			return none
		})
		sleepUntil(45 * time.Second)
		wantEachTickOnce(t, w, "j", spec, midnight, midnight.Add(45*time.Second))
		runs := d.read()
		assert.Equal(t, runs, slices.Compact(slices.Clone(runs)))
		assert.Contains(t, runs, "j 00:00:30")
	})
}
