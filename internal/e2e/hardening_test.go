//go:build unix

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
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

func TestNoAnswerTellsAPath(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true")
	r, _ := f.startLeader()
	require.NotContains(t, r.everything(), f.dir)
	require.NoError(t, os.Rename(f.db, f.db+".away"))
	require.True(t, r.get("/lock").contains("is not the one that was opened"))
	text := r.everything()
	require.NotContains(t, text, f.dir, "while the database is gone")
	require.NotContains(t, text, "bans.db")
}

func TestNoAnswerAndNoLogLineTellsAPassword(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	u, err := url.Parse(s.Database(t))
	require.NoError(t, err)
	const password = "s3cret&w0rd"
	u.User = url.UserPassword(u.User.Username(), password) // the server does not ask for it
	f := newFleetOn(t, u.String(), "CONTROL=true", "LOCK_TTL=3s", "LOCK_HEARTBEAT=300ms")
	r, _ := f.startLeader()
	text := r.everything()
	s.Stop(t, "immediate")
	eventually(t, "it has noticed", func() error {
		if a := r.get("/readyz"); a.status != http.StatusServiceUnavailable {
			return fmt.Errorf("%d", a.status)
		}
		return nil
	})
	r.awaitLine("lost the lock")
	text += r.everything() + r.log.String()
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
