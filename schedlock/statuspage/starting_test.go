package statuspage

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/startup"
)

// With -race it shows that pages may be asked for while the app starts.
func TestThePageOfAnAppThatHasNotStartedSaysSo(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", "", "")
	app, err := startup.NewApp(startup.Config{Log: newHandler(t, db, nil).cfg.Log,
		Open: func(context.Context) (driver.Store, error) { return db, nil }})
	require.NoError(t, err)
	h := newHandler(t, db, func(c *Config) {
		c.App, c.Lock, c.Runner, c.Control = app, nil, nil, true
		c.PublicError = func(error) string { return "asked for an error" }
	})
	w := get(h, "/")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code, "as for a database that does not answer")
	assert.NotEmpty(t, w.Header().Get("Retry-After"))
	assert.Contains(t, w.Body.String(), `<p class="number"><strong>starting</strong></p>`)
	assert.Contains(t, w.Body.String(), "this replica is starting: its database is not open yet")
	assert.Contains(t, w.Body.String(), `id="jobs-list"`)
	assert.NotContains(t, w.Body.String(), "does not answer")
	assert.NotContains(t, w.Body.String(), "asked for an error")
	for _, path := range orderPaths {
		w := post(h, path, url.Values{"job": {"tick"}, "term": {"1"}})
		assert.Equal(t, http.StatusServiceUnavailable, w.Code, path)
		assert.Contains(t, w.Body.String(), "this replica is starting", path)
	}

	// An open page goes over to what there is.
	base, _ := serve(t, h, nil)
	stream := open(t, base)
	first := stream.next()
	assert.Contains(t, first.Parts[partSelf], "starting")
	assert.Equal(t, "starting", first.Title)
	var asking sync.WaitGroup
	asking.Go(func() {
		eventually(t, "the page is there", func() bool { return get(h, "/").Code == http.StatusOK })
	})
	require.NoError(t, app.Start(ctx))
	asking.Wait()
	stream.until(func(m message) bool { return strings.Contains(m.Parts[partJobs], "tick") })
	assert.Contains(t, get(h, "/").Body.String(), other.Hostname)
	w = post(h, "/orders/pause", url.Values{"job": {"tick"}, "by": {"ann"}})
	assert.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	require.NoError(t, app.Stop(ctx))
}
