package statuspage

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A site whose name was pointed at the app is of the same origin, so that the
// check of the origin refuses nothing.
func TestOtherHostsReadNothingAndOrderNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	ref := db.lead(t, other, "")
	db.run(t, ref, "tick", "", "")
	asked := func(h http.Handler, method, path, host string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader("job=tick&term=1"))
		r.Host = host
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+host)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	h := newHandler(t, db, func(c *Config) { c.Control, c.Hosts = true, []string{"app.example"} })
	for _, path := range []string{"/", "/style.css", "/page.js", "/icon.svg", "/events",
		"/nonsense"} {
		w := asked(h, http.MethodGet, path, "evil.example")
		assert.Equal(t, http.StatusMisdirectedRequest, w.Code, path)
		assert.Equal(t, `host "evil.example" is not answered here: `+
			`the app can add it (Hosts, in the Config of package statuspage)`+"\n",
			w.Body.String())
	}
	for _, path := range []string{"/orders/run", "/orders/pause", "/orders/resume",
		"/orders/handover"} {
		assert.Equal(t, http.StatusMisdirectedRequest, asked(h,
			http.MethodPost, path, "evil.example").Code, path)
	}
	assert.Zero(t, db.inbox(t))
	assert.Zero(t, db.terms(t)[0].Revoked)

	for _, host := range []string{"localhost:8080", "127.0.0.1", "app.example:443"} {
		assert.Equal(t, http.StatusOK, asked(h, http.MethodGet, "/", host).Code, host)
		assert.Equal(t, http.StatusSeeOther, asked(h, http.MethodPost,
			"/orders/run", host).Code, host)
	}
	any := newHandler(t, db, func(c *Config) { c.Hosts = []string{"*"} })
	assert.Equal(t, http.StatusOK, asked(any, http.MethodGet, "/", "evil.example").Code)

	_, err := New(Config{Lock: h.cfg.Lock, Hosts: []string{"http://app.example"}})
	require.ErrorContains(t, err, `host "http://app.example" is not a host name or an IP address`)
}
