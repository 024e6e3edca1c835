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

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

var _ App = (*startup.App)(nil)

// A young app has no lock until it is opened.
type young struct {
	mu     sync.Mutex
	lock   *schedlock.Lock
	runner *tasks.Runner
}

func (y *young) Lock() *schedlock.Lock {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.lock
}

func (y *young) Runner() *tasks.Runner {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.runner
}

func (y *young) open(h *Handler) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.lock, y.runner = h.cfg.Lock, h.cfg.Runner
}

func TestThePageOfAnAppThatHasNotStartedSaysSo(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.run(t, db.lead(t, other, ""), "tick", "", "")
	app := &young{}
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
	for _, path := range []string{"/orders/handover", "/orders/run", "/orders/pause",
		"/orders/resume"} {
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
	app.open(newHandler(t, db, nil))
	stream.until(func(m message) bool { return strings.Contains(m.Parts[partJobs], "tick") })
	assert.Equal(t, http.StatusOK, get(h, "/").Code)
	assert.Contains(t, get(h, "/").Body.String(), other.Hostname)
	w = post(h, "/orders/pause", url.Values{"job": {"tick"}, "by": {"ann"}})
	assert.Equal(t, http.StatusSeeOther, w.Code, w.Body)
}

func TestAPageIsOfAnAppOrOfALock(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), nil)
	_, err := New(Config{})
	require.ErrorContains(t, err, "neither App nor Lock is set")
	_, err = New(Config{App: &young{}, Lock: h.cfg.Lock})
	require.ErrorContains(t, err, "App is set, and Lock or Runner too")
	_, err = New(Config{App: &young{}, Runner: h.cfg.Runner})
	require.ErrorContains(t, err, "App is set, and Lock or Runner too")
	_, err = New(Config{Runner: h.cfg.Runner})
	require.ErrorContains(t, err, "neither App nor Lock is set")
}

// Run it with -race.
func TestThePageMayBeAskedWhileTheAppStarts(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	app, err := startup.NewApp(startup.Config{Open: func(context.Context) (driver.Store, error) {
		return db, nil
	},
		Log: newHandler(t, db, nil).cfg.Log})
	require.NoError(t, err)
	h := newHandler(t, db, func(c *Config) { c.App, c.Lock, c.Runner = app, nil, nil })
	require.Equal(t, http.StatusServiceUnavailable, get(h, "/").Code)
	var wg sync.WaitGroup
	wg.Go(func() {
		eventually(t, "the page is there", func() bool { return get(h, "/").Code == http.StatusOK })
	})
	require.NoError(t, app.Start(ctx))
	wg.Wait()
	require.NoError(t, app.Stop(ctx))
}
