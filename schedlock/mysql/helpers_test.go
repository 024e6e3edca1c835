package mysql_test

import (
	"bytes"
	"database/sql"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

// patience bounds a wait that should be short.
const patience = 20 * time.Second

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, patience, 10*time.Millisecond, what)
}

// ends asserts that done is closed soon.
func ends(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the wait goes on")
	}
}

func newLock(t testing.TB, s *mysql.Store, ttl time.Duration,
	opts ...schedlock.Option) *schedlock.Lock {
	t.Helper()
	lock, err := schedlock.New(s, append([]schedlock.Option{schedlock.WithTTL(ttl),
		schedlock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(t, err)
	return lock
}

// A syncBuffer is what a logger writes to while a test reads it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
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
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	f := &forward{address: listener.Addr().String(), to: to, open: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { f.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		f.cut("")
		all.Wait()
	})
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
