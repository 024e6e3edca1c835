package tasks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func (w *world) present() []ledger.Replica {
	w.t.Helper()
	list, err := w.db.Replicas(ctx)
	require.NoError(w.t, err)
	return list
}

func TestReplicasTellOfThemselvesWhereThatIsSwitchedOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.leader(nil, WithPresence()), w.standby(nil, WithPresence())
		w.standby(nil)
		time.Sleep(presencePoll)
		synctest.Wait()
		list := w.present()
		require.Len(t, list, 2, "nothing is written where it is not switched on")
		assert.Equal(t, "leading", list[0].State)
		assert.Equal(t, "test", list[0].Hostname)
		assert.Equal(t, "standby", list[1].State)
		assert.Contains(t, list[1].Reason, "pid 1 on host")
		assert.NotEqual(t, list[0].Instance, list[1].Instance)
		assert.Equal(t, 1, ledger.Ready(list))

		b.link.log()
		time.Sleep(10 * ledger.PresenceInterval)
		synctest.Wait()
		assert.Len(t, b.link.log(), 10, "every half minute, as long as the state is the same")

		require.NoError(t, a.runner.Stop(ctx))
		time.Sleep(2 * presencePoll)
		synctest.Wait()
		list = w.present()
		require.Len(t, list, 1, "who has stopped is gone")
		assert.Equal(t, 2, list[0].PID)
	})
}

func TestAStateThatCouldNotBeToldIsToldASecondLater(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join(nil, WithPresence())
		w.usurp()
		a.stand()
		time.Sleep(2 * presencePoll)
		synctest.Wait()
		require.Equal(t, "standby", w.present()[0].State)

		a.link.set(on(refuse, "present"))
		time.Sleep(ttl + 10*time.Second)
		synctest.Wait()
		require.True(t, a.leads())
		require.Equal(t, "standby", w.present()[0].State)
		a.link.set(nil)
		time.Sleep(presencePoll)
		synctest.Wait()
		require.Equal(t, "leading", w.present()[0].State)
	})
}

func TestTheLeaderDeletesReplicasThatWereSilentForLong(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		require.NoError(t, w.db.Present(ctx, ledger.Replica{Instance: "x", PID: 99}, false))
		b := w.join(nil, WithPresence())
		w.usurp()
		b.stand()
		time.Sleep(ttl / 2)
		require.Len(t, w.present(), 2)
		time.Sleep(ledger.ReplicaGone + ledger.PresenceInterval) // it leads by now
		synctest.Wait()
		require.True(t, b.leads())
		require.Len(t, w.present(), 1)
	})
}

// Whatever the database makes of it: the lock goes on, and the stop does not wait.
func TestPresenceThatCannotBeWrittenChangesNothing(t *testing.T) {
	for name, f := range map[string]fault{"refuse": refuse, "hang": hang, "freeze": freeze} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			a := w.join(nil, WithPresence())
			a.link.set(on(f, "present", "absent"))
			a.lead()
			before := len(w.terms())
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			require.True(t, a.leads())
			require.Len(t, w.terms(), before)
			if f != freeze { // that never comes back, so there is nothing to tell
				assert.Equal(t, 1, a.log.Count("cannot tell of itself"), "%s", a.log)
			}
			begin := time.Now()
			require.NoError(t, a.runner.Stop(ctx))
			require.Nil(t, w.holder(), "released")
			assert.LessOrEqual(t, time.Since(begin), 3*presenceLimit)
		})
	}
}
