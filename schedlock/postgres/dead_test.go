package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/tasks/queue"
)

// die cuts the connections that are open. New ones work.
func (w *wire) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		l.dead = true
	}
}

// enough is longer than any call may hang on a dead connection: its statement, and
// what follows. Before there was a bound it was minutes, or for ever.
const enough = 2 * patience

// hurried is how long a statement may take here, on a busy machine too.
const hurried = 3 * time.Second

// promptly fails unless f returns in time, without a deadline of its own.
func promptly(t testing.TB, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(enough):
		t.Fatalf("%s hangs on a dead connection", what)
		return nil
	}
}

// The connections over which they wait die without a word, as a firewall that
// forgets them makes them. The locks get free, and new connections work.
func TestWhoWaitsGoesOnOverAnotherConnection(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	w, url := newWire(t, direct)
	holders, waiters := locksOf(t, open(t, direct), time.Minute), open(t, url)
	waiters.Hurry(hurried)
	locks := locksOf(t, waiters, time.Minute)
	leader, err := named.NewElection(open(t, direct).Named(), "office", named.WithTTL(time.Minute))
	require.NoError(t, err)
	_, err = leader.WaitForLeader(ctx)
	require.NoError(t, err)
	lock, err := holders.TryLock(ctx, "lock")
	require.NoError(t, err)
	with, err := holders.TryLock(ctx, "with")
	require.NoError(t, err)

	var all sync.WaitGroup
	wait := func(what string, f func() error) {
		all.Go(func() {
			done := make(chan error, 1)
			go func() { done <- f() }()
			select {
			case err := <-done:
				assert.NoError(t, err, what)
			case <-time.After(enough + 10*time.Second): // the test is under way
				t.Errorf("%s hangs on a dead connection", what)
			}
		})
	}
	wait("WaitForLeader", func() error {
		e, err := named.NewElection(waiters.Named(), "office", named.WithTTL(time.Minute))
		if err != nil {
			return err
		}
		if _, err := e.WaitForLeader(ctx); err != nil {
			return err
		}
		return e.Resign(ctx)
	})
	wait("Lock", func() error {
		lock, err := locks.Lock(ctx, "lock")
		if err != nil {
			return err
		}
		return lock.Unlock(ctx)
	})
	wait("WithLock", func() error {
		return locks.WithLock(ctx, "with", func(context.Context, *named.Lock) error { return nil })
	})
	eventually(t, "they look", func() bool { return waiters.Pool().Stat().AcquireCount() > 10 })
	w.die()
	require.NoError(t, leader.Resign(ctx))
	require.NoError(t, lock.Unlock(ctx))
	require.NoError(t, with.Unlock(ctx))
	all.Wait()
}

// The connections are dead, and the caller has set no limit: each call returns
// soon, and works again over another connection.
func TestNoCallHangsOnADeadConnection(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"Done", "Capture", "Add", "GetLockInfo", "Info", "Inbox"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w, url := newWire(t, migrated(t))
			store := open(t, url)
			store.Hurry(hurried)
			queues, err := queue.New(store.Queue())
			require.NoError(t, err)
			_, err = queues.Add(ctx, "q", 0, "a", "b")
			require.NoError(t, err)
			tasks, err := queues.Capture(ctx, "q", 1)
			require.NoError(t, err)
			locks := locksOf(t, store, time.Minute)
			call := map[string]func() error{
				"Done":    func() error { return queues.Done(ctx, tasks...) },
				"Capture": func() error { _, err := queues.Capture(ctx, "q", 1); return err },
				"Add":     func() error { _, err := queues.Add(ctx, "q", 0, "c"); return err },
				"GetLockInfo": func() error {
					_, err := schedlock.GetLockInfo(ctx, store)
					return err
				},
				"Info":  func() error { _, err := locks.Info(ctx, lockA); return err },
				"Inbox": func() error { _, err := store.Pending(ctx); return err },
			}[what]
			w.die()
			if err := promptly(t, what, call); err != nil {
				require.NoError(t, promptly(t, what+" again", call))
			}
		})
	}
}

// TryLock returns within its context and two seconds, whatever the connections do.
func TestTryLockOverADeadConnectionReturnsSoonAfterItsContext(t *testing.T) {
	t.Parallel()
	w, url := newWire(t, migrated(t))
	defer w.close() // or the end of the store takes long
	locks := locksOf(t, open(t, url), time.Minute)
	lock, err := locks.TryLock(ctx, "x")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(ctx))
	w.cut()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	began := time.Now()
	_, err = locks.TryLock(short, "x")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), patience,
		"the context, and 2 s for giving back what it may have got")
}

// A caller without a deadline gets an answer, too, on a connection that is dead
// without a word.
func TestEveryStatementOnAPoolEndsByItself(t *testing.T) {
	t.Parallel()
	w, url := newWire(t, migrated(t))
	defer w.close() // or the end of the store takes long
	store := open(t, url)
	store.Hurry(hurried)
	addTasks(t, store.Queue(), 0, "a")
	_, err := store.Jobs(ctx)
	require.NoError(t, err)
	w.cut()
	began := time.Now()
	var calls sync.WaitGroup
	for what, f := range map[string]func() error{
		"of a queue": func() error { _, _, err := store.Queue().Get(ctx, "q", "a"); return err },
		"of a lock":  func() error { _, err := store.Named().Look(ctx, lockA); return err },
		"of a run":   func() error { _, err := store.Jobs(ctx); return err },
		"an order": func() error {
			_, err := store.Pause(ctx, ledger.Action{By: "me"})
			return err
		},
	} {
		calls.Go(func() {
			if f() == nil {
				t.Errorf("%s: no error", what)
			}
		})
	}
	calls.Wait()
	require.Less(t, time.Since(began), 3*patience)
}
