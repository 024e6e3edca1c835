package postgres_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/tasks/queue"
)

// What docs/locks.md grants is enough for named locks and queues.
func TestTheDocumentedRightsAreEnoughForNamedLocksAndQueues(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	page, err := os.ReadFile("../../docs/locks.md")
	require.NoError(t, err)
	grants := regexp.MustCompile(`(?m)^GRANT .* TO app;$`).FindAllString(string(page), -1)
	require.Len(t, grants, 2)
	for _, g := range grants {
		exec(t, admin, regexp.MustCompile(`TO app;$`).ReplaceAllString(g,
			fmt.Sprintf("TO %s", role)))
	}
	store := opened(t, url)

	locks, err := named.New(store.Named())
	require.NoError(t, err)
	lock, err := locks.TryLock(ctx, "a")
	require.NoError(t, err)
	_, err = locks.TryLock(ctx, "a")
	require.ErrorIs(t, err, schedlock.ErrHeld)
	require.NoError(t, lock.Extend(ctx))
	require.NoError(t, lock.Unlock(ctx))
	_, err = locks.OncePer(ctx, "a", time.Hour)
	require.NoError(t, err)
	exec(t, admin, `UPDATE named_locks
		SET expires_at = expires_at - interval '3 days', hold_until =
		hold_until - interval '3 days'`)
	deleted, err := locks.Clean(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, deleted)

	queues, err := queue.New(store.Queue())
	require.NoError(t, err)
	_, err = queues.Add(ctx, "q", 1, "x", "y", "z")
	require.NoError(t, err)
	tasks, err := queues.Capture(ctx, "q", 3)
	require.NoError(t, err)
	require.Len(t, tasks, 3)
	require.NoError(t, queues.Extend(ctx, tasks...))
	require.NoError(t, queues.Done(ctx, tasks[0]))
	require.NoError(t, queues.Release(ctx, tasks[1]))
	require.NoError(t, queues.Fail(ctx, tasks[2], fmt.Errorf("no"), 0))
	_, err = queues.Prune(ctx, "q", 0, 10)
	require.NoError(t, err)
}
