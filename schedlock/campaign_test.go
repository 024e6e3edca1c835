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

// crash ends a replica without a word: nothing it sends arrives any more.
func (r *replica) crash() { r.db.set(fault{kind: hang}) }

func rowOf(t *testing.T, db driver.Store) *schedlock.LockInfo {
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
		got := wins(t, waiter)
		require.LessOrEqual(t, got.at.Sub(released), retry)
		require.Greater(t, got.lease.Term(), first.Term())
		require.Equal(t, []schedlock.EventKind{schedlock.EventStandby, schedlock.EventElected},
			b.seen.kinds())
		require.Equal(t, driver.EndReleased, b.seen.last(schedlock.EventElected).Reason,
			"as it was written")
	})
}

func TestADeadHolderIsReplacedAfterItsFullTTLAndNotBefore(t *testing.T) {
	for name, joined := range map[string]time.Duration{
		"a standby that saw its last heartbeat":   0,
		"one that came when it was long past":     59 * time.Second,
		"one that came when the stamp was stale":  2 * time.Hour,
		"one that came with the stamp an age old": 1000 * time.Hour,
		"one that finds the history emptied":      -1,
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			b.db.onView = func(v driver.Snapshot) driver.Snapshot {
				if joined < 0 {
					v.Newest = nil
				}
				return v
			}
			first := a.lead()
			a.crash()
			time.Sleep(joined)
			start := time.Now()
			got := wins(t, b.stand(t.Context()))
			assert.GreaterOrEqual(t, got.at.Sub(start), ttl)
			assert.LessOrEqual(t, got.at.Sub(start), ttl+retry)
			assert.Equal(t, driver.EndExpired, b.seen.last(schedlock.EventElected).Reason)
			terms := termsOf(t, db, 2)
			assert.Equal(t, first.Term(), terms[1].Term)
			assert.Equal(t, driver.EndExpired, terms[1].EndReason)
			assert.Equal(t, got.lease.Term(), terms[1].NextTerm)
		})
	}
}

func TestAStandbyJudgesByTheHoldersTimingNotItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db, schedlock.WithTTL(4*ttl))
		b := newReplica(t, db, schedlock.WithTTL(ttl/10),
			schedlock.WithHeartbeatInterval(time.Second))
		a.lead()
		start := time.Now()
		got := wins(t, b.stand(t.Context()))
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
		got := wins(t, b.stand(t.Context()))
		require.GreaterOrEqual(t, got.at.Sub(start), ttl+2*5*time.Second,
			"first answered at 5 s, the last sent 60 s later, 5 s on its way")
	})
}

func TestAWatchStartsAnewOnAnotherServer(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		a.lead()
		start := time.Now()
		b.db.onView = func(v driver.Snapshot) driver.Snapshot {
			v.Incarnation = "timeline 1"
			if time.Since(start) >= ttl/2 {
				v.Incarnation = "timeline 2"
			}
			return v
		}
		got := wins(t, b.stand(t.Context()))
		require.GreaterOrEqual(t, got.at.Sub(start), ttl/2+ttl)
	})
}

func TestAHolderThatIsProvenDeadIsReplacedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		first := a.lead()
		b.db.onView = func(v driver.Snapshot) driver.Snapshot {
			if v.Row != nil && v.Row.Token == first.Ref().Token {
				v.Sign = driver.SignDead
			}
			return v
		}
		start := time.Now()
		b.lead()
		require.Zero(t, time.Since(start))
		e := b.seen.last(schedlock.EventElected)
		require.Equal(t, driver.EndProvenDead, e.Reason)
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
		termsOf(t, db, 2)
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
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			calls := map[string]int{}
			a.db.planned(func(op string) fault { calls[op]++; return plan(op, calls[op]) })
			start := time.Now()
			lease, err := a.lock.Wait(ctx)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(start), 2*retry,
				"not after the TTL of its own row")
			terms := termsOf(t, db, 2)
			require.Equal(t, driver.EndReleased, terms[1].EndReason)
			require.Equal(t, lease.Term(), terms[0].Term)
			require.Equal(t, 1, a.seen.count(schedlock.EventElected))
		})
	}
}

// Whoever gives back what it has acquired without knowing hears of that release, too.
func TestTheNewsOfItsOwnReleaseEndsNoPauseOfAReplica(t *testing.T) {
	campaigns := func(t *testing.T, r *replica, mayFind bool) {
		told, unsure := make(chan driver.Release, 1), false
		r.db.planned(func(op string) fault {
			defer func() { unsure = op == "acquire" }()
			switch {
			case op == "acquire":
				return fault{kind: lost, after: 10 * time.Millisecond}
			case op == "look" && unsure && !mayFind:
				return fault{kind: broken}
			}
			return fault{}
		})
		r.db.onCall = func(op string) {
			if op == "release" {
				select {
				case told <- driver.Release{}:
				default:
				}
			}
		}
		r.db.hint = func(ctx context.Context, _ driver.Snapshot) driver.Release {
			select {
			case release := <-told:
				return release
			case <-ctx.Done():
				return driver.Release{}
			}
		}
		limited, cancel := context.WithTimeout(ctx, ttl)
		defer cancel()
		_, err := r.lock.Wait(limited)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Greater(t, r.db.count("release"), 10)
		require.LessOrEqual(t, r.db.count("acquire"), int(ttl/retry)+1)
	}
	serve(t, "whose session would be a sign", func(t *testing.T, db *server) {
		r, _ := newHeld(t, db)
		campaigns(t, r, true)
	})
	bubble(t, "that cannot look after its row", func(t *testing.T, db *memory.Store) {
		campaigns(t, newReplica(t, db), false)
	})
}

func TestACancelledWaitNeverLeadsAfterwards(t *testing.T) {
	for name, fa := range map[string]fault{
		"while the acquisition hangs":      {kind: hang},
		"its answer comes later":           {kind: late, after: 20 * time.Second},
		"its answer is lost, and later":    {kind: lost, after: 20 * time.Second},
		"it is applied later":              {kind: slowApply, after: 20 * time.Second},
		"it is refused, and applied later": {kind: lateApply, after: 20 * time.Second},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
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
			require.Equal(t, fa.kind == lateApply, a.seen.count(schedlock.EventStoreFailed) > 0,
				"that the caller has gone is no failure of the database")
			a.db.planned(nil)
			time.Sleep(30 * time.Second)
			require.False(t, a.leads())
			require.Zero(t, a.seen.count(schedlock.EventElected))
			if fa.kind != slowApply && fa.kind != lateApply {
				require.Nil(t, rowOf(t, db), "what it got was given back")
				return
			}
			abandoned := rowOf(t, db)
			require.NotNil(t, abandoned, "it appeared when nobody looked any more")
			if fa.kind == slowApply {
				start := time.Now()
				require.Greater(t, a.lead().Term(), abandoned.Term, "the next one gives it back")
				require.Zero(t, time.Since(start))
				return
			}
			require.NoError(t, a.lock.Stop(ctx))
			require.Nil(t, rowOf(t, db), "and Stop gives it back")
		})
	}
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
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			a.db.set(fa)
			waiter := a.stand(t.Context())
			time.Sleep(time.Hour)
			require.Empty(t, waiter)
			require.Contains(t, a.lock.Status().Reason, "cannot read the lock: ")
			a.db.heal()
			healed := time.Now()
			got := wins(t, waiter)
			require.LessOrEqual(t, got.at.Sub(healed), every+retry)
			require.Equal(t, 1, a.seen.count(schedlock.EventStoreRecovered))
		})
	}
}

func TestAHintBringsTheNextLookForward(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		lease := a.lead()
		gone := make(chan struct{})
		b.db.hint = func(ctx context.Context, _ driver.Snapshot) (untold driver.Release) {
			select {
			case <-gone:
			case <-ctx.Done():
			}
			return untold
		}
		waiter := b.stand(t.Context())
		time.Sleep(retry / 4)
		require.NoError(t, lease.Release(ctx))
		released := time.Now()
		close(gone)
		require.Zero(t, wins(t, waiter).at.Sub(released))
	})
}

// tells lets the store of r give what is sent as hints.
func tells(r *replica) chan<- driver.Release {
	news := make(chan driver.Release)
	r.db.hint = func(ctx context.Context, _ driver.Snapshot) (told driver.Release) {
		select {
		case told = <-news:
		case <-ctx.Done():
		}
		return told
	}
	return news
}

func TestAReleaseThatIsToldOfIsClaimedWithoutALook(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		news := tells(b)
		lease := a.lead()
		waiter := b.stand(t.Context())
		time.Sleep(retry / 4)
		require.NoError(t, lease.Release(ctx))
		end := termsOf(t, db, 1)[0].EndedAt
		time.Sleep(retry / 4)
		looks := b.db.count("look")
		news <- driver.Release{Term: lease.Term(), At: end}
		got := wins(t, waiter)
		require.Equal(t, looks, b.db.count("look"))
		require.Greater(t, got.lease.Term(), lease.Term())
		elected := b.seen.last(schedlock.EventElected)
		require.Equal(t, driver.EndReleased, elected.Reason)
		require.Equal(t, retry/4, elected.Gap)
	})
}

func TestAReleaseThatNeverWasElectsNobody(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(db *memory.Store, b *replica)
		told   int64 // above the term that leads
		claims int
	}{
		"the row is there": {claims: 1},
		"the row is gone": {before: func(db *memory.Store, _ *replica) { db.DeleteRow() },
			claims: 1},
		"it is of a term past": {told: -1},
		"it is of one to come": {told: 1},
		"after a fail-over": {before: func(_ *memory.Store, b *replica) {
			b.db.onView = func(v driver.Snapshot) driver.Snapshot {
				v.FailedOver = true
				return v
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, db *memory.Store) {
				a, b := newReplica(t, db), newReplica(t, db)
				news := tells(b)
				lease := a.lead()
				if tc.before != nil && tc.claims == 0 {
					tc.before(db, b)
				}
				waiter := b.stand(t.Context())
				time.Sleep(every + every/40) // between two looks
				if tc.before != nil && tc.claims > 0 {
					tc.before(db, b)
				}
				for range 5 {
					news <- driver.Release{Term: lease.Term() + tc.told, At: time.Now()}
					time.Sleep(20 * time.Millisecond)
				}
				require.Empty(t, waiter)
				require.Equal(t, tc.claims, b.db.count("acquire"), "claims, of five notifications")
			})
		})
	}
}
