package mysql_test

import (
	"log/slog"
	process "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/mysql"
)

// A standby takes the lock over from a leader that releases it.
func TestAReleaseHandsTheLockOver(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	lock := func(url string) *schedlock.Lock {
		store, err := mysql.Opener(url).Open(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		lock, err := schedlock.New(store, schedlock.WithTTL(time.Minute),
			schedlock.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		return lock
	}
	lease, err := lock(url).Acquire(ctx)
	require.NoError(t, err)
	_, err = lock(url).Acquire(ctx)
	require.ErrorIs(t, err, schedlock.ErrHeld)
	got := make(chan error, 1)
	go func() {
		next, err := lock(url).Wait(ctx)
		if err == nil {
			err = next.Release(ctx)
		}
		got <- err
	}()
	require.NoError(t, lease.Release(ctx))
	require.NoError(t, <-got)
}

// Only a program that imports this package links its driver: the demo app and the command do.
func TestNobodyElseLinksTheDriver(t *testing.T) {
	t.Parallel()
	const driver = "github.com/go-sql-driver/mysql"
	deps := func(folders ...string) string {
		out, err := process.Command("go", append([]string{"list", "-deps"}, folders...)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Contains(t, deps("."), driver)
	require.NotContains(t, deps("..", "../../startup", "../../tasks", "../../tasks/queue",
		"../../migrations", "../sqlite", "../postgres", "../named", "../locktest", "../prom",
		"../statuspage"), driver)
	require.NotContains(t, strings.ToLower(deps("../memory")), "sql-driver")
}
