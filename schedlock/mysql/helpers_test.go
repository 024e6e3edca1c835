package mysql_test

import (
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

func timing(ttl time.Duration) driver.Timing {
	return driver.Timing{TTL: ttl, RenewDeadline: ttl * 3 / 4, HeartbeatInterval: ttl / 6}
}

func look(t testing.TB, s *mysql.Store) driver.Snapshot {
	t.Helper()
	view, err := s.Look(ctx)
	require.NoError(t, err)
	return view
}

// claim asks for the place of whatever stands in view.
func claim(view driver.Snapshot) driver.Claim {
	return driver.Claim{
		Ref: driver.Ref{Owner: driver.Owner{PID: os.Getpid(), Hostname: "test"},
			Token: driver.NewToken()},
		Timing:   timing(time.Minute),
		Expected: view,
		Reason:   driver.EndExpired,
		Watched:  true,
	}
}

// acquire looks, and takes the place of whatever is there.
func acquire(t testing.TB, s *mysql.Store) driver.Ref {
	t.Helper()
	c := claim(look(t, s))
	grant, err := s.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref
}

func heartbeat(t testing.TB, s *mysql.Store, ref driver.Ref) {
	t.Helper()
	_, err := s.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
}

func release(t testing.TB, s *mysql.Store, ref driver.Ref) {
	t.Helper()
	deleted, err := s.Release(ctx, ref, driver.EndReleased)
	require.NoError(t, err)
	require.True(t, deleted)
}

func value[T any](t testing.TB, db interface {
	QueryRow(query string, args ...any) *sql.Row
}, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, db.QueryRow(query, args...).Scan(&v), query)
	return v
}
