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
	"example.com/schedlock/schedlock/memory"
)

// crash ends a replica without a word: nothing it sends arrives any more.
func (r *replica) crash() { r.db.set(fault{kind: hang}) }

func rowOf(t *testing.T, db schedlock.Store) *schedlock.LockInfo {
	t.Helper()
	info, err := schedlock.GetLockInfo(ctx, db)
	require.NoError(t, err)
	return info
}

func TestAReleaseHandsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		first := a.lead()
		waiter := b.stand(t.Context())
		time.Sleep(every / 4)
		require.NoError(t, first.Release(ctx))
		released := time.Now()
		got := <-waiter
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(released), retry)
		require.Greater(t, got.lease.Term(), first.Term())
		require.Equal(t, []schedlock.EventKind{schedlock.EventStandby, schedlock.EventElected}, b.seen.kinds())
		require.Empty(t, b.seen.last(schedlock.EventElected).Reason, "its end was written")
	})
}

func TestADeadHolderIsReplacedAfterItsFullTTLAndNotBefore(t *testing.T) {
	for name, joined := range map[string]time.Duration{
		"a standby that saw its last heartbeat":   0,
		"one that came when it was long past":     59 * time.Second,
		"one that came when the stamp was stale":  2 * time.Hour,
		"one that came with the stamp an age old": 1000 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a, b := newReplica(t, db), newReplica(t, db)
				first := a.lead()
				a.crash()
				time.Sleep(joined)
				start := time.Now()
				got := <-b.stand(t.Context())
				require.NoError(t, got.err)
				assert.GreaterOrEqual(t, got.at.Sub(start), ttl)
				assert.LessOrEqual(t, got.at.Sub(start), ttl+retry)
				assert.Equal(t, schedlock.EndExpired, b.seen.last(schedlock.EventElected).Reason)
				terms, err := db.Terms(ctx, 9)
				require.NoError(t, err)
				require.Len(t, terms, 2)
				assert.Equal(t, first.Term(), terms[1].Term)
				assert.Equal(t, schedlock.EndExpired, terms[1].EndReason)
				assert.Equal(t, got.lease.Term(), terms[1].NextTerm)
			})
		})
	}
}

func TestAStandbyJudgesByTheHoldersTimingNotItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db, schedlock.WithTTL(4*ttl))
		b := newReplica(t, db, schedlock.WithTTL(ttl/10), schedlock.WithHeartbeatInterval(time.Second))
		a.lead()
		start := time.Now()
		got := <-b.stand(t.Context())
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(start), 4*ttl)
		require.LessOrEqual(t, got.at.Sub(start), 4*ttl+retry)
	})
}

func TestALookThatIsSlowDoesNotShortenTheWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		a.lead()
		b.db.set(fault{kind: late, after: 5 * time.Second}, "look")
		start := time.Now()
		got := <-b.stand(t.Context())
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(start), ttl+2*5*time.Second, "first answered at 5 s, the last sent 60 s later, 5 s on its way")
	})
}

func TestAWatchStartsAnewOnAnotherServer(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		a.lead()
		start := time.Now()
		b.db.onView = func(v schedlock.View) schedlock.View {
			v.Epoch = "timeline 1"
			if time.Since(start) >= ttl/2 {
				v.Epoch = "timeline 2"
			}
			return v
		}
		got := <-b.stand(t.Context())
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(start), ttl/2+ttl)
	})
}

func TestAHolderThatIsProvenDeadIsReplacedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		first := a.lead()
		b.db.onView = func(v schedlock.View) schedlock.View {
			if v.Row != nil && v.Row.Token == first.Ref().Token {
				v.Sign = schedlock.SignDead
			}
			return v
		}
		start := time.Now()
		b.lead()
		require.Zero(t, time.Since(start))
		e := b.seen.last(schedlock.EventElected)
		require.Equal(t, schedlock.EndProvenDead, e.Reason)
		require.Equal(t, first.Term(), e.Holder.Term)
	})
}

func TestTwoStandbysThatJudgedTheSameDeadRowAreNotDoubled(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b, c := newReplica(t, db), newReplica(t, db), newReplica(t, db)
		a.lead()
		a.crash()
		// Both send their acquisition before either arrives.
		gate := make(chan struct{})
		for _, r := range []*replica{b, c} {
			r.db.onCall = func(op string) {
				if op == "acquire" {
					<-gate
				}
			}
		}
		waitCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		first, second := b.stand(waitCtx), c.stand(waitCtx)
		time.Sleep(ttl + retry)
		require.Equal(t, []int{1, 1}, []int{b.db.count("acquire"), c.db.count("acquire")})
		close(gate)
		synctest.Wait()
		requireOneLeader(t, a, b, c)
		require.True(t, b.leads() || c.leads())
		time.Sleep(every / 2)
		synctest.Wait()
		requireOneLeader(t, a, b, c)
		cancel()
		x, y := <-first, <-second
		require.True(t, (x.err == nil) != (y.err == nil), "one leads, the other stands by")
		terms, err := db.Terms(ctx, 9)
		require.NoError(t, err)
		require.Len(t, terms, 2)
	})
}

func TestTheAnswerOfAnAcquisitionThatWasLostIsFoundByItsToken(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.db.next(fault{kind: lost}, "acquire")
		lease, err := a.lock.Wait(ctx)
		require.NoError(t, err)
		require.True(t, a.leads())
		require.Equal(t, 1, a.db.count("acquire"))
		require.Equal(t, lease.Term(), rowOf(t, db).Term)
		require.NoError(t, lease.Heartbeat(ctx))
	})
}

func TestARowThatAppearsAfterItsAcquisitionWasGivenUpIsDropped(t *testing.T) {
	for name, plan := range map[string]func(op string, n int) fault{
		"applied late": func(op string, n int) fault {
			if op == "acquire" && n == 1 {
				return fault{kind: lateApply, after: retry / 2}
			}
			return fault{}
		},
		"applied, but neither answered nor found": func(op string, n int) fault {
			switch {
			case op == "acquire" && n == 1:
				return fault{kind: lost}
			case op == "look" && n == 2:
				return fault{kind: broken}
			}
			return fault{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a := newReplica(t, db)
				calls := map[string]int{}
				a.db.planned(func(op string) fault { calls[op]++; return plan(op, calls[op]) })
				start := time.Now()
				lease, err := a.lock.Wait(ctx)
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(start), 2*retry, "not after the TTL of its own row")
				terms, err := db.Terms(ctx, 9)
				require.NoError(t, err)
				require.Len(t, terms, 2)
				require.Equal(t, schedlock.EndReleased, terms[1].EndReason)
				require.Equal(t, lease.Term(), terms[0].Term)
				require.Equal(t, 1, a.seen.count(schedlock.EventElected))
			})
		})
	}
}

func TestACancelledWaitNeverLeadsAfterwards(t *testing.T) {
	for name, fa := range map[string]fault{
		"while the acquisition hangs":      {kind: hang},
		"its answer comes later":           {kind: late, after: 20 * time.Second},
		"its answer is lost, and later":    {kind: lost, after: 20 * time.Second},
		"it is applied later":              {kind: slowApply, after: 20 * time.Second},
		"it is refused, and applied later": {kind: lateApply, after: 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a := newReplica(t, db)
				a.db.set(fa, "acquire")
				waitCtx, cancel := context.WithCancel(ctx)
				waiter := a.stand(waitCtx)
				time.Sleep(retry / 2)
				cancel()
				got := <-waiter
				require.ErrorIs(t, got.err, context.Canceled)
				require.Nil(t, got.lease)
				require.False(t, a.leads())
				a.db.planned(nil)
				time.Sleep(30 * time.Second)
				require.False(t, a.leads())
				require.Zero(t, a.seen.count(schedlock.EventElected))
				if fa.kind != slowApply && fa.kind != lateApply {
					require.Nil(t, rowOf(t, db), "what it got was given back")
					return
				}
				require.NotNil(t, rowOf(t, db), "it appeared when nobody looked any more")
				require.NoError(t, a.lock.Stop(ctx))
				require.Nil(t, rowOf(t, db), "and Stop gives it back")
			})
		})
	}
}

func TestTheNextWaitGivesBackWhatACancelledOneGotLater(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.db.set(fault{kind: slowApply, after: 3 * time.Second}, "acquire")
		waitCtx, cancel := context.WithTimeout(ctx, retry)
		defer cancel()
		_, err := a.lock.Wait(waitCtx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		a.db.planned(nil)
		time.Sleep(5 * time.Second)
		abandoned := rowOf(t, db).Term
		start := time.Now()
		lease, err := a.lock.Wait(ctx)
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
		require.Greater(t, lease.Term(), abandoned)
	})
}

func TestACancelledWaitReturnsTheCause(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		a.lead()
		here := goleak.IgnoreCurrent()
		waitCtx, cancel := context.WithCancelCause(ctx)
		waiter := b.stand(waitCtx)
		time.Sleep(every / 3)
		cancel(errBroken)
		got := <-waiter
		require.ErrorIs(t, got.err, errBroken)
		goleak.VerifyNone(t, here)
		_, err := b.lock.Wait(waitCtx)
		require.ErrorIs(t, err, errBroken, "before the first look too")
	})
}

func TestAnOutageDoesNotEndAWait(t *testing.T) {
	for name, fa := range map[string]fault{"refused": {kind: broken}, "hangs": {kind: hang}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a := newReplica(t, db)
				a.db.set(fa)
				waiter := a.stand(t.Context())
				time.Sleep(time.Hour)
				require.Empty(t, waiter)
				require.Contains(t, a.lock.Status().Reason, "cannot read the lock: ")
				a.db.heal()
				healed := time.Now()
				got := <-waiter
				require.NoError(t, got.err)
				require.LessOrEqual(t, got.at.Sub(healed), every+retry)
				require.Equal(t, 1, a.seen.count(schedlock.EventStoreRecovered))
			})
		})
	}
}

func TestAHintBringsTheNextLookForward(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newFaulty(db)
		lease := a.lead()
		gone := make(chan struct{})
		b.hint = func(ctx context.Context, v schedlock.View) {
			select {
			case <-gone:
			case <-ctx.Done():
			}
		}
		lock, err := schedlock.New(hinted{b}, schedlock.WithLogger(quiet))
		require.NoError(t, err)
		schedlock.UseBubbleClock(lock)
		led := make(chan time.Time, 1)
		go func() {
			if lease, err := lock.Wait(ctx); err == nil {
				led <- time.Now()
				_ = lease.Release(ctx)
			}
		}()
		time.Sleep(retry / 4)
		require.NoError(t, lease.Release(ctx))
		released := time.Now()
		close(gone)
		require.Zero(t, (<-led).Sub(released))
	})
}

// The one-shot Acquire.

func TestAcquireOfAFreshlyHeldLockFailsAtOnceAndSaysWhoHoldsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db, schedlock.WithOwner(schedlock.Owner{PID: 4711, Hostname: "web-1"})), newReplica(t, db)
		lease := a.lead()
		time.Sleep(every)
		require.NoError(t, lease.Heartbeat(ctx))
		time.Sleep(every / 2)
		start := time.Now()
		got, err := b.lock.Acquire(ctx)
		require.Nil(t, got)
		require.Zero(t, time.Since(start))
		require.ErrorIs(t, err, schedlock.ErrHeld)
		var held *schedlock.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, 4711, held.Info.PID)
		require.Equal(t, "web-1", held.Info.Hostname)
		require.Equal(t, lease.Term(), held.Info.Term)
		require.Equal(t, 15*time.Second, held.Info.Age)
		require.Equal(t, 5*time.Second, held.Info.HeartbeatAge)
		require.Equal(t, int64(1), held.Info.Beat)
		for _, part := range []string{"pid 4711", `host "web-1"`, "for 15s", "last heartbeat was 5s ago", "TTL 1m0s", "stop that process", "wait until the TTL has passed"} {
			require.ErrorContains(t, err, part)
		}
	})
}

func TestAcquireRespectsAHolderWhoseStampsAreWrong(t *testing.T) {
	for name, shift := range map[string]time.Duration{"an hour in the past": time.Hour, "an hour in the future": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a, b := newReplica(t, db), newReplica(t, db)
				defer beat(a.lead())()
				b.db.onView = func(v schedlock.View) schedlock.View { v.Now = v.Now.Add(shift); return v }
				start := time.Now()
				_, err := b.lock.Acquire(ctx)
				require.ErrorIs(t, err, schedlock.ErrHeld)
				require.LessOrEqual(t, time.Since(start), every+retry, "as soon as the beat moved")
				require.True(t, a.leads())
			})
		})
	}
}

func TestAcquireTakesADeadHoldersLockAfterTheFullTTL(t *testing.T) {
	for name, shift := range map[string]time.Duration{"stale stamp": time.Hour, "stamp in the future": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a, b := newReplica(t, db), newReplica(t, db)
				a.lead()
				a.crash()
				b.db.onView = func(v schedlock.View) schedlock.View { v.Now = v.Now.Add(shift); return v }
				start := time.Now()
				b.lead()
				require.GreaterOrEqual(t, time.Since(start), ttl)
				require.LessOrEqual(t, time.Since(start), ttl+retry)
			})
		})
	}
}

func TestAcquireThatLosesTheRaceSaysWhoWon(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		b.db.onCall = func(op string) {
			if op == "acquire" && !a.leads() {
				a.lead()
			}
		}
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		requireOneLeader(t, a, b)
	})
}

func TestAcquireReportsAnOutage(t *testing.T) {
	for _, op := range []string{"look", "acquire"} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			a.db.set(fault{kind: broken}, op)
			_, err := a.lock.Acquire(ctx)
			require.ErrorIs(t, err, errBroken)
			require.NotErrorIs(t, err, schedlock.ErrHeld)
		})
	}
}

// Rows that a hand, or a backup, has changed.

func TestARowDeletedByHand(t *testing.T) {
	t.Run("its holder steps down, and hands over when its jobs have returned", func(t *testing.T) {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			start := time.Now()
			lease := a.lead()
			defer beat(lease)()
			waiter := b.stand(t.Context())
			sleepUntil(start, every/2)
			db.DeleteRow()
			sleepUntil(start, every-time.Millisecond)
			require.True(t, a.leads())
			require.False(t, b.leads())
			sleepUntil(start, every)
			require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
			require.Contains(t, b.lock.Status().Reason, "there is no lock row, but term")
			sleepUntil(start, 2*every)
			require.False(t, b.leads(), "jobs of the old leader may still run")
			require.NoError(t, lease.Release(ctx))
			got := <-waiter
			require.NoError(t, got.err)
			require.LessOrEqual(t, got.at.Sub(start), 2*every+retry)
			require.Greater(t, got.lease.Term(), lease.Term())
		})
	})
	t.Run("its holder is dead: its TTL must pass", func(t *testing.T) {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			a.lead()
			a.crash()
			db.DeleteRow()
			start := time.Now()
			got := <-b.stand(t.Context())
			require.NoError(t, got.err)
			require.GreaterOrEqual(t, got.at.Sub(start), ttl)
			require.LessOrEqual(t, got.at.Sub(start), ttl+retry)
			require.Equal(t, schedlock.EndExpired, b.seen.last(schedlock.EventElected).Reason)
		})
	})
	t.Run("a one-shot Acquire waits for that too", func(t *testing.T) {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			a.lead()
			a.crash()
			db.DeleteRow()
			start := time.Now()
			b.lead()
			require.GreaterOrEqual(t, time.Since(start), ttl)
		})
	})
}

func TestARestoredBackupDoesNotMakeAStandbyForgetTheHolder(t *testing.T) {
	for name, prepare := range map[string]func(a *replica){
		"an empty database": func(*replica) {},
		"one whose newest term was released": func(a *replica) {
			require.NoError(a.t, a.lead().Release(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a, b := newReplica(t, db), newReplica(t, db)
				prepare(a)
				restore := db.Backup()
				lease := a.lead()
				waiter := b.stand(t.Context())
				time.Sleep(every / 2)
				restore()
				start := time.Now()
				time.Sleep(every / 2)
				require.True(t, a.leads(), "it cannot know yet")
				require.False(t, b.leads())
				require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
				got := <-waiter
				require.NoError(t, got.err)
				require.GreaterOrEqual(t, got.at.Sub(start), ttl)
				require.Greater(t, got.lease.Term(), lease.Term(), "though the database has forgotten that term")
			})
		})
	}
}

func TestATermThatOnlyTheRowBearsIsRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		lease := a.lead()
		forget := func(v schedlock.View) schedlock.View { v.Newest = nil; return v } // the history was emptied
		b.db.onView = forget
		waiter := b.stand(t.Context())
		time.Sleep(retry / 2)
		db.DeleteRow()
		start := time.Now()
		time.Sleep(every)
		require.True(t, a.leads())
		require.False(t, b.leads(), "the row of term %d was seen a moment ago", lease.Term())
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
		require.Equal(t, lease.Term(), schedlock.Known(b.lock).Term)
		time.Sleep(ttl - every - time.Second)
		require.False(t, b.leads())
		require.Less(t, time.Since(start), ttl)
		require.Empty(t, waiter)
	})
}

func TestAnEditedRowDoesNotShortenWhatIsRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		empty := db.Backup()
		lease := a.lead()
		waiter := b.stand(t.Context())
		db.Edit(func(r *schedlock.Row) { r.Term++; r.Timing.TTL = time.Millisecond })
		time.Sleep(2 * retry)
		empty()
		start := time.Now()
		time.Sleep(every / 2)
		require.True(t, a.leads(), "it cannot know yet")
		require.False(t, b.leads())
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
		got := <-waiter
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(start), ttl)
		require.Greater(t, got.lease.Term(), lease.Term()+1)
	})
}

func TestAnEditedTTLDoesNotShortenTheWatch(t *testing.T) {
	for _, edited := range []time.Duration{time.Millisecond, 0, -time.Hour} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			b := newReplica(t, db, schedlock.WithTTL(ttl/10), schedlock.WithHeartbeatInterval(time.Second))
			lease := a.lead()
			db.Edit(func(r *schedlock.Row) { r.Timing.TTL = edited })
			start := time.Now()
			got := <-b.stand(t.Context())
			require.NoError(t, got.err)
			require.GreaterOrEqual(t, got.at.Sub(start), ttl, "TTL edited to %v", edited)
			require.Error(t, lease.Err())
		})
	}
}

func TestAnEditedTokenIsNobodys(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		start := time.Now()
		lease := a.lead()
		defer beat(lease)()
		waiter := b.stand(t.Context())
		sleepUntil(start, every/2)
		db.Edit(func(r *schedlock.Row) { r.RawToken = "garbage" })
		sleepUntil(start, every)
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
		require.False(t, b.leads())
		require.NoError(t, lease.Release(ctx), "cannot delete the row, but writes the end of the term")
		got := <-waiter
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(start), every+2*retry, "a leftover")
	})
}

func TestAHugeEditedTermDoesNotKeepEverybodyOut(t *testing.T) {
	for _, edited := range []int64{1 << 60, 1<<63 - 1, -1, 0} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			lease := a.lead()
			db.Edit(func(r *schedlock.Row) { r.Term = edited })
			waiter := b.stand(t.Context())
			require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
			require.NoError(t, lease.Release(ctx))
			start := time.Now()
			got := <-waiter
			require.NoError(t, got.err)
			require.LessOrEqual(t, got.at.Sub(start), ttl+retry)
			require.Greater(t, got.lease.Term(), lease.Term())
			require.NoError(t, got.lease.Heartbeat(ctx))

			waiter = a.stand(t.Context())
			require.NoError(t, got.lease.Release(ctx))
			got = <-waiter
			require.NoError(t, got.err)
			waiter = b.stand(t.Context())
			require.NoError(t, got.lease.Release(ctx))
			start = time.Now()
			require.NoError(t, (<-waiter).err)
			require.LessOrEqual(t, time.Since(start), retry, "term %d: all is as before", edited)
		})
	}
}

// The life of a Lock.

func TestANewCampaignIsRefusedUntilTheLastLeaseWasGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		lease := a.lead()
		_, err := a.lock.Wait(ctx)
		require.ErrorContains(t, err, "was not released yet")
		db.DeleteRow()
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
		for _, campaign := range []func(context.Context) (*schedlock.Lease, error){a.lock.Wait, a.lock.Acquire} {
			_, err = campaign(ctx)
			require.ErrorContains(t, err, "was not released yet: call Release when its work has returned", "its jobs may still run")
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
		a := newReplica(t, db)
		lease := a.lead()
		a.db.set(fault{kind: broken})
		require.Error(t, lease.Release(ctx))
		waiter := a.stand(t.Context())
		time.Sleep(every)
		require.NotNil(t, rowOf(t, db))
		a.db.heal()
		healed := time.Now()
		got := <-waiter
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(healed), retry, "not after the TTL of its own old row")
		terms, err := db.Terms(ctx, 9)
		require.NoError(t, err)
		require.Equal(t, schedlock.EndReleased, terms[1].EndReason)
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
	t.Run("ends a Wait", func(t *testing.T) {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			lease := a.lead()
			waiter := b.stand(ctx)
			time.Sleep(retry / 2)
			require.NoError(t, b.lock.Stop(ctx))
			stopped := time.Now()
			require.NoError(t, lease.Release(ctx))
			got := <-waiter
			require.ErrorIs(t, got.err, schedlock.ErrStopped)
			require.LessOrEqual(t, got.at.Sub(stopped), retry)
			require.Equal(t, schedlock.SelfStopped, b.lock.Status().State)
			_, err := b.lock.Acquire(ctx)
			require.ErrorIs(t, err, schedlock.ErrStopped)
			require.Nil(t, rowOf(t, db))
		})
	})
	t.Run("releases a lease", func(t *testing.T) {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			lease := a.lead()
			a.db.next(fault{kind: broken}, "release")
			require.ErrorIs(t, a.lock.Stop(ctx), errBroken)
			require.ErrorIs(t, lease.Err(), schedlock.ErrReleased)
			require.NoError(t, a.lock.Stop(ctx), "it may be called again")
			require.NoError(t, a.lock.Stop(ctx))
			require.Nil(t, rowOf(t, db))
		})
	})
	t.Run("while the acquisition is under way", func(t *testing.T) {
		inBubble(t, func(t *testing.T, db *memory.Store) {
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
	})
	t.Run("reports that it could not look for what was never answered", func(t *testing.T) {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			a.db.set(fault{kind: broken}, "acquire")
			_, err := a.lock.Acquire(ctx)
			require.ErrorIs(t, err, errBroken)
			a.db.set(fault{kind: broken})
			require.ErrorIs(t, a.lock.Stop(ctx), errBroken)
			a.db.heal()
			require.NoError(t, a.lock.Stop(ctx))
		})
	})
}

func TestStatusSaysWhy(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db, schedlock.WithOwner(schedlock.Owner{PID: 4711, Hostname: "web-1"})), newReplica(t, db)
		require.Equal(t, schedlock.SelfStarting, b.lock.Status().State)
		lease := a.lead()
		waiter := b.stand(t.Context())
		time.Sleep(every + every/2)
		s := a.lock.Status()
		require.Equal(t, schedlock.Status{State: schedlock.SelfLeading, Leader: true, Term: lease.Term(), Reason: "holds the lock; last confirmed 15s ago, trusted for 45s"}, s)
		s = b.lock.Status()
		require.Equal(t, schedlock.SelfStandby, s.State)
		require.Equal(t, "pid 4711 on host \"web-1\" leads (term "+itoa(lease.Term())+"), last heartbeat 15s ago; takes over after 45s without another", s.Reason)
		time.Sleep(renew - every - every/2)
		s = a.lock.Status()
		require.Equal(t, schedlock.SelfStandby, s.State)
		require.Contains(t, s.Reason, "its work is returning")
		require.NoError(t, (<-waiter).err)
		require.Equal(t, schedlock.SelfLeading, b.lock.Status().State)
		require.NoError(t, b.lock.Stop(ctx))
		require.Equal(t, schedlock.Status{State: schedlock.SelfStopped, Reason: "was stopped and will not lead again"}, b.lock.Status())
	})
}

func TestGetLockInfo(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		info, err := schedlock.GetLockInfo(ctx, db)
		require.NoError(t, err)
		require.Nil(t, info, "free")
		down := newFaulty(db)
		down.set(fault{kind: broken})
		info, err = schedlock.GetLockInfo(ctx, down)
		require.ErrorIs(t, err, errBroken, "could not read is not free")
		require.Nil(t, info)

		a := newReplica(t, db)
		lease := a.lead()
		time.Sleep(every)
		require.NoError(t, lease.Heartbeat(ctx))
		time.Sleep(time.Second)
		require.Equal(t, schedlock.LockInfo{
			PID: a.lock.Owner().PID, Hostname: "test", Term: lease.Term(), Beat: 1, State: schedlock.StateLeading,
			CreatedAt: time.Now().Add(-every - time.Second).UTC(), HeartbeatAt: time.Now().Add(-time.Second).UTC(),
			Age: every + time.Second, HeartbeatAge: time.Second, Timing: a.lock.Timing(),
		}, *rowOf(t, db))
	})
}

func TestTokensAreTheirOwnText(t *testing.T) {
	token := schedlock.NewToken()
	parsed, err := schedlock.ParseToken(token.String())
	require.NoError(t, err)
	require.Equal(t, token, parsed)
	require.NotEqual(t, token, schedlock.NewToken())
	for _, bad := range []string{"", "x", token.String()[1:], token.String() + "0", "zz" + token.String()[2:]} {
		parsed, err := schedlock.ParseToken(bad)
		require.Error(t, err, bad)
		require.Zero(t, parsed)
	}
}
