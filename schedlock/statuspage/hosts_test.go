package statuspage

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A site whose name was pointed at the app is of the same origin, so that the
// check of the origin refuses nothing.
func TestOtherHostsReadNothingAndOrderNothing(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", "", "")
	h := newHandler(t, db, func(c *Config) { c.Control, c.Hosts = true, []string{"app.example"} })
	for _, path := range []string{"/", "/style.css", "/page.js", "/icon.svg", "/events",
		"/nonsense"} {
		w := get(h, path, "Host", "evil.example")
		assert.Equal(t, http.StatusMisdirectedRequest, w.Code, path)
		assert.Equal(t, `host "evil.example" is not answered here: `+
			`the app can add it (Hosts, in the Config of package statuspage)`+"\n",
			w.Body.String())
	}
	for _, path := range orderPaths {
		w := post(h, path, url.Values{"job": {"tick"}, "term": {fmt.Sprint(ref.Term)}},
			"Host", "evil.example", "Origin", "http://evil.example")
		assert.Equal(t, http.StatusMisdirectedRequest, w.Code, path)
	}
	assert.Zero(t, db.inbox(t))
	assert.Zero(t, db.terms(t)[0].Revoked)

	for _, host := range []string{"localhost:8080", "127.0.0.1", "app.example:443"} {
		assert.Equal(t, http.StatusOK, get(h, "/", "Host", host).Code, host)
		assert.Equal(t, http.StatusSeeOther, post(h, "/orders/run", url.Values{"job": {"tick"}},
			"Host", host, "Origin", "http://"+host).Code, host)
	}
	any := newHandler(t, db, func(c *Config) { c.Hosts = []string{"*"} })
	assert.Equal(t, http.StatusOK, get(any, "/", "Host", "evil.example").Code)
}
