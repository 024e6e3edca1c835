package named_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
)

func TestALockIsHeldUntilItIsReleased(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.two()
		held, err := a.Locked(ctx, "x")
		require.NoError(t, err)
		require.False(t, held)

		lock := try(t, a, "x")
		require.Equal(t, "x", lock.Name())
		require.NoError(t, lock.Check())
		require.NoError(t, lock.Err())
		owned, err := lock.Owned(ctx)
		require.NoError(t, err)
		require.True(t, owned)
		held, err = b.Locked(ctx, "x")
		require.NoError(t, err)
		require.True(t, held)

		time.Sleep(2 * time.Second)
		_, err = b.TryLock(ctx, "x")
		require.EqualError(t, heldBy(t, err, 1),
			`lock "x" is held: it was taken by pid 1 on host "test" (term 946684800000), 2s ago, `+
				`and ends in 28s unless it is extended or released`)
		_, err = a.TryLock(ctx, "x")
		heldBy(t, err, 1) // not reentrant
		other := try(t, b, "X")
		require.NoError(t, other.Unlock(ctx))

		require.NoError(t, lock.Unlock(ctx))
		require.ErrorIs(t, lock.Err(), schedlock.ErrReleased)
		require.EqualError(t, lock.Check(), `lock "x" (term 946684800000) was released`)
		require.ErrorIs(t, lock.Extend(ctx), schedlock.ErrReleased)
		require.ErrorIs(t, lock.Fence(ctx, nil), schedlock.ErrReleased)
		require.NoError(t, lock.Unlock(ctx), "again")
		owned, err = lock.Owned(ctx)
		require.NoError(t, err)
		require.False(t, owned)
		next := try(t, b, "x")
		require.Greater(t, next.Term(), lock.Term())
		require.NoError(t, lock.Unlock(ctx), "again, when another has it")
		require.NoError(t, next.Check())
		require.NotNil(t, w.row(named.KindLock, "x"))
		require.NoError(t, next.Unlock(ctx))
	})
}

// A holder that sleeps past its lock: its context has ended before another can
// enter, and what it says late touches nothing.
func TestAHolderThatSleepsLosesItsLockBeforeAnotherHasIt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.two()
		start := at()
		lock := try(t, a, "x")
		ended := make(chan time.Duration, 1)
		context.AfterFunc(lock.Context(), func() { ended <- at() - start })
		next, err := b.Lock(ctx, "x")
		require.NoError(t, err)
		entered := at() - start
		require.Equal(t, trusted, <-ended)
		require.GreaterOrEqual(t, entered, ttl)
		require.Less(t, entered, ttl+10*time.Millisecond)

		before := *w.row(named.KindLock, "x")
		wantLost(t, lock)
		err = lock.Unlock(ctx)
		require.ErrorIs(t, err, driver.ErrLost)
		require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost, "again")
		require.Equal(t, before, *w.row(named.KindLock, "x"))
		require.NoError(t, next.Check())
		require.NoError(t, next.Unlock(ctx))
	})
}

func TestALostLockFreesItsRowWhereItIsStillOurs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, _ := w.held()
		<-lock.Done()
		require.NotNil(t, w.row(named.KindLock, "x"))
		require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
		require.Nil(t, w.row(named.KindLock, "x"), "nobody has to wait for the TTL")
	})
}

func TestKeepAlive(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, store := w.held()
		for range 2 {
			lock.KeepAlive()
		}
		time.Sleep(time.Hour + time.Millisecond)
		require.NoError(t, lock.Check())
		require.Equal(t, int(time.Hour/(ttl/3)), store.count("extend"))
		require.LessOrEqual(t, lock.Confirmed(), ttl/3)

		// An outage that is shorter than what is left.
		store.during(only("extend", errRefused), nil)
		time.Sleep(trusted - ttl/3 - time.Second)
		require.NoError(t, lock.Check())
		store.during(nil, nil)
		time.Sleep(2 * time.Second)
		require.Less(t, lock.Confirmed(), 2*time.Second)

		// One that is longer.
		store.during(only("extend", errRefused), nil)
		<-lock.Done()
		wantLost(t, lock)
		n := store.count("extend")
		time.Sleep(ttl)
		require.Equal(t, n, store.count("extend"), "a lost lock is not extended")
		store.during(nil, nil)
		require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
	})
}

func TestKeepAliveCountsFromTheLastSuccess(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		// More than a third of the TTL has passed since the lock was taken.
		lock, store := w.held()
		time.Sleep(trusted - time.Second)
		lock.KeepAlive()
		synctest.Wait()
		require.Equal(t, 1, store.count("extend"))
		require.Zero(t, lock.Confirmed())

		// Each answer takes nearly as long as there is time for it.
		store.during(nil, slow("extend", ttl/3-time.Second))
		n := store.count("extend")
		time.Sleep(time.Hour + time.Millisecond)
		require.NoError(t, lock.Check())
		require.Equal(t, int(time.Hour/(ttl/3)), store.count("extend")-n)
		store.during(nil, nil)
		time.Sleep(ttl / 3)
		require.NoError(t, lock.Unlock(ctx))
	})
}

// A handler that writes its attributes where it must wait.
type slowAttrs struct{ slog.Handler }

func (s slowAttrs) WithAttrs([]slog.Attr) slog.Handler {
	time.Sleep(ttl)
	return s
}

// A log that blocks is in nobody's way: not even in an outage, when lines are written.
func TestKeepAliveWaitsForNoAttributesOfTheLog(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1, named.WithLogger(slog.New(slowAttrs{slog.DiscardHandler})))
		lock := try(t, a, "x")
		lock.KeepAlive()
		time.Sleep(2 * ttl)
		require.NoError(t, lock.Check())
		store.during(only("extend", errRefused), nil)
		time.Sleep(ttl/3 + time.Second)
		store.during(nil, nil)
		time.Sleep(2 * ttl)
		require.NoError(t, lock.Check())
		require.NoError(t, lock.Unlock(ctx))
	})
}

// What counts is when it was sent: a slow answer does not stretch a lock.
func TestALockLastsFromWhenExtendWasSent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, store := w.held()
		store.during(nil, slow("extend", 5*time.Second))
		start := at()
		require.NoError(t, lock.Extend(ctx))
		require.Equal(t, 5*time.Second, lock.Confirmed())
		time.Sleep(trusted - 5*time.Second - 1)
		require.NoError(t, lock.Check())
		<-lock.Done()
		require.Equal(t, trusted, at()-start)
		require.EqualError(t, lock.Check(),
			`lock "x" (term 946684800000) is lost: it was not extended within 22.5s`)
		require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
	})
}

// An answer that comes too late does not revive a lock, whatever it says.
func TestALateAnswerRevivesNothing(t *testing.T) {
	for name, fault := range map[string]func(context.Context, string) error{
		"late":  slow("extend", trusted),
		"never": hang("extend"),
	} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			start := at()
			lock, store := w.held()
			store.during(nil, fault)
			time.Sleep(trusted - time.Second)
			done := make(chan error)
			go func() { done <- lock.Extend(ctx) }()
			<-lock.Done()
			require.Equal(t, trusted, at()-start)
			require.ErrorIs(t, <-done, driver.ErrLost)
			wantLost(t, lock)
			require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
		})
	}
}

func TestALockIsLostAtOnceIfItsRowIsAnothers(t *testing.T) {
	for name, spoil := range map[string]func(w *world, store *faulty){
		"deleted": func(w *world, _ *faulty) {
			w.db.SetNamedTerm(named.Key{Kind: named.KindLock, Name: "x"}, 0)
		},
		"edited": func(w *world, _ *faulty) {
			w.db.SetNamedTerm(named.Key{Kind: named.KindLock, Name: "x"}, 7)
		},
		"expired": func(w *world, _ *faulty) { w.db.AgeNamed(ttl) },
		"in a file that was replaced": func(_ *world, store *faulty) {
			store.during(only("extend", fmt.Errorf("%w: replaced", driver.ErrLost)), nil)
		},
	} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			start := at()
			lock, store := w.held()
			lock.KeepAlive()
			spoil(w, store)
			<-lock.Done()
			require.Equal(t, ttl/3, at()-start)
			wantLost(t, lock)
			if name == "in a file that was replaced" {
				require.ErrorContains(t, lock.Err(), "it could not be extended")
				require.ErrorContains(t, lock.Err(), ": replaced")
			} else {
				require.ErrorContains(t, lock.Err(), "its row has expired, or is another's")
			}
			require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
		})
	}
}

func TestAReleaseFindsOutThatTheLockWasLost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, _ := w.held()
		w.db.AgeNamed(ttl)
		require.NoError(t, lock.Check(), "nobody has told it yet")
		for range 2 {
			require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
		}
		require.ErrorIs(t, lock.Err(), schedlock.ErrReleased, "what its context says")
	})
}

// Also when the database itself has said that the lock is lost: by then another may have it.
func TestALockThatIsLostEndsBeforeAnybodyAsksWhy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		b, _ := w.replica(2)
		asked := false
		start := at()
		err := a.WithLock(ctx, "x", func(ctx context.Context, lock *named.Lock) error {
			w.db.SetNamedTerm(named.Key{Kind: named.KindLock, Name: "x"}, 0)
			next := try(t, b, "x")
			store.during(func(c context.Context, op string) error {
				if op == "look" {
					asked = true
					assert.ErrorIs(t, lock.Check(), driver.ErrLost)
					assert.ErrorIs(t, context.Cause(ctx), driver.ErrLost)
				}
				return hang("look")(c, op)
			}, nil)
			<-ctx.Done()
			assert.Equal(t, ttl/3, at()-start)
			assert.NoError(t, next.Check())
			return next.Unlock(context.Background())
		})
		require.ErrorIs(t, err, driver.ErrLost)
		require.True(t, asked)
	})
}

// A job may extend a lock with its own context, which a loss of leadership ends.
func TestTheEndOfALeaseIsNoEndOfALock(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, store := w.held()
		job, cancel := context.WithCancelCause(ctx)
		store.during(hangs("extend"), nil)
		time.AfterFunc(time.Millisecond, func() { cancel(driver.ErrLost) })
		for range 2 { // one that is cut off, and one that has no turn
			err := lock.Extend(job)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, driver.ErrLost)
			require.NoError(t, lock.Check())
			go func() { _ = lock.Extend(ctx) }()
			synctest.Wait()
		}
		require.NoError(t, lock.Unlock(ctx))
	})
}

// hangs is hang with the cause, as stores have it.
func hangs(op string) func(context.Context, string) error {
	return func(ctx context.Context, o string) error {
		if err := hang(op)(ctx, o); err != nil {
			return context.Cause(ctx)
		}
		return nil
	}
}

// A lost lock whose row cannot be freed is lost all the same.
func TestAnOutageDoesNotHideALoss(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		err := a.WithLock(ctx, "x", func(ctx context.Context, lock *named.Lock) error {
			store.during(func(context.Context, string) error { return errRefused }, nil)
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, driver.ErrLost)
		require.ErrorIs(t, err, errRefused)
	})
}

func TestNamesThatAreRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		for name, says := range map[string]string{
			"":                       "is empty",
			strings.Repeat("n", 201): "201 bytes, 200 are allowed",
			strings.Repeat("世", 67):  "201 bytes",
			"a\x00b":                 "contains NUL",
			"a\xff":                  "not UTF-8",
		} {
			_, err := a.TryLock(ctx, name)
			require.ErrorContains(t, err, says)
			_, err = a.Lock(ctx, name)
			require.ErrorContains(t, err, says)
			_, err = a.Locked(ctx, name)
			require.ErrorContains(t, err, says)
			_, err = a.TryTask(ctx, name, 0, time.Minute)
			require.ErrorContains(t, err, says)
			_, err = a.OncePer(ctx, name, time.Minute)
			require.ErrorContains(t, err, says)
		}
		require.Empty(t, store.ops, "the database was asked")
	})
}

func TestCleaningUpByTheWay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		require.NoError(t, try(t, a, "old").Unlock(ctx))
		time.Sleep(25 * time.Hour)
		before := store.count("clean") // 1 if taking "old" has cleaned up too
		for i := 0; store.count("clean") == before; i++ {
			require.Less(t, i, 20_000, "nobody cleans up")
			require.NoError(t, try(t, a, "x").Unlock(ctx))
		}
		n, err := a.Clean(ctx)
		require.NoError(t, err)
		require.Zero(t, n, "nothing is left")
		store.during(hang("clean"), nil)
		start := at()
		for store.count("clean") < before+3 {
			require.NoError(t, try(t, a, "x").Unlock(ctx), "a clean-up that hangs is no hindrance")
		}
		require.Equal(t, time.Second, at()-start)
	})
}

func TestCheckAllocatesNothing(t *testing.T) {
	w := &world{t: t, db: memory.New()}
	lock, _ := w.held()
	defer lock.Unlock(ctx)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if lock.Check() != nil {
			t.Error("it is lost")
		}
	}))
}
