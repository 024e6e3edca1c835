package app

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock"
)

// What a lock on MariaDB says once goes to the app's log, as all else does.
func TestALockOnMariaDBLogsWhereTheAppDoes(t *testing.T) {
	server := mytest.Start(t)
	server.Exec(t, `CREATE DATABASE app`)
	var log logtest.Log
	store, err := openLock(server.URL("app"), log.Logger())(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.(io.Closer).Close()) })
	lock, err := schedlock.New(store, schedlock.WithLogger(log.Logger()),
		schedlock.WithSessionGrace(5*time.Second))
	require.NoError(t, err)
	lease, err := lock.Acquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "the end of its database session is no sign")
	}, 10*time.Second, time.Millisecond)
}
