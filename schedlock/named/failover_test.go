package named_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

// A fail-over loses the acquisition of a holder that still trusts its lock. Who
// waits waits for longer than that; who does not is told why.
func TestNobodyTakesALockBesideOneWhoseAcquisitionWasLost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.two()
		require.NoError(t, try(t, b, "used before").Unlock(ctx))
		restore := w.db.Backup()
		names := []string{"x", "used before"}
		holders := map[string]*named.Lock{}
		for _, name := range names {
			holders[name] = try(t, a, name)
		}
		office, _ := w.election(1)
		leader, err := office.WaitForLeader(ctx)
		require.NoError(t, err)
		restore()
		w.db.FailOverNamed()
		start := at()

		held, err := b.Locked(ctx, "x")
		require.NoError(t, err)
		require.True(t, held, "nobody can say that it is free")
		for _, name := range names {
			_, err := b.TryLock(ctx, name)
			require.ErrorIs(t, err, schedlock.ErrHeld)
			require.EqualError(t, err, `lock "`+name+`" cannot be taken before 30s have passed: `+
				`the database server has failed over, and may have lost who holds it`)
		}
		work := func(context.Context, *named.Lock) error { return nil }
		ran, err := b.WithTask(ctx, "task", time.Second, time.Minute, work)
		require.NoError(t, err)
		require.False(t, ran)
		next, _ := w.election(2)
		led, err := next.WaitForLeader(ctx)
		require.NoError(t, err)
		require.ErrorIs(t, leader.Err(), driver.ErrLost)
		require.Greater(t, led.Term(), leader.Term())
		require.GreaterOrEqual(t, at()-start, ttl)
		require.Less(t, at()-start, ttl+100*time.Millisecond)
		for _, name := range names {
			lock := try(t, b, name)
			require.ErrorIs(t, holders[name].Err(), driver.ErrLost)
			require.Greater(t, lock.Term(), holders[name].Term())
			require.NoError(t, lock.Unlock(ctx))
			require.Error(t, holders[name].Unlock(ctx))
		}
		time.Sleep(time.Minute - (at() - start))
		ran, err = b.WithTask(ctx, "task", time.Second, time.Minute, work)
		require.NoError(t, err)
		require.True(t, ran)
		require.NoError(t, next.Resign(ctx))
		require.NoError(t, office.Resign(ctx), "it does not lead any more")
	})
}

// A leader goes on over a fail-over. Somebody waits, so that it is noticed at
// once, and the next hand-over is as fast as ever.
func TestAHandOverAfterAFailOverIsNoSlowerIfSomebodyWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.election(1)
		b, _ := w.election(2)
		_, err := a.WaitForLeader(ctx)
		require.NoError(t, err)
		led := make(chan time.Duration, 1)
		go func() {
			if _, err := b.WaitForLeader(ctx); err == nil {
				led <- at()
			}
		}()
		time.Sleep(time.Minute)
		w.db.FailOverNamed()
		time.Sleep(ttl + 2*time.Second)
		require.NoError(t, a.IsLeader(ctx))
		resigned := at()
		require.NoError(t, a.Resign(ctx))
		require.LessOrEqual(t, <-led-resigned, time.Second+10*time.Millisecond)
		require.NoError(t, b.Resign(ctx))
	})
}

// Who waits counts the time by its own clock too.
func TestAClockThatIsSetForwardAfterAFailOverShortensNoWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.replica(1)
		w.db.FailOverNamed()
		start := at()
		got := make(chan time.Duration, 1)
		go func() {
			if lock, err := a.Lock(ctx, "x"); err == nil {
				got <- at() - start
				_ = lock.Unlock(ctx)
			}
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		w.db.AgeNamed(time.Hour)
		took := <-got
		require.GreaterOrEqual(t, took, ttl)
		require.Less(t, took, ttl+100*time.Millisecond)
	})
}

// Another fail-over while somebody waits: the wait begins anew.
func TestNoWaitSpansAnotherFailOver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.replica(1)
		w.db.FailOverNamed()
		start := at()
		time.AfterFunc(ttl-time.Second, w.db.FailOverNamed)
		lock, err := a.Lock(ctx, "x")
		require.NoError(t, err)
		require.GreaterOrEqual(t, at()-start, 2*ttl-time.Second)
		require.Less(t, at()-start, 2*ttl+time.Second)
		require.NoError(t, lock.Unlock(ctx))
	})
}

// The clock of the database is set back by an hour: a dead holder keeps nobody
// out for longer than a TTL after that, and a living one goes on.
func TestAClockThatIsSetBackKeepsALockForNoLongerThanItsTTL(t *testing.T) {
	for _, step := range []time.Duration{ttl / 2, time.Hour, 24 * time.Hour} {
		runInWorld(t, step.String(), func(t *testing.T, w *world) {
			a, b := w.two()
			dead := try(t, a, "dead")
			alive := try(t, a, "alive")
			alive.KeepAlive()
			start := at()
			time.AfterFunc(time.Second, func() { w.db.AgeNamed(-step) })
			lock, err := b.Lock(ctx, "dead")
			require.NoError(t, err)
			require.ErrorIs(t, dead.Err(), driver.ErrLost)
			require.Less(t, at()-start, ttl+3*time.Second)
			require.NoError(t, lock.Unlock(ctx))
			require.Error(t, dead.Unlock(ctx))

			try(t, a, "dead")
			time.Sleep(time.Second)
			w.db.AgeNamed(-step)
			_, err = b.TryLock(ctx, "dead")
			require.LessOrEqual(t, heldBy(t, err, 1).Info.Left, ttl)
			time.Sleep(ttl)
			require.NoError(t, try(t, b, "dead").Unlock(ctx))
			_, err = b.TryLock(ctx, "alive")
			heldBy(t, err, 1)
			require.NoError(t, alive.Unlock(ctx))
			time.Sleep(ttl)
		})
	}
}
