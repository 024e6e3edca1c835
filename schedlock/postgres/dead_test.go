package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks/queue"
)

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

// The connections are dead, and the caller has set no limit: each call returns
// soon, and works again over another connection.
func TestNoCallHangsOnADeadConnection(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"Done", "Capture", "Add", "GetLockInfo", "Info", "Inbox",
		"Pause", "TryLock"} {
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
				"Pause": func() error {
					_, err := store.Pause(ctx, ledger.Action{By: "me"})
					return err
				},
				"TryLock": func() error { _, err := locks.TryLock(ctx, what); return err },
			}[what]
			w.Die()
			if err := promptly(t, what, call); err != nil {
				require.NoError(t, promptly(t, what+" again", call))
			}
		})
	}
}

func TestAConnectionThatIsLateIsUsed(t *testing.T) {
	t.Parallel()
	line, url := newWire(t, migrated(t))
	servertest.ConnectsLate(t, line, open(t, url), "application_name")
}
