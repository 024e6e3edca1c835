package schedlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

func TestANewCampaignIsRefusedUntilTheLastLeaseWasGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		_, err := a.lock.Wait(ctx)
		require.ErrorIs(t, err, schedlock.ErrUnreleased)
		require.NotErrorIs(t, err, schedlock.ErrHeld, "nobody else has it")
		require.ErrorContains(t, err, itoa(lease.Term()))
		db.DeleteRow()
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
		for _, campaign := range []func(context.Context) (*schedlock.Lease, error){a.lock.Wait,
			a.lock.Acquire} {
			_, err = campaign(ctx)
			require.ErrorIs(t, err, schedlock.ErrUnreleased)
			require.ErrorContains(t, err,
				"was not released yet: call Release when its work has returned",
				"its jobs may still run")
		}
		require.Contains(t, a.lock.Status().Reason, "its work is returning")
		require.NoError(t, lease.Release(ctx))
		next, err := a.lock.Wait(ctx)
		require.NoError(t, err)
		require.Greater(t, next.Term(), lease.Term())
	})
}

func TestACampaignRepeatsAReleaseThatFailed(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.db.set(fault{kind: broken})
		require.Error(t, lease.Release(ctx))
		waiter := a.stand(t.Context())
		time.Sleep(every)
		require.NotNil(t, rowOf(t, db))
		a.db.heal()
		healed := time.Now()
		got := wins(t, waiter)
		require.LessOrEqual(t, got.at.Sub(healed), retry, "not after the TTL of its own old row")
		terms := termsOf(t, db, 2)
		require.Equal(t, driver.EndReleased, terms[1].EndReason)
	})
}

func TestCampaignsOfOneLockTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		lease := a.lead()
		first := b.stand(t.Context())
		synctest.Wait()
		second := b.stand(t.Context())
		short, cancel := context.WithTimeout(ctx, retry)
		defer cancel()
		_, err := b.lock.Acquire(short)
		require.ErrorIs(t, err, context.DeadlineExceeded, "it is the other's turn")
		require.NoError(t, lease.Release(ctx))
		x, y := <-first, <-second
		require.NoError(t, x.err)
		require.ErrorContains(t, y.err, "was not released yet")
	})
}

func TestStop(t *testing.T) {
	bubble(t, "ends a Wait", func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		lease := a.lead()
		waiter := b.stand(ctx)
		time.Sleep(retry / 2)
		begun := time.Now()
		require.NoError(t, b.lock.Stop(ctx))
		require.Zero(t, time.Since(begun))
		require.NoError(t, lease.Release(ctx))
		got := <-waiter
		require.ErrorIs(t, got.err, schedlock.ErrStopped)
		require.Equal(t, begun, got.at)
		require.Equal(t, schedlock.SelfStopped, b.lock.Status().State)
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrStopped)
		require.Nil(t, rowOf(t, db))
	})
	bubble(t, "releases a lease", func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.db.set(fault{kind: broken}, "release")
		require.ErrorIs(t, a.lock.Stop(ctx), errBroken)
		require.ErrorIs(t, lease.Err(), schedlock.ErrReleased)
		a.db.heal()
		require.NoError(t, a.lock.Stop(ctx), "it may be called again")
		require.NoError(t, a.lock.Stop(ctx))
		require.Nil(t, rowOf(t, db))
	})
	bubble(t, "while the acquisition is under way", func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.db.set(fault{kind: late, after: every}, "acquire")
		waiter := a.stand(ctx)
		time.Sleep(retry)
		require.NoError(t, a.lock.Stop(ctx))
		got := <-waiter
		require.ErrorIs(t, got.err, schedlock.ErrStopped)
		require.False(t, a.leads())
		require.Nil(t, rowOf(t, db))
		require.Zero(t, a.seen.count(schedlock.EventElected))
	})
	bubble(t, "waits for an acquisition, as the database may be closed next", func(t *testing.T,
		db *memory.Store) {
		a := newReplica(t, db)
		a.db.set(fault{kind: frozen}, "acquire")
		waiter := a.stand(ctx)
		synctest.Wait()
		time.AfterFunc(retry, a.db.heal)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, a.lock.Stop(ended))
		a.db.set(fault{kind: broken})
		require.ErrorIs(t, (<-waiter).err, schedlock.ErrStopped)
		require.Nil(t, rowOf(t, db))
	})
	bubble(t, "does not wait for ever", func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.db.set(fault{kind: deaf}, "acquire")
		waiter := a.stand(ctx)
		synctest.Wait()
		begun := time.Now()
		require.ErrorContains(t, a.lock.Stop(ctx), "an acquisition has not ended")
		require.Equal(t, 15*time.Second, time.Since(begun))
		a.db.heal()
		require.ErrorIs(t, (<-waiter).err, schedlock.ErrStopped)
		require.NoError(t, a.lock.Stop(ctx))
		require.Nil(t, rowOf(t, db))
	})
	bubble(t, "could not look for what was never answered", func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.db.set(fault{kind: broken}, "acquire")
		_, err := a.lock.Acquire(ctx)
		require.ErrorIs(t, err, errBroken)
		a.db.set(fault{kind: broken})
		require.ErrorIs(t, a.lock.Stop(ctx), errBroken)
		a.db.heal()
		require.NoError(t, a.lock.Stop(ctx))
	})
	bubble(t, "gives nothing back to another database", func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		gone := fmt.Errorf("%w: the file was replaced", schedlock.ErrLost)
		looked := false
		a.db.planned(func(op string) fault {
			if op == "look" && !looked {
				looked = true
				return fault{}
			}
			return fault{kind: broken, err: gone}
		})
		_, err := a.lock.Acquire(ctx)
		require.Error(t, err)
		require.NoError(t, a.lock.Stop(ctx))
	})
}

func TestStatusSaysWhy(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db, schedlock.WithOwner(driver.Owner{PID: 4711, Hostname: "web-1"})),
			newReplica(t, db)
		require.Equal(t, schedlock.SelfStarting, b.lock.Status().State)
		lease := a.lead()
		waiter := b.stand(t.Context())
		time.Sleep(every + every/2)
		s := a.lock.Status()
		require.Equal(t, schedlock.Status{State: schedlock.SelfLeading, Leader: true,
			Term: lease.Term(), Reason: "holds the lock; last confirmed 15s ago, trusted for 45s",
			Confirmed: every + every/2}, s)
		s = b.lock.Status()
		require.Equal(t, schedlock.SelfStandby, s.State)
		require.Equal(t, "pid 4711 on host \"web-1\" leads (term "+itoa(lease.Term())+
			"), last heartbeat 15s ago; takes over if no heartbeat arrives for 45s", s.Reason)
		time.Sleep(renew - every - every/2)
		s = a.lock.Status()
		require.Equal(t, schedlock.SelfStandby, s.State)
		require.Contains(t, s.Reason, "its work is returning")
		require.NoError(t, (<-waiter).err)
		require.Equal(t, schedlock.SelfLeading, b.lock.Status().State)
		require.NoError(t, b.lock.Stop(ctx))
		require.Equal(t, schedlock.Status{State: schedlock.SelfStopped,
			Reason: "was stopped and will not lead again"}, b.lock.Status())
	})
}

func TestGetLockInfo(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		require.Nil(t, rowOf(t, db), "free")
		down := newFaulty(db)
		down.set(fault{kind: broken})
		info, err := schedlock.GetLockInfo(ctx, down)
		require.ErrorIs(t, err, errBroken, "could not read is not free")
		require.Nil(t, info)

		a, lease := newLeader(t, db)
		time.Sleep(every)
		require.NoError(t, lease.Heartbeat(ctx))
		time.Sleep(time.Second)
		require.Equal(t, schedlock.LockInfo{
			PID: a.lock.Owner().PID, Hostname: "test", App: a.lock.App(), Term: lease.Term(),
			Beat: 1, State: driver.StateLeading,
			CreatedAt:   time.Now().Add(-every - time.Second).UTC(),
			HeartbeatAt: time.Now().Add(-time.Second).UTC(),
			Age:         every + time.Second, HeartbeatAge: time.Second, Timing: a.lock.Timing(),
		}, *rowOf(t, db))
	})
}

func TestTokensAreTheirOwnText(t *testing.T) {
	token := driver.NewToken()
	parsed, err := driver.ParseToken(token.String())
	require.NoError(t, err)
	require.Equal(t, token, parsed)
	require.NotEqual(t, token, driver.NewToken())
	for _, bad := range []string{"", "x", token.String()[1:], token.String() + "0",
		"zz" + token.String()[2:]} {
		parsed, err := driver.ParseToken(bad)
		require.Error(t, err, bad)
		require.Zero(t, parsed)
	}
}
