package tasks

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

func TestStopRepeatsAReleaseThatFails(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		a.link.set(on(refuse, "release"))
		time.AfterFunc(3*time.Second, func() { a.link.set(nil) })
		require.NoError(t, a.runner.Stop(ctx))
		assert.Nil(t, w.holder())
		assert.Zero(t, a.log.Count("release failed; it is repeated"))
	})
}

func TestStopSaysThatTheLockIsNotReleased(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		a.link.set(on(refuse, "release"))
		require.ErrorIs(t, a.runner.Stop(ctx), errRefused)
		require.NotNil(t, w.holder())
		a.link.set(nil)
		require.NoError(t, a.runner.Stop(ctx), "which tries again")
		assert.Nil(t, w.holder())
	})
}

// So that whoever has waited too briefly may ask again whenever they like.
func TestStopOfARunnerThatHasStoppedWaitsForNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		require.NoError(t, a.runner.Stop(ctx))
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for range 50 { // of two cases that are ready select takes either
			require.NoError(t, a.runner.Stop(ended))
		}
	})
}

// A release that has failed in the end is not the fault of the terms after it.
func TestStopForgetsAReleaseThatWasMadeUpFor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.leader(nil)
		a.link.set(func(op string) fault {
			if op == "heartbeat" || op == "release" {
				return refuse
			}
			return none
		})
		sleepUntil(renew + 10*time.Second)
		require.False(t, a.leads())
		require.NotNil(t, w.holder())
		require.Equal(t, 1, a.log.Count("release failed; it is repeated"))
		a.link.set(nil)
		sleepUntil(renew + 15*time.Second)
		require.True(t, a.leads())
		assert.NoError(t, a.runner.Stop(ctx))
		assert.Nil(t, w.holder())
	})
}

func TestStop(t *testing.T) {
	runInWorld(t, "without a campaign, and again", func(t *testing.T, w *world) {
		a := w.join(nil)
		require.NoError(t, a.runner.Stop(ctx))
		require.NoError(t, a.runner.Stop(ctx))
		require.ErrorIs(t, a.runner.Acquire(ctx), schedlock.ErrStopped)
		a.runner.Campaign()
		sleepUntil(time.Minute)
		assert.False(t, a.leads(), "it was stopped")
		assert.Empty(t, w.terms())
	})
	runInWorld(t, "before Start", func(t *testing.T, w *world) {
		a := w.join(nil)
		require.NoError(t, a.runner.Acquire(ctx))
		require.NoError(t, a.runner.Stop(ctx))
		assert.False(t, a.leads())
		assert.Nil(t, w.holder())
	})
	runInWorld(t, "on a standby, and again", func(t *testing.T, w *world) {
		a, b := w.leader(nil), w.standby(nil)
		require.NoError(t, b.runner.Stop(ctx))
		require.NoError(t, b.runner.Stop(ctx))
		require.NoError(t, a.runner.Stop(ctx))
		sleepUntil(2 * time.Minute)
		assert.Len(t, w.terms(), 1)
	})
	runInWorld(t, "before the ledger answers", func(t *testing.T, w *world) {
		a := w.join(nil)
		a.link.set(on(refuse, "abandon"))
		a.lead()
		sleepUntil(time.Minute)
		patience, cancel := context.WithTimeout(ctx, 2*retry)
		defer cancel()
		require.NoError(t, a.runner.Stop(patience))
		assert.Nil(t, w.holder())
	})
	runInDiary(t, "with little time it goes on in the background", func(t *testing.T, w *world,
		d *diary) {
		a := w.leader([]Job{d.job("j", at(time.Second), 10*time.Second)})
		sleepUntil(2 * time.Second)
		short, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("no patience"))
		defer cancel()
		assert.ErrorContains(t, a.runner.Stop(short),
			"scheduler did not stop in time, it waits for job \"j\": no patience")
		sleepUntil(4 * time.Second)
		assert.False(t, a.leads(), "it starts nothing new")
		assert.Equal(t, driver.StateDraining, w.holder().State)
		sleepUntil(11 * time.Second)
		assert.Nil(t, w.holder())
		assert.Equal(t, []string{"00:00:01 done"}, w.rows("j"))
		assert.NoError(t, a.runner.Stop(ctx))
	})
	runInDiary(t, "by several at once", func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", at(time.Second), 10*time.Second)})
		sleepUntil(2 * time.Second)
		for range 5 {
			go func() {
				assert.NoError(t, a.runner.Stop(ctx))
				d.write("stopped %v", w.holder())
			}()
		}
		sleepUntil(20 * time.Second)
		assert.Equal(t, append([]string{"j 00:00:01"},
			strings.Split(strings.Repeat("stopped <nil>,", 5), ",")[:5]...), d.read())
	})
}
