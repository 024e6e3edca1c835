//go:build unix

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
)

// readable are the paths that anybody may ask for.
var readable = []string{"/", "/style.css", "/page.js", "/icon.svg", "/healthz", "/livez", "/readyz",
	"/lock", "/terms", "/runs", "/jobs", "/metrics", "/nonsense", "/lock?limit=x", "/runs?limit=x"}

// everything is all that a stranger can read of a replica.
func (r *replica) everything() string {
	r.t.Helper()
	var b strings.Builder
	for _, path := range readable {
		a := r.get(path)
		fmt.Fprintf(&b, "GET %s: %d %v\n%s\n", path, a.status, a.header, a.body)
	}
	for _, path := range []string{"/pause", "/resume", "/jobs/tick/run", "/jobs/tick/pause",
		"/jobs/nonsense/run", "/orders/handover", "/orders/run", "/orders/pause"} {
		a := r.order(path)
		fmt.Fprintf(&b, "POST %s: %d %v\n%s\n", path, a.status, a.header, a.body)
	}
	res, err := client.Get(r.url + "/events")
	require.NoError(r.t, err)
	defer res.Body.Close()
	event, err := bufio.NewReader(res.Body).ReadString('}') // of the first event
	require.NoError(r.t, err)
	fmt.Fprintf(&b, "GET /events: %d %v\n%s\n", res.StatusCode, res.Header, event)
	return b.String()
}

// The server is stopped while a leader has a password in its URL, and comes back.
func TestInAnOutageNobodyLeadsAllServeAndNothingTellsThePassword(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	u, err := url.Parse(server.Database(t))
	require.NoError(t, err)
	const password = "s3cret&w0rd"
	u.User = url.UserPassword(u.User.Username(), password) // the server does not ask for it
	f := newFleetOn(t, u.String(), "CONTROL=true", "LOCK_TTL=3s", "LOCK_HEARTBEAT=300ms",
		"TICK=200ms")
	leader, term := f.startLeader()
	f.start()
	text := leader.everything()
	require.Equal(t, http.StatusOK, leader.order("/jobs/tick/resume").status) // it has paused it
	leader, term = awaitOneLeader(t, f.replicas, term-1)
	server.Stop(t, "immediate")
	eventually(t, "the leader steps down, and all serve meanwhile", func() error {
		for _, r := range f.replicas {
			asked := time.Now()
			if a := r.get("/readyz"); a.status != http.StatusServiceUnavailable {
				return fmt.Errorf("GET /readyz: %d", a.status)
			}
			require.Less(t, time.Since(asked), soon(10*time.Second),
				"an answer of /readyz is bounded by 2 s")
			require.Equal(t, http.StatusOK, r.get("/healthz").status)
			require.True(t, r.get("/").contains(">This replica</h2>"))
		}
		var said struct{ Self selfState }
		decode(t, leader.get("/lock").body, &said)
		if said.Self.Leader {
			return fmt.Errorf("%+v", said)
		}
		return nil
	})
	leader.awaitLine("lost the lock", fmt.Sprintf("term=%d", term))
	asked := time.Now()
	require.Equal(t, http.StatusServiceUnavailable, leader.order("/jobs/nonsense/run").status)
	require.Less(t, time.Since(asked), soon(2*orderTimeout))
	text += leader.everything()

	server.StartAgain(t)
	leader, term = awaitOneLeader(t, f.replicas, term)
	leader.awaitStatus("done", term)
	requireNoTickTwice(t, leader)
	for _, r := range f.replicas {
		r.stop()
		text += r.log.String()
	}
	f.requireNoRow()
	for _, form := range []string{password, url.QueryEscape(password), "s3cret", "w0rd"} {
		require.NotContains(t, text, form)
	}
}

// What is sent slowly, or never ends, is cut off.
func TestTheServerDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	r := f.start()
	u, err := url.Parse(r.url)
	require.NoError(t, err)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", u.Host)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	slow := dial()
	_, err = io.WriteString(slow, "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
	require.NoError(t, err)

	eventually(t, "a header that is too long is answered", func() error {
		c := dial()
		// it may be cut off, and on a busy machine the answer with it
		_, _ = fmt.Fprintf(c, "GET /lock HTTP/1.1\r\nHost: a\r\nX-Long: %s\r\n\r\n",
			strings.Repeat("x", 100<<10))
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode)
		}
		return err
	})

	for _, method := range []string{"BREW", "TRACE", "PROPFIND"} {
		a, err := r.try(method, "/")
		require.NoError(t, err)
		require.Equal(t, http.StatusMethodNotAllowed, a.status, method)
	}

	_, err = io.ReadAll(slow)
	require.NoError(t, err, "the connection was not ended")
}
