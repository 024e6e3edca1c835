package tasks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The first statement is on its way for long. Sent again, it is refused because of a pause; the
// first one arrives when that is over.
func TestARunThatStartsWhenItWasRefusedForAPauseIsCarriedOut(t *testing.T) {
	for op, tick := range map[string]time.Duration{"decide": time.Minute, "answer": 24 * time.Hour} {
		runInWorld(t, op, func(t *testing.T, w *world) {
			var d diary
			a := w.leader([]Job{d.job("j", Every(tick).Offset(0), 0)})
			sleepUntil(59 * time.Second)
			sent := 0
			a.link.set(func(what string) fault { // it is called with a lock held
				if what == op {
					sent++
				}
				if what == op && sent == 1 {
					return delay
				}
				return none
			})
			if op == "answer" {
				sleepUntil(60 * time.Second)
				a.trigger("j", "alice", "")
			}
			sleepUntil(61 * time.Second)
			_, err := a.runner.Pause(ctx, "j", "alice", "")
			require.NoError(t, err)
			sleepUntil(70100 * time.Millisecond) // between two looks at the pauses
			require.Equal(t, 2, sent)
			_, err = w.db.Resume(ctx, "j", "alice") // which does not wake the leader
			require.NoError(t, err)
			a.link.set(nil)
			sleepUntil(71 * time.Second) // the leader has seen that the pause is over
			assert.Equal(t, []string{"00:01:00 done"}, w.rows("j"))
			assert.Equal(t, []string{"j 00:01:00"}, d.read())
			assert.Equal(t, 1, a.log.count("a run has started long after it was asked for"))
		})
	}
}

// Such a run waits for the one that has begun meanwhile: the job does not overlap itself.
func TestARunThatStartsLateDoesNotOverlapAnother(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
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
	})
}
