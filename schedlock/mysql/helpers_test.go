package mysql_test

import (
	"database/sql"
	"io"
	"net"
	"net/url"
	"sync"
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

// withAddress is the database of a URL on another host or port.
func withAddress(t testing.TB, databaseURL, address string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	u.Host = address
	return u.String()
}

// forward is a proxy to the server of a URL, and returns its address. to may be changed
// while it runs; cut ends what is open.
type forward struct {
	address string

	mu   sync.Mutex
	to   string
	open map[net.Conn]bool
}

func newForward(t testing.TB, to string) *forward {
	f := &forward{to: to, open: map[net.Conn]bool{}}
	f.address = servertest.Listen(t, f.serve).String()
	t.Cleanup(func() { f.cut("") })
	return f
}

func (f *forward) serve(client net.Conn) {
	defer client.Close()
	f.mu.Lock()
	to := f.to
	f.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	f.mu.Lock()
	f.open[client] = f.to == to
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.open, client)
		f.mu.Unlock()
	}()
	go func() {
		defer client.Close()
		_, _ = io.Copy(client, server)
	}()
	_, _ = io.Copy(server, client)
}

// cut ends what is open; what comes next is led to another server.
func (f *forward) cut(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
	for conn := range f.open {
		_ = conn.Close()
	}
}

func value[T any](t testing.TB, db interface {
	QueryRow(query string, args ...any) *sql.Row
}, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, db.QueryRow(query, args...).Scan(&v), query)
	return v
}
