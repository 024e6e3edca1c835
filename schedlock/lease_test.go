package schedlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

var ctx = context.Background()

func TestALeaseEndsAtItsRenewDeadlineBeforeAnotherReplicaLeads(t *testing.T) {
	const lastBeat, deadline = 2 * every, 2*every + renew
	for name, tc := range map[string]struct {
		fault    fault
		lastBeat time.Duration // the last that a rival can have seen
	}{
		"the database refuses":             {fault{kind: broken}, lastBeat},
		"it hangs":                         {fault{kind: hang}, lastBeat},
		"it hangs and ignores the context": {fault{kind: deaf}, lastBeat},
		"statements arrive an hour late":   {fault{kind: slowApply, after: time.Hour}, lastBeat},
		"its answers are lost":             {fault{kind: lost}, deadline},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, b := newRenewing(t, db), newRenewing(t, db)
			start := time.Now()
			lease := a.lead()
			waiter := b.stand(t.Context())

			sleepUntil(start, 2*every+every/2)
			a.db.set(tc.fault) // the beat of t = 20 s was the last that was answered
			sleepUntil(start, deadline-time.Millisecond)
			require.True(t, a.leads())
			require.NoError(t, lease.Context().Err())
			sleepUntil(start, deadline)
			require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrNotLeader)
			require.ErrorIs(t, context.Cause(lease.Context()), schedlock.ErrLost)
			require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
			require.Nil(t, a.lock.Lease())
			require.Equal(t, 1, a.seen.count(schedlock.EventLost))
			require.False(t, b.leads(), "not before the TTL")

			got := wins(t, waiter)
			assert.GreaterOrEqual(t, got.at.Sub(start), lastBeat+ttl)
			assert.LessOrEqual(t, got.at.Sub(start), tc.lastBeat+ttl+2*retry)
			assert.True(t, b.leads())
			assert.Equal(t, driver.EndExpired, b.seen.last(schedlock.EventElected).Reason)
			assert.Equal(t, a.lock.Owner().PID, b.seen.last(schedlock.EventElected).Holder.PID)

			a.db.heal()
			time.Sleep(time.Minute)
			assert.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost, "it does not come back")
			assert.False(t, a.leads())
			assert.True(t, b.leads())
		})
	}
}

func TestTheDeadlineOfAHeartbeatCountsFromItsSending(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		time.Sleep(every)
		sent := time.Now()
		a.db.set(fault{kind: late, after: 20 * time.Second}, "heartbeat")
		require.NoError(t, lease.Heartbeat(ctx))
		require.Equal(t, 20*time.Second, time.Since(sent))

		sleepUntil(sent, renew-time.Millisecond)
		require.True(t, a.leads(), "renewed by the late answer")
		sleepUntil(sent, renew)
		require.False(t, a.leads(), "20 s of it were spent on the way")
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
	})
}

func TestTheDeadlineOfAnAcquisitionCountsFromItsSending(t *testing.T) {
	for name, fa := range map[string]fault{
		"answered late":                 {kind: late, after: 20 * time.Second},
		"not answered, but found later": {kind: lost, after: 20 * time.Second},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			a.db.set(fa, "acquire")
			sent := time.Now()
			lease := a.lead()
			require.Equal(t, 20*time.Second, time.Since(sent))
			require.Equal(t, 1, a.db.count("acquire"))
			require.Equal(t, lease.Term(), rowOf(t, db).Term)
			sleepUntil(sent, renew-time.Millisecond)
			require.True(t, a.leads())
			sleepUntil(sent, renew)
			require.False(t, a.leads())
			require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
		})
	}
}

func TestAnAcquisitionAnsweredPastItsDeadlineIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.db.next(fault{kind: late, after: renew}, "acquire")
		lease, err := a.lock.Acquire(ctx)
		require.ErrorContains(t, err, "past the renew deadline of 45s")
		require.Nil(t, lease)
		require.False(t, a.leads())
		require.Nil(t, rowOf(t, db), "nobody has to wait for its TTL")
		a.lead()
	})
}

func TestALateAnswerDoesNotReviveALease(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		start := time.Now()
		lease := a.lead()
		sleepUntil(start, renew-time.Second)
		a.db.set(fault{kind: late, after: 2 * time.Second}, "heartbeat")
		err := lease.Heartbeat(ctx) // the database says yes, a second too late
		require.Equal(t, renew+time.Second, time.Since(start))
		require.ErrorIs(t, err, schedlock.ErrLost)
		require.False(t, a.leads())
		require.ErrorIs(t, context.Cause(lease.Context()), schedlock.ErrLost)
		require.Zero(t, a.seen.count(schedlock.EventHeartbeat))

		sent := a.db.count("heartbeat")
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
		require.Equal(t, sent, a.db.count("heartbeat"), "nor is another one sent")
	})
	for when, sent := range map[string]int{"before it is sent": 0, "while it is under way": 1} {
		bubble(t, "the machine sleeps "+when, func(t *testing.T, db *memory.Store) {
			a, lease := newLeader(t, db)
			synctest.Wait()
			sleep := func(string) { a.clock.Suspend(renew) } // no timer notices
			if a.db.onCall = sleep; sent == 0 {
				sleep("")
			}
			require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
			require.Equal(t, sent, a.db.count("heartbeat"))
		})
	}
}

func TestAHeartbeatThatItsCallerCancelledIsNoOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.db.set(fault{kind: hang}, "heartbeat")
		short, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, lease.Heartbeat(short), context.Canceled)
		require.Zero(t, a.seen.count(schedlock.EventHeartbeatFailed))
		require.True(t, a.leads())
		require.Error(t, lease.Heartbeat(ctx))
		require.Equal(t, 1, a.seen.count(schedlock.EventHeartbeatFailed))
	})
}

func TestAHeartbeatThatFailsAfterTheLeaseHasEndedSaysWhyItHas(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		a.db.set(fault{kind: deaf}, "heartbeat")
		answer := make(chan error, 1)
		go func() { answer <- lease.Heartbeat(ctx) }()
		synctest.Wait()
		lease.StepDown(errBroken)
		a.db.heal()
		require.ErrorIs(t, <-answer, schedlock.ErrLost)
		require.Zero(t, a.seen.count(schedlock.EventHeartbeatFailed))
	})
}

// TestCancelFirstDatabaseSecond looks at the order from where it matters: at
// each statement that is sent when a lease ends, its replica is no leader any
// more and the context of its jobs has been cancelled.
func TestCancelFirstDatabaseSecond(t *testing.T) {
	for name, end := range map[string]func(a *replica, db *memory.Store, lease *schedlock.Lease){
		"row deleted by hand": func(_ *replica, db *memory.Store, lease *schedlock.Lease) {
			db.DeleteRow()
			_ = lease.Heartbeat(ctx)
		},
		"token edited": func(_ *replica, db *memory.Store, lease *schedlock.Lease) {
			db.Edit(func(r *driver.Row) { r.RawToken = "x" })
			_ = lease.Heartbeat(ctx)
		},
		"renew deadline passed": func(a *replica, _ *memory.Store, lease *schedlock.Lease) {
			a.clock.Suspend(renew)
			_ = lease.Heartbeat(ctx)
		},
		"answer past the deadline": func(a *replica, _ *memory.Store, lease *schedlock.Lease) {
			a.db.set(fault{kind: late, after: renew}, "heartbeat")
			_ = lease.Heartbeat(ctx)
		},
		"released": func(*replica, *memory.Store, *schedlock.Lease) {},
		"stopped": func(a *replica, _ *memory.Store, _ *schedlock.Lease) {
			_ = a.lock.Stop(ctx)
		},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, lease := newLeader(t, db)
			job := make(chan struct{})
			stop := context.AfterFunc(lease.Context(), func() { close(job) })
			defer stop()
			var order []string
			a.db.onCall = func(op string) {
				if op == "heartbeat" {
					return // what found out
				}
				order = append(order, op)
				assert.Error(t, a.lock.IsLeader(ctx), "still leader at %s", op)
				assert.Error(t, lease.Context().Err(), "jobs not cancelled at %s", op)
			}
			end(a, db, lease)
			require.NoError(t, lease.Release(ctx))
			require.Contains(t, order, "release")
			<-job
		})
	}
}

func TestARowThatIsNotOursAnyMoreEndsTheLeaseAtTheNextHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		db.Edit(func(r *driver.Row) { r.PID, r.Hostname, r.RawToken = 4711, "elsewhere", "x" })
		require.True(t, a.leads(), "it cannot know yet")
		err := lease.Heartbeat(ctx)
		require.ErrorIs(t, err, schedlock.ErrLost)
		require.Same(t, err, lease.Err())
		require.False(t, a.leads())
		e := a.seen.last(schedlock.EventLost)
		require.Equal(t, lease.Term(), e.Term)
		require.ErrorIs(t, e.Err, schedlock.ErrLost)
		require.Equal(t, 4711, e.Holder.PID, "whom we found in our place")
		require.NoError(t, lease.Release(ctx))
		terms := termsOf(t, db, 1)
		require.Equal(t, driver.EndLost, terms[0].EndReason)
	})
}

func TestSuspendCountsAndAClockThatIsSetDoesNot(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		for _, step := range []time.Duration{time.Hour, -2 * time.Hour, time.Hour} {
			a.clock.StepWall(step)
			require.True(t, a.leads(), "wall clock set by %v", step)
			time.Sleep(every)
			require.True(t, a.leads())
			require.NoError(t, lease.Heartbeat(ctx))
		}
		dbNow := time.Now()
		a.clock.StepWall(time.Hour)
		require.WithinDuration(t, dbNow, lease.Now(), time.Millisecond, "the database's time")

		a.clock.Suspend(renew - time.Second)
		require.True(t, a.leads())
		a.clock.Suspend(time.Second)
		require.False(t, a.leads(), "the first question after the machine woke up")
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
	})
}

func TestASuspendIsNoticedEvenIfNobodyAsks(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		time.Sleep(retry / 2)
		a.clock.Suspend(time.Hour)
		woke := time.Now()
		<-lease.Done()
		require.LessOrEqual(t, time.Since(woke), time.Second)
	})
}

func TestLeaseNowFollowsTheDatabasesClock(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *memory.Store) {
		offset := time.Hour
		db := memory.New(memory.WithClock(func() time.Time { return time.Now().Add(offset) }))
		_, lease := newLeader(t, db)
		time.Sleep(every)
		require.Equal(t, time.Now().Add(time.Hour).UnixMicro(), lease.Now().UnixMicro())
		offset = -time.Hour
		require.Equal(t, time.Now().Add(time.Hour).UnixMicro(), lease.Now().UnixMicro(),
			"as of the last heartbeat")
		require.NoError(t, lease.Heartbeat(ctx))
		require.Equal(t, time.Now().Add(-time.Hour).UnixMicro(), lease.Now().UnixMicro())
	})
}

func TestFence(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		lock, err := schedlock.New(db, schedlock.WithLogger(quiet))
		require.NoError(t, err)
		schedlock.UseBubbleClock(lock)
		lease, err := lock.Acquire(ctx)
		require.NoError(t, err)
		tx := db.Begin()
		defer tx.Rollback()
		require.NoError(t, lease.Fence(ctx, tx))
		require.ErrorIs(t, lease.Fence(ctx, "tx"), schedlock.ErrNoFence)
		require.NoError(t, tx.Commit())
		db.DeleteRow()
		require.ErrorIs(t, lease.Fence(ctx, db.Begin()), schedlock.ErrLost)
		require.NoError(t, lease.Err(), "a heartbeat finds it out")
		require.NoError(t, lease.Release(ctx))
		require.ErrorIs(t, lease.Fence(ctx, db.Begin()), schedlock.ErrReleased)
	})
}

func TestNoGoroutineOutlivesALease(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		here := goleak.IgnoreCurrent()
		a := newReplica(t, db)
		for range 3 {
			require.NoError(t, a.lead().Release(ctx))
		}
		lost := a.lead()
		db.DeleteRow()
		require.Error(t, lost.Heartbeat(ctx))
		goleak.VerifyNone(t, here)
		require.NoError(t, lost.Release(ctx))

		expired := a.lead()
		time.Sleep(renew)
		synctest.Wait()
		require.Error(t, expired.Err())
		goleak.VerifyNone(t, here)
	})
}

func TestIsLeaderAllocatesNothing(t *testing.T) {
	lock, err := schedlock.New(memory.New(), schedlock.WithLogger(quiet))
	require.NoError(t, err)
	standby := testing.AllocsPerRun(100, func() { _ = lock.IsLeader(ctx) })
	lease, err := lock.Acquire(ctx)
	require.NoError(t, err)
	leader := testing.AllocsPerRun(100, func() { _ = lock.IsLeader(ctx) })
	require.NoError(t, lease.Release(ctx))
	assert.Zero(t, standby)
	assert.Zero(t, leader)
}
