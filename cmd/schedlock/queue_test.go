package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/tasks/queue"
)

func TestQueueAndLocksOnTheCommandLine(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	path := migrated(t, folder(t))
	s, err := sqlite.Open(ctx, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	q, err := queue.New(s.Queue())
	require.NoError(t, err)
	_, err = q.Add(ctx, "mail", 0, "a", "b", "c")
	require.NoError(t, err)
	tasks, err := q.Capture(ctx, "mail", 2)
	require.NoError(t, err)
	require.NoError(t, q.Fail(ctx, tasks[0], errors.New("the server is down"), 0))
	require.NoError(t, q.Done(ctx, tasks[1]))
	tool := expecting(t, "--db", path)
	var counts []countJSON
	strict(t, tool(exitDone, "queue", "--json"), &counts)
	require.Equal(t, []countJSON{{Queue: "mail", Pending: 1, Done: 1, Failed: 1}}, counts)
	require.Contains(t, tool(exitDone, "queue", "count"), "mail")
	var list []taskJSON
	strict(t, tool(exitDone, "queue", "list", "mail", "--state", "failed", "--json"), &list)
	require.Len(t, list, 1)
	require.Equal(t, "the server is down", list[0].Error)
	require.Contains(t, tool(exitDone, "queue", "list", "mail"), "the server is down")
	require.Contains(t, tool(exitDone, "queue", "requeue", "mail", "a", "none", "--retries", "2"),
		"1 of 2 tasks")
	tool(exitNothing, "queue", "requeue", "mail", "a")
	require.Contains(t, tool(exitDone, "queue", "prune", "mail", "--older-than", "0s"), "1 tasks")
	for _, args := range [][]string{{"queue", "drop"}, {"queue", "list"},
		{"queue", "prune", "mail"}, {"queue", "requeue", "mail"},
		{"locks", "release", "lock"}, {"locks", "release", "lock", "a", "--reason", "x"}, {"locks",
			"release", "lock", "a", "--force"}} {
		tool(exitUsage, args...)
	}

	locks, err := named.New(s.Named())
	require.NoError(t, err)
	release := []string{"locks", "release", "lock", "import", "--force", "--by", "ann", "--reason",
		"it hangs"}
	tool(exitNothing, release...)
	lock, err := locks.Lock(ctx, "import")
	require.NoError(t, err)
	require.Contains(t, tool(exitDone, "locks"), "held")
	require.Contains(t, tool(exitDone, release...), "revoked by ann: it hangs")
	require.ErrorContains(t, lock.Extend(ctx), "it was revoked by ann: it hangs")
	var held []namedLockJSON
	strict(t, tool(exitDone, "locks", "--json"), &held)
	require.Equal(t, &named.Revocation{By: "ann", Reason: "it hangs"}, held[0].Revoked)
	require.Error(t, lock.Unlock(ctx))
}
