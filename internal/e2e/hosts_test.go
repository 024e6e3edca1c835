//go:build unix

package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// asHost asks as a browser does that came to the replica by another name.
func (r *replica) asHost(method, path, host string) answer {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, nil)
	require.NoError(r.t, err)
	req.Host = host
	if method == http.MethodPost {
		req.Header.Set("Origin", "http://"+host)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	res, err := client.Do(req)
	require.NoError(r.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(r.t, err)
	return answer{res.StatusCode, res.Header, body}
}

// A page of evil.example whose name has been pointed at this machine is of the
// same origin as the app, so that nothing but the name of the host gives it away.
func TestAPageWhoseNameWasReboundReadsNothingAndOrdersNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true", seldom)
	r, term := f.startLeader()
	r.awaitJob()
	port := r.url[strings.LastIndex(r.url, ":"):]
	for _, host := range []string{
		"evil.example", "192.0.2.7" + port, "ev\x80il",
	} {
		for _, path := range []string{"/", "/style.css", "/events", "/lock", "/terms", "/runs",
			"/jobs", "/metrics", "/nonsense"} {
			a := r.asHost("GET", path, host)
			if a.status == http.StatusBadRequest { // net/http does not take it for a host at all
				continue
			}
			require.Equal(t, http.StatusMisdirectedRequest, a.status, "%q %s: %s", host, path,
				a.body)
			require.Equal(t, 1, strings.Count(string(a.body), "\n"), "%s", a.body)
			require.Contains(t, string(a.body), "DEMOAPP_HOSTS")
		}
		for _, path := range []string{
			"/pause", "/resume", "/jobs/tick/run", "/jobs/tick/pause", "/orders/run?job=tick",
			"/orders/pause", "/orders/handover",
		} {
			a := r.asHost("POST", path, host)
			require.Contains(t, []int{http.StatusMisdirectedRequest, http.StatusBadRequest},
				a.status, "%q %s: %s", host, path, a.body)
		}
		for _, path := range []string{"/healthz", "/livez", "/readyz"} { // probes come by any name
			a := r.asHost("GET", path, host)
			require.Contains(t, []int{http.StatusOK, http.StatusBadRequest}, a.status, "%q %s",
				host, path)
		}
	}
	require.Contains(t, string(r.asHost("GET", "/lock", "evil.example").body), `"evil.example"`)
	require.Nil(t, r.job("tick").Paused)
	require.Empty(t, r.requested())
	require.Equal(t, term, r.lock().Self.Term)

	for _, host := range []string{"localhost", "127.0.0.1" + port} {
		require.Equal(t, http.StatusOK, r.asHost("GET", "/lock", host).status, host)
		require.Equal(t, http.StatusOK, r.asHost("POST", "/resume?all=true", host).status, host)
	}
}
