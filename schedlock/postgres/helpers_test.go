package postgres_test

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
)

const (
	patience = servertest.Patience
	grace    = servertest.Grace
)

var (
	look, lookAtSession   = servertest.Look, servertest.LookAtSession
	claim, acquire        = servertest.Claim, servertest.Acquire
	acquireWatched        = servertest.AcquireWatched
	heartbeat, release    = servertest.Heartbeat, servertest.Release
	newLock, eventually   = servertest.NewLock, servertest.Eventually
	awaiting, stays, ends = servertest.Awaiting, servertest.Stays, servertest.Ends
	addTasks              = servertest.AddTasks
	captureTasks          = servertest.CaptureTasks
	takeNamed, namedClaim = servertest.TakeNamed, servertest.NamedClaim
	lockNamed             = servertest.LockNamed
	lockA                 = lockNamed("a")
)

func value[T any](t testing.TB, conn *pgx.Conn, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, conn.QueryRow(ctx, query, args...).Scan(&v))
	return v
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

func withPort(t testing.TB, databaseURL string, port int) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	u.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
	return u.String()
}

// between returns a URL whose connections serve has in its hands, with those to the server: both
// are its own to close.
func between(t testing.TB, databaseURL string, serve func(client, server net.Conn)) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	return withPort(t, databaseURL, servertest.Listen(t, func(client net.Conn) {
		server, err := net.Dial("tcp", u.Host)
		if err != nil {
			client.Close()
			return
		}
		serve(client, server)
	}).Port)
}

// eachWay calls test with a database and how the replicas come to it.
func eachWay(t *testing.T, database func(testing.TB) string,
	test func(t *testing.T, direct, url string)) {
	t.Run("directly", func(t *testing.T) {
		url := database(t)
		test(t, url, url)
	})
	t.Run("through a pooler", func(t *testing.T) {
		url := database(t)
		test(t, url, pgtest.PgBouncer(t, pgtest.Shared(t)).URL(databaseName(t, url)))
	})
}
