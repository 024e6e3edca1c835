package named_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/named"
)

// A connection has died without a word. The first statements on it get no
// answer; the next ones go over another.
func TestAWaitGoesOnAfterAStatementWithoutAnAnswer(t *testing.T) {
	for _, op := range []string{"look", "take"} {
		runInWorld(t, op, func(t *testing.T, w *world) {
			a, _ := w.replica(1)
			for name, wait := range map[string]func(*testing.T) (*faulty,
				func() (*named.Lock, error)){
				"x": func(*testing.T) (*faulty, func() (*named.Lock, error)) {
					b, store := w.replica(2)
					return store, func() (*named.Lock, error) { return b.Lock(ctx, "x") }
				},
				"office": func(*testing.T) (*faulty, func() (*named.Lock, error)) {
					b, store := w.election(2)
					return store, func() (*named.Lock, error) { return b.WaitForLeader(ctx) }
				},
			} {
				store, lock := wait(t)
				held := make(chan error, 1)
				holder := try(t, a, name)
				go func() { time.Sleep(time.Second); held <- holder.Unlock(ctx) }()
				left := 2
				store.during(func(ctx context.Context, o string) error {
					if o != op || left == 0 {
						return nil
					}
					left--
					return hang(op)(ctx, o)
				}, nil)
				start := at()
				got, err := lock()
				require.NoError(t, err, name)
				require.NoError(t, got.Check())
				require.NoError(t, <-held)
				require.Less(t, at()-start, 30*time.Second, name)
				require.NoError(t, got.Unlock(ctx))
			}
		})
	}
}

// What was answered between them begins the count anew.
func TestThreeLooksInARowWithoutAnAnswerEndAWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.replica(1)
		b, store := w.replica(2)
		looks, answered := 0, 3 // each third
		store.during(func(ctx context.Context, op string) error {
			if op == "look" {
				looks++
			}
			if looks%answered == 0 {
				return nil
			}
			return hang("look")(ctx, op)
		}, nil)
		holder := try(t, a, "x")
		holder.KeepAlive()
		unlocked := make(chan error, 1)
		time.AfterFunc(5*time.Minute, func() { unlocked <- holder.Unlock(ctx) })
		got, err := b.Lock(ctx, "x")
		require.NoError(t, err)
		require.NoError(t, <-unlocked)
		require.NoError(t, got.Unlock(ctx))

		holder = try(t, a, "x")
		holder.KeepAlive()
		looks, answered = 0, 1000
		_, err = b.Lock(ctx, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3, looks)
		require.NoError(t, holder.Unlock(ctx))
	})
}

// Nobody waits for ever for a database that does not answer, though the caller
// has set no limit.
func TestADatabaseThatDoesNotAnswerEndsEveryCall(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		e, silentStore := w.election(1)
		lock := try(t, a, "x")
		for _, s := range []*faulty{store, silentStore} {
			s.during(func(ctx context.Context, op string) error { return hang(op)(ctx, op) }, nil)
		}
		key := named.Key{Kind: named.KindLock, Name: "x"}
		for what, call := range map[string]func() error{
			"Info":    func() error { _, err := a.Info(ctx, key); return err },
			"Locked":  func() error { _, err := a.Locked(ctx, "x"); return err },
			"Leader":  func() error { _, err := e.Leader(ctx); return err },
			"Owned":   func() error { _, err := lock.Owned(ctx); return err },
			"Clean":   func() error { _, err := a.Clean(ctx); return err },
			"Extend":  func() error { return lock.Extend(ctx) },
			"TryLock": func() error { _, err := a.TryLock(ctx, "y"); return err },
			"TryTask": func() error { _, err := a.TryTask(ctx, "y", 0, time.Minute); return err },
			"OncePer": func() error { _, err := a.OncePer(ctx, "y", time.Minute); return err },
		} {
			start := at()
			require.Error(t, call(), what)
			require.LessOrEqual(t, at()-start, 13*time.Second, what)
		}
		start := at()
		_, err := a.Lock(ctx, "y")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, at()-start, time.Minute)
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		start = at()
		_, err = a.TryLock(short, "y")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, at()-start, 5*time.Second,
			"the context, and what the doc comment names")
		require.Error(t, lock.Unlock(ctx))
	})
}

// What hangs on a connection that has died does not keep the lock from those who could have it.
func TestUnlockCutsOffAnExtensionThatHangs(t *testing.T) {
	for name, extend := range map[string]func(*named.Lock){
		"kept alive": (*named.Lock).KeepAlive,
		"by hand": func(lock *named.Lock) {
			time.AfterFunc(ttl/3, func() { _ = lock.Extend(ctx) })
		},
	} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			lock, store := w.held()
			store.during(hang("extend"), nil)
			extend(lock)
			time.Sleep(ttl/3 + time.Second)
			require.Equal(t, 1, store.count("extend"))
			start := at()
			require.NoError(t, lock.Unlock(ctx))
			require.Equal(t, time.Second, at()-start, "it had no time to end by itself")
			require.Nil(t, w.row(named.KindLock, "x"))
		})
	}
}

// The limit of an extension does not grow with the TTL for ever: over another connection the
// next one gets through.
func TestAnExtensionOfALongLockDoesNotHangForLong(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1, named.WithTTL(24*time.Hour))
		lock := try(t, a, "x")
		store.during(hang("extend"), nil)
		start := at()
		require.ErrorIs(t, lock.Extend(ctx), context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, at()-start)
		require.NoError(t, lock.Check())
		require.NoError(t, lock.Unlock(ctx))
	})
}

// A handler that has no answer yet whether it wants a line.
type undecided struct {
	slog.Handler
	decided chan struct{}
}

func (u undecided) Enabled(context.Context, slog.Level) bool { <-u.decided; return false }

// Whoever keeps a lock alive may be stuck in a driver that heeds no context. The release is not.
func TestUnlockDoesNotWaitForAnExtensionThatHeedsNoContext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lock, store := w.held()
		lock.KeepAlive()
		stuck := make(chan struct{})
		store.during(func(_ context.Context, op string) error {
			if op == "extend" {
				<-stuck
			}
			return nil
		}, nil)
		time.Sleep(ttl/3 + time.Second)
		unlocked := make(chan error, 1)
		go func() { unlocked <- lock.Unlock(ctx) }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Len(t, unlocked, 1, "it waits")
		close(stuck)
		require.ErrorIs(t, <-unlocked, context.DeadlineExceeded)
		require.NoError(t, lock.Unlock(ctx), "the statement has ended")
		require.Nil(t, w.row(named.KindLock, "x"))
	})
}

// Whoever keeps a lock alive may be stuck in the log. The release is not.
func TestUnlockDoesNotWaitForTheLog(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		stuck := undecided{slog.DiscardHandler, make(chan struct{})}
		a, store := w.replica(1, named.WithLogger(slog.New(stuck)))
		lock := try(t, a, "x")
		lock.KeepAlive()
		store.during(only("extend", errRefused), nil)
		time.Sleep(ttl/3 + time.Second)
		unlocked := make(chan error, 1)
		go func() { unlocked <- lock.Unlock(ctx) }()
		synctest.Wait()
		assert.Len(t, unlocked, 1, "it waits")
		close(stuck.decided)
		require.NoError(t, <-unlocked)
	})
}

// "Free" is no answer to a question that names no row.
func TestAKeyWithoutAKindIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, store := w.replica(1)
		lock := try(t, a, "x")
		n := len(store.ops)
		for _, kind := range []named.Kind{"", "Lock", "locks"} {
			_, err := a.Info(ctx, named.Key{Kind: kind, Name: "x"})
			require.ErrorContains(t, err,
				`of the lock "x" is none of ["lock" "task" "timeout" "election"]`)
		}
		require.Len(t, store.ops, n, "the database was asked")
		require.NoError(t, lock.Unlock(ctx))
	})
}
