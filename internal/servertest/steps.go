package servertest

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// LockNamed is the key of a lock by name.
func LockNamed(name string) namedlock.Key {
	return namedlock.Key{Kind: namedlock.KindLock, Name: name}
}

// NamedClaim asks for a key.
func NamedClaim(key namedlock.Key, ttl time.Duration) namedlock.Claim {
	return namedlock.Claim{Key: key, Owner: driver.Owner{PID: os.Getpid(), Hostname: "test"},
		Token: driver.NewToken(), TTL: ttl}
}

// TakeNamed takes a key that must be free.
func TakeNamed(t testing.TB, n namedlock.Store, c namedlock.Claim) namedlock.Ref {
	t.Helper()
	term, holder, err := n.Take(ctx, c)
	require.NoError(t, err)
	require.NotZero(t, term, "held: %+v", holder)
	return namedlock.Ref{Key: c.Key, Token: c.Token, Term: term}
}

// AddTasks adds tasks that are new.
func AddTasks(t testing.TB, q taskqueue.Store, retries int, ids ...string) {
	t.Helper()
	added, err := q.Add(ctx, "q", retries, ids)
	require.NoError(t, err)
	require.Len(t, added, len(ids))
}

// CaptureTasks returns the ids of what it has captured.
func CaptureTasks(t testing.TB, q taskqueue.Store, hold time.Duration,
	limit int) (driver.Token, []string) {
	t.Helper()
	token := driver.NewToken()
	tasks, err := q.Capture(ctx, "q", token, hold, limit)
	require.NoError(t, err)
	var ids []string
	for _, task := range tasks {
		ids = append(ids, task.ID)
	}
	return token, ids
}

// Reopened opens stores for a conformance suite, as a process that goes on has them: one that has
// served a rule serves the next, as new sessions cost more than the rules.
func Reopened[S any](run testing.TB, open func(testing.TB) S) func(testing.TB) S {
	var free []S
	return func(t testing.TB) (store S) {
		if last := len(free) - 1; last >= 0 {
			store, free = free[last], free[:last]
		} else {
			store = open(run)
		}
		t.Cleanup(func() {
			if !t.Failed() {
				free = append(free, store)
			}
		})
		return store
	}
}
