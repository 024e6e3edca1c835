package mysql_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

const (
	patience = servertest.Patience
	grace    = servertest.Grace
)

var (
	look, lookAtSession   = servertest.Look, servertest.LookAtSession
	heartbeat, release    = servertest.Heartbeat, servertest.Release
	timing, eventually    = servertest.Timing, servertest.Eventually
	awaiting, stays, ends = servertest.Awaiting, servertest.Stays, servertest.Ends
)

func claim(view driver.Snapshot) driver.Claim { return servertest.Claim(view, time.Minute) }

func acquire(t testing.TB, s *mysql.Store) driver.Ref {
	t.Helper()
	return servertest.Acquire(t, s, time.Minute)
}

func acquireWatched(t testing.TB, s *mysql.Store) (driver.Ref, driver.Session) {
	t.Helper()
	return servertest.AcquireWatched(t, s, time.Minute)
}

func value[T any](t testing.TB, db interface {
	QueryRow(query string, args ...any) *sql.Row
}, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, db.QueryRow(query, args...).Scan(&v), query)
	return v
}
