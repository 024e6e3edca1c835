package statuspage

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// Behind a load balancer the stream is often from another replica than the page.
func TestOnlyAReplicaThatWasHeardIsMissed(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	db, _ := led(t)
	first := newPage(t, db, nil)
	second := newPage(t, db, func(c *Config) {
		there := driver.Owner{PID: 64, Hostname: "there"}
		lock, err := schedlock.New(db, schedlock.WithOwner(there), schedlock.WithLogger(c.Log))
		require.NoError(t, err)
		c.Lock, c.Runner = lock, nil
	})
	var back atomic.Bool // the stream is from the first one too
	k, server := browse(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" && !back.Load() {
			second.ServeHTTP(w, r)
			return
		}
		first.ServeHTTP(w, r)
	}))
	require.Empty(t, browsertest.Eval[string](k.Browser,
		`document.getElementById("cut").textContent`))

	back.Store(true)
	server.CloseClientConnections()
	k.sees("#cut", "pid 64 on there does not answer this page any more; "+
		"you now see what pid 63 on here knows.")
}
