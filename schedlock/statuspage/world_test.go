package statuspage

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/child"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks"
)

func TestMain(m *testing.M) {
	child.InMemory()
	goleak.VerifyTestMain(browsertest.EndAfter(m))
}

var (
	ctx    = context.Background()
	here   = driver.Owner{PID: 63, Hostname: "here"}
	other  = driver.Owner{PID: 41, Hostname: "web-1"}
	timing = driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
		HeartbeatInterval: 10 * time.Second}
)

// A database can be broken, counts how often it is looked at, and has a clock
// that a test can set.
type database struct {
	*memory.Store
	broken     atomic.Pointer[error]     // everything
	noRuns     atomic.Pointer[error]     // the ledger only
	calls      atomic.Int64              // of whatever the page reads
	termsAsked atomic.Int64              // terms that were asked for
	runsAsked  atomic.Int64              // queries for runs
	runsRead   atomic.Int64              // runs that they have returned
	at         atomic.Pointer[time.Time] // nil: the real time
}

func newDatabase() *database {
	d := &database{}
	d.Store = memory.New(memory.WithClock(func() time.Time {
		if at := d.at.Load(); at != nil {
			return *at
		}
		return time.Now()
	}))
	return d
}

func (d *database) set(t time.Time) { d.at.Store(&t) }

func (d *database) fail(err error) { d.broken.Store(&err) }

func (d *database) failRuns(err error) { d.noRuns.Store(&err) }

func (d *database) heal() {
	d.broken.Store(nil)
	d.noRuns.Store(nil)
}

func (d *database) Look(ctx context.Context) (driver.Snapshot, error) {
	d.count()
	if err := d.broken.Load(); err != nil {
		return driver.Snapshot{}, *err
	}
	return d.Store.Look(ctx)
}

func (d *database) Jobs(ctx context.Context) ([]ledger.Job, error) {
	d.count()
	if err := d.broken.Load(); err != nil {
		return nil, *err
	}
	if err := d.noRuns.Load(); err != nil {
		return nil, *err
	}
	return d.Store.Jobs(ctx)
}

func (d *database) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	d.termsAsked.Add(int64(limit))
	d.count()
	return d.Store.Terms(ctx, limit)
}

func (d *database) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	d.runsAsked.Add(1)
	d.count()
	runs, err := d.Store.Runs(ctx, job, limit)
	d.runsRead.Add(int64(len(runs)))
	return runs, err
}

func (d *database) Trigger(ctx context.Context, o ledger.Action) (ledger.Request, error) {
	if err := d.broken.Load(); err != nil {
		return ledger.Request{}, *err
	}
	return d.Store.Trigger(ctx, o)
}

// lead puts an owner in the row; reason is how the holder before ended.
func (d *database) lead(t testing.TB, o driver.Owner, reason driver.EndReason) driver.Ref {
	t.Helper()
	view, err := d.Store.Look(ctx)
	require.NoError(t, err)
	ref := driver.Ref{Owner: o, Token: driver.NewToken()}
	grant, err := d.Acquire(ctx, driver.Claim{Ref: ref,
		Timing: timing, Expected: view, Reason: reason})
	require.NoError(t, err)
	ref.Term = grant.Term
	return ref
}

// led is a database in which other leads.
func led(t testing.TB) (*database, driver.Ref) {
	t.Helper()
	d := newDatabase()
	return d, d.lead(t, other, "")
}

// ended lets a leader write the end of its term.
func (d *database) ended(t testing.TB, ref driver.Ref, reason driver.EndReason) {
	t.Helper()
	_, err := d.Release(ctx, ref, reason)
	require.NoError(t, err)
}

func (d *database) finish(t testing.TB, run ledger.Run, end ledger.End) {
	t.Helper()
	_, err := d.Finish(ctx, run, end)
	require.NoError(t, err)
}

// asked starts a run that somebody has asked for.
func (d *database) asked(t testing.TB, ref driver.Ref, job, by, reason string) ledger.Run {
	t.Helper()
	request, err := d.Trigger(ctx, ledger.Action{Job: job, By: by, Reason: reason})
	require.NoError(t, err)
	run, started, err := d.Answer(ctx, ref, request, "")
	require.NoError(t, err)
	require.True(t, started)
	return run
}

// paused pauses a job, or all of them if it is "".
func (d *database) paused(t testing.TB, job, by, reason string) {
	t.Helper()
	_, err := d.Pause(ctx, ledger.Action{Job: job, By: by, Reason: reason})
	require.NoError(t, err)
}

func (d *database) beat(t testing.TB, ref driver.Ref) {
	t.Helper()
	_, err := d.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
}

// run stores a job, with one run if status is not "".
func (d *database) run(t testing.TB, ref driver.Ref, job string, status ledger.Status,
	text string) {
	t.Helper()
	now := time.Now().Truncate(time.Second)
	decision := ledger.Decision{Job: job, Spec: "interval 1h0m0s", To: now}
	if status != "" {
		decision.Start = now
	}
	run, started, err := d.Decide(ctx, ref, decision)
	require.NoError(t, err)
	if started && status != ledger.InProgress {
		d.finish(t, run, ledger.End{Status: status, Error: text, Took: 1500 * time.Millisecond})
	}
}

func (d *database) terms(t testing.TB) []driver.Term {
	t.Helper()
	terms, err := d.Terms(ctx, 100)
	require.NoError(t, err)
	return terms
}

func (d *database) inbox(t testing.TB) ledger.Pending {
	t.Helper()
	inbox, err := d.Pending(ctx)
	require.NoError(t, err)
	return inbox
}

// moving is a database whose clock a test moves on.
type moving struct {
	*database
	t    testing.TB
	now  time.Time
	ref  driver.Ref
	jobs map[string]time.Time // their cursors
}

func movingFrom(t testing.TB, now time.Time) *moving {
	m := &moving{database: newDatabase(), t: t, now: now, jobs: map[string]time.Time{}}
	m.set(now)
	return m
}

// before opens a database whose clock stands so long before what the page sees as now.
func before(t testing.TB, d time.Duration) *moving {
	return movingFrom(t, time.Now().UTC().Truncate(time.Second).Add(-d))
}

func (m *moving) pass(d time.Duration) {
	m.now = m.now.Add(d)
	m.set(m.now)
}

func (m *moving) leads(host string, pid int, reason driver.EndReason) {
	m.ref = m.lead(m.t, driver.Owner{PID: pid, Hostname: host}, reason)
}

const fiveMinutely = "every 5m0s offset 0s"

// start starts a run of a job, now.
func (m *moving) start(name string) ledger.Run {
	m.t.Helper()
	run, started, err := m.Decide(ctx, m.ref, ledger.Decision{Job: name, Spec: fiveMinutely,
		From: m.jobs[name], To: m.now, Start: m.now})
	require.NoError(m.t, err)
	require.True(m.t, started)
	m.jobs[name] = m.now
	return run
}

// job runs a job once, now; text is the error if it fails.
func (m *moving) job(name string, status ledger.Status, took time.Duration, text string) {
	m.t.Helper()
	run := m.start(name)
	if status != ledger.InProgress {
		m.set(m.now.Add(took))
		m.finish(m.t, run, ledger.End{Status: status, Error: text, Took: took})
		m.set(m.now)
	}
}

// tried runs a job now, in several attempts a second apart, of which the last one is done.
func (m *moving) tried(name string, attempts int, text string) ledger.Run {
	m.t.Helper()
	run := m.start(name)
	for i := range attempts - 1 {
		m.finish(m.t, run, ledger.End{Status: ledger.Failed, Error: fmt.Sprint(text, i+1),
			RetryAt: m.now})
		m.pass(time.Second)
		var started bool
		var err error
		run, started, err = m.Retry(ctx, m.ref, run)
		require.NoError(m.t, err)
		require.True(m.t, started)
	}
	m.finish(m.t, run, ledger.End{Status: ledger.Done})
	return run
}

func (m *moving) release() { m.ended(m.t, m.ref, driver.EndReleased) }

// minutely has n runs of a job, the newest at noon, one a minute; each tenth has failed.
func minutely(t testing.TB, job string, n int) *moving {
	t.Helper()
	m := movingFrom(t, noon.Add(-time.Duration(n)*time.Minute))
	m.leads(other.Hostname, other.PID, "")
	for i := range n {
		m.pass(time.Minute)
		if (n-i)%10 == 0 {
			m.job(job, ledger.Failed, time.Second, fmt.Sprint("no such host ", i))
		} else {
			m.job(job, ledger.Done, time.Second, "")
		}
	}
	return m
}

// store is what a page needs of a database here.
type store interface {
	driver.Store
	ledger.Store
}

// newHandler makes a page of a replica that does not campaign.
func newHandler(t testing.TB, db store, change func(*Config)) *Handler {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	lock, err := schedlock.New(db, schedlock.WithOwner(here), schedlock.WithLogger(quiet))
	require.NoError(t, err)
	runner, err := tasks.NewRunner(lock, db, []tasks.Job{{
		Name: "tick", Spec: tasks.Every(time.Hour), Do: func(context.Context, tasks.Run) error {
			return nil
		},
	}}, tasks.WithLogger(quiet))
	require.NoError(t, err)
	// httptest asks for example.com.
	cfg := Config{Lock: lock, Runner: runner, Log: quiet, Hosts: []string{"example.com"}}
	if change != nil {
		change(&cfg)
	}
	h, err := New(cfg)
	require.NoError(t, err)
	h.live.every = 5 * time.Millisecond
	return h
}

// newPage makes a page for a browser, which draws less often.
func newPage(t testing.TB, db store, change func(*Config)) *Handler {
	t.Helper()
	h := newHandler(t, db, change)
	h.live.every = 50 * time.Millisecond
	return h
}

func withControl(c *Config) { c.Control = true }

var orderPaths = []string{"/orders/run", "/orders/pause", "/orders/resume", "/orders/handover"}

// send sends a request with these headers, each a name and a value.
func send(h http.Handler, method, path string, form url.Values,
	headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for header := range slices.Chunk(headers, 2) {
		if r.Header.Set(header[0], header[1]); header[0] == "Host" {
			r.Host = header[1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodGet, path, nil, headers...)
}

// post sends a form as the page itself does.
func post(h http.Handler, path string, form url.Values,
	headers ...string) *httptest.ResponseRecorder {
	headers = append(headers, "Sec-Fetch-Site", "same-origin")
	return send(h, http.MethodPost, path, form, headers...)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	await(t, 2*time.Millisecond, what, ok)
}

// await asks that often.
func await(t testing.TB, every time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(every) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// A client reads a stream of events.
type client struct {
	t      testing.TB
	lines  *bufio.Reader
	cancel context.CancelFunc
	res    *http.Response
}

// open opens a stream, with these headers; close it, or let the test do so.
func open(t testing.TB, base string, headers ...string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"events", nil)
	require.NoError(t, err)
	for header := range slices.Chunk(headers, 2) {
		r.Header.Set(header[0], header[1])
	}
	transport := &http.Transport{}
	res, err := transport.RoundTrip(r)
	require.NoError(t, err)
	c := &client{t: t, lines: bufio.NewReader(res.Body), res: res, cancel: func() {
		cancel()
		res.Body.Close()
		transport.CloseIdleConnections()
	}}
	t.Cleanup(c.cancel)
	return c
}

// next returns the next event.
func (c *client) next() (m message) {
	c.t.Helper()
	for {
		line, err := c.lines.ReadString('\n')
		require.NoError(c.t, err, "the stream has ended")
		if data, found := strings.CutPrefix(line, "data: "); found && strings.HasPrefix(data, "{") {
			require.NoError(c.t, json.Unmarshal([]byte(data), &m))
			return m
		}
	}
}

// until returns the first event that is as it should be.
func (c *client) until(ok func(message) bool) message {
	c.t.Helper()
	for {
		if m := c.next(); ok(m) {
			return m
		}
	}
}

// serve mounts a page at /status/ of a server.
func serve(t testing.TB, h http.Handler,
	change func(*http.Server)) (base string, server *httptest.Server) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/status/", h)
	server = httptest.NewUnstartedServer(mux)
	if change != nil {
		change(server.Config)
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL + "/status/", server
}
