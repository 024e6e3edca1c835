package postgres_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// patience bounds a wait that should be short.
const patience = 20 * time.Second

func timing(ttl time.Duration) driver.Timing {
	return driver.Timing{TTL: ttl, RenewDeadline: ttl * 3 / 4, HeartbeatInterval: ttl / 6}
}

func look(t testing.TB, s *postgres.Store) driver.Snapshot {
	t.Helper()
	view, err := s.Look(ctx)
	require.NoError(t, err)
	return view
}

// claim asks for the place of whatever stands in view.
func claim(view driver.Snapshot, ttl time.Duration) driver.Claim {
	return driver.Claim{
		Ref: driver.Ref{Owner: driver.Owner{PID: os.Getpid(), Hostname: "test"},
			Token: driver.NewToken()},
		Timing:   timing(ttl),
		Expected: view,
		Reason:   driver.EndExpired,
		Watched:  true,
	}
}

// acquire looks, and takes the place of whatever is there.
func acquire(t testing.TB, s *postgres.Store, ttl time.Duration) driver.Ref {
	t.Helper()
	c := claim(look(t, s), ttl)
	grant, err := s.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref
}

func heartbeat(t testing.TB, s *postgres.Store, ref driver.Ref) {
	t.Helper()
	_, err := s.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
}

func release(t testing.TB, s *postgres.Store, ref driver.Ref) {
	t.Helper()
	deleted, err := s.Release(ctx, ref, driver.EndReleased)
	require.NoError(t, err)
	require.True(t, deleted)
}

func newLock(t testing.TB, s *postgres.Store, ttl time.Duration,
	opts ...schedlock.Option) *schedlock.Lock {
	t.Helper()
	p := timing(ttl)
	lock, err := schedlock.New(s, append([]schedlock.Option{
		schedlock.WithTTL(p.TTL), schedlock.WithHeartbeatInterval(p.HeartbeatInterval),
		schedlock.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	require.NoError(t, err)
	return lock
}

func value[T any](t testing.TB, conn *pgx.Conn, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, conn.QueryRow(ctx, query, args...).Scan(&v))
	return v
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, patience, 10*time.Millisecond, what)
}

// newRole makes a role that may log in without a password, and returns its
// name. Roles belong to the server, so its name has the database's in it.
func newRole(t testing.TB, databaseURL, attributes string) string {
	t.Helper()
	name := databaseName(t, databaseURL) + "_app"
	exec(t, session(t, databaseURL), fmt.Sprintf(`CREATE ROLE %s LOGIN %s`, name, attributes))
	return name
}

// as changes the user of a URL, and adds parameters: "name", "value", ….
func as(t testing.TB, databaseURL, role string, params ...string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	u.User = url.User(role)
	q := u.Query()
	for i := 0; i < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// backends counts the sessions of a database whose application is schedlock.
const sqlBackends = `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'schedlock'`

const sqlTerminate = `
SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'schedlock'`

// listenTCP serves each connection until the end of the test, and returns the
// port.
func listenTCP(t testing.TB, serve func(net.Conn)) int {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
	})
	return listener.Addr().(*net.TCPAddr).Port
}

func withPort(t testing.TB, databaseURL string, port int) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	u.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
	return u.String()
}
