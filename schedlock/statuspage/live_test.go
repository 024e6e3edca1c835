package statuspage

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

func TestTheStreamTellsWhatHasChanged(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	start := time.Now().UTC().Truncate(time.Second)
	db.set(start)
	ref := db.lead(t, other, "")
	base, _ := serve(t, newHandler(t, db, nil), nil)
	c := open(t, base)
	assert.Equal(t, "text/event-stream", c.res.Header.Get("Content-Type"))
	assert.Equal(t, "no-store", c.res.Header.Get("Cache-Control"))

	m := c.next()
	assert.Equal(t, "pid 41 on web-1 leads", m.Title)
	assert.Equal(t, "pid 63 on here", m.Self)
	assert.Equal(t, iconStandby, m.Icon)
	assert.Equal(t, start.UnixMilli(), m.Now)
	assert.Equal(t, beat{At: start.UnixMilli(), TTL: 60000, Renew: 45000, Late: 25000,
		Words: "1 min", Rule: m.Beat.Rule}, *m.Beat)
	for _, part := range []string{partAlert, partLeader, partHandover, partSelf, partTimeline,
		partTerms, partJobs} {
		assert.Contains(t, m.Parts, part)
	}

	// A heartbeat moves the bar, and replaces nothing.
	db.set(start.Add(100 * time.Millisecond))
	db.beat(t, ref)
	m = c.next()
	assert.Equal(t, start.Add(100*time.Millisecond).UnixMilli(), m.Beat.At)
	assert.Empty(t, m.Parts)

	// A run changes its job.
	db.run(t, ref, "tick", ledger.Done, "")
	m = c.until(func(m message) bool { return m.Parts[partJobs] != "" })
	assert.Contains(t, m.Parts[partJobs], "latest 1 run: 1 done")
	assert.NotContains(t, m.Parts, partLeader)

	// Another leader.
	db.ended(t, ref, driver.EndReleased)
	m = c.until(func(m message) bool { return m.Parts[partLeader] != "" })
	assert.Equal(t, "nobody leads", m.Title)
	assert.Nil(t, m.Beat)
	db.lead(t, driver.Owner{PID: 52, Hostname: "web-2"}, "")
	m = c.until(func(m message) bool { return m.Title == "pid 52 on web-2 leads" })
	assert.Contains(t, m.Parts[partLeader], "web-2")
	assert.Contains(t, m.Parts[partTimeline], "pid 52 on web-2")
	assert.Contains(t, m.Parts[partTerms], "pid 52 on web-2")
}

func TestNothingIsSentWhileNothingChanges(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), nil)
	s := &snapshot{now: noon, owner: here}
	sent, last := map[string]string{}, ""
	assert.NotEmpty(t, newUpdate(h, s, nil).event(usualSpan, true, sent, &last))
	later := *s
	later.now = s.now.Add(time.Millisecond)
	assert.Empty(t, newUpdate(h, &later, nil).event(usualSpan, true, sent, &last))
	later.view.Row = &driver.Row{Ref: driver.Ref{Owner: other, Term: 7}, HeartbeatAt: later.now,
		CreatedAt: later.now, Timing: timing}
	later.view.Now = later.now
	assert.NotEmpty(t, newUpdate(h, &later, nil).event(usualSpan, true, sent, &last))
	later.now = later.now.Add(time.Millisecond)
	later.view.Now = later.now
	event := newUpdate(h, &later, nil).event(usualSpan, true, sent, &last)
	assert.Empty(t, event, "ages run in the page")
}

func TestThePageHealsLive(t *testing.T) {
	t.Parallel()
	db, _ := led(t)
	db.fail(errors.New("cannot open /secret/app.db"))
	base, _ := serve(t, newHandler(t, db, withControl), nil)
	c := open(t, base)
	m := c.next()
	assert.True(t, m.Stale)
	assert.Equal(t, "unknown who leads", m.Title)
	assert.Contains(t, m.Parts[partAlert], "the database cannot be read")
	assert.NotContains(t, m.Parts, partTerms, "what stands there stays")
	order, changed := m.Parts[partHandover]
	assert.True(t, changed)
	assert.Empty(t, order, "while nobody can tell who leads, nobody is told to leave")
	db.heal()
	m = c.until(func(m message) bool { return !m.Stale })
	assert.Equal(t, "pid 41 on web-1 leads", m.Title)
	assert.Contains(t, m.Parts, partTerms)
	assert.NotEmpty(t, m.Parts[partHandover])
	alert, changed := m.Parts[partAlert]
	assert.True(t, changed)
	assert.Empty(t, alert)
}

func TestOneReaderServesAllAndStopsWithTheLast(t *testing.T) {
	t.Parallel()
	db, _ := led(t)
	h := newHandler(t, db, nil)
	db.set(time.Now())         // nothing is sent, so no failed write ends a stream
	h.live.silence = time.Hour // nor this
	base, _ := serve(t, h, nil)
	running := func() (streams int, poller bool) {
		h.live.mu.Lock()
		defer h.live.mu.Unlock()
		return len(h.live.streams), h.live.stop != nil
	}
	for range 2 { // it can begin again
		first, second := open(t, base), open(t, base)
		first.next()
		second.next()
		h.live.mu.Lock()
		done := h.live.done
		h.live.mu.Unlock()
		first.cancel()
		eventually(t, "one stream is left", func() bool {
			n, poller := running()
			return n == 1 && poller
		})
		calls := db.calls.Load()
		eventually(t, "it still reads", func() bool { return db.calls.Load() > calls+2 })
		second.cancel()
		eventually(t, "nothing is left", func() bool {
			n, poller := running()
			return n == 0 && !poller
		})
		<-done
	}
	calls := db.calls.Load()
	time.Sleep(20 * h.live.every)
	assert.Equal(t, calls, db.calls.Load(), "nobody reads for nobody")
}

func TestAReaderReadsWhatHasChanged(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	for _, name := range []string{"clean", "import", "mail"} {
		db.run(t, ref, name, ledger.Done, "")
	}
	h := newHandler(t, db, nil)
	s := h.read(ctx, nil, true)
	asked := func() (terms, runs int64) {
		s = h.read(ctx, s, true)
		require.NoError(t, s.err)
		return db.termsAsked.Swap(0), db.runsAsked.Swap(0)
	}
	asked()
	terms, runs := asked()
	assert.Zero(t, terms)
	assert.EqualValues(t, 1, runs, "one query for all jobs")

	// A run that was asked for moves no cursor.
	run := db.asked(t, ref, "mail", "ann", "")
	_, runs = asked()
	assert.EqualValues(t, 2, runs, "and one for the job")
	assert.Equal(t, run, s.jobs[2].runs[0])
	db.finish(t, run, ledger.End{Status: ledger.Done})
	asked()
	assert.Equal(t, ledger.Done, s.jobs[2].runs[0].Status)

	db.ended(t, ref, driver.EndReleased)
	db.lead(t, driver.Owner{PID: 52, Hostname: "web-2"}, "")
	terms, _ = asked()
	assert.EqualValues(t, newTerms, terms)
	assert.Equal(t, db.terms(t), s.terms)
	assert.Equal(t, h.read(ctx, nil, true).jobs, s.jobs)

	s.full = s.full.Add(-everything)
	db.termsAsked.Store(0)
	terms, _ = asked()
	assert.EqualValues(t, maxTerms, terms, "what a hand has changed is seen in the end")
}

func TestAWatchedPageSendsLittle(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	for i := range 30 {
		db.run(t, ref, fmt.Sprint("job ", i), ledger.Failed, "the list cannot be read")
	}
	base, _ := serve(t, newHandler(t, db, nil), nil)
	sent := func(encoding string) int {
		c := open(t, base, "Accept-Encoding", encoding)
		defer c.cancel()
		var n counting
		text := io.TeeReader(c.res.Body, &n)
		if c.res.Header.Get("Content-Encoding") == "gzip" {
			var err error
			text, err = gzip.NewReader(text)
			require.NoError(t, err)
		}
		lines := bufio.NewReader(text)
		paused := false
		for events := 0; events < 5; {
			if paused = !paused; paused { // the jobs are sent again
				db.paused(t, "job 1", "ann", "")
			} else {
				_, err := db.Resume(ctx, "job 1", "ann")
				require.NoError(t, err)
			}
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			if strings.HasPrefix(line, "data: {") && strings.Contains(line, `id=\"job-job%201\"`) {
				events++
			}
		}
		return int(n)
	}
	plain, zipped := sent("br;q=1, gzip;q=0.0"), sent("gzip;q=0.5, br")
	t.Logf("%d bytes, %d with gzip", plain, zipped)
	assert.Less(t, 5*zipped, plain)
}

func TestThereIsALimitOfStreams(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), nil)
	base, _ := serve(t, h, nil)
	for range maxStreams - 1 {
		s := h.live.join()
		require.NotNil(t, s)
		defer h.live.leave(s)
	}
	last := open(t, base)
	last.next()
	full := open(t, base)
	assert.Equal(t, http.StatusServiceUnavailable, full.res.StatusCode)
	assert.Equal(t, "10", full.res.Header.Get("Retry-After"))
	text, err := io.ReadAll(full.lines)
	require.NoError(t, err)
	assert.Contains(t, string(text), "64 pages are open already")
	last.cancel()
	eventually(t, "there is room again", func() bool {
		s := h.live.join()
		if s != nil {
			h.live.leave(s)
		}
		return s != nil
	})
}

func TestAStreamOutlivesTheTimeoutsOfTheServer(t *testing.T) {
	missing.Long(t, "waits for the time-outs")
	t.Parallel()
	const limit = 100 * time.Millisecond
	db, ref := led(t)
	base, _ := serve(t, newHandler(t, db, nil), func(s *http.Server) {
		s.ReadTimeout, s.WriteTimeout = limit, limit
	})
	c := open(t, base)
	c.next()
	start := time.Now()
	for time.Since(start) < 5*limit {
		db.beat(t, ref)
		c.next()
	}
}

func TestAStreamWithoutNewsSaysThatItLives(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.set(time.Now())
	h := newHandler(t, db, nil)
	h.live.silence = 20 * time.Millisecond
	base, _ := serve(t, h, nil)
	c := open(t, base)
	c.next()
	for _, want := range []string{": keep-alive\n", "event: alive\n", "data: 1\n", "\n",
		": keep-alive\n"} {
		line, err := c.lines.ReadString('\n')
		for line == "\n" && want != "\n" { // the end of the event before
			line, err = c.lines.ReadString('\n')
		}
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
}

func TestAServerThatStopsEndsItsStreams(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	h := newHandler(t, db, nil)
	base, server := serve(t, h, nil)
	open(t, base).next()
	other, _ := serve(t, h, nil)
	goesOn := open(t, other)
	goesOn.next()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, server.Config.Shutdown(ctx), "it waits for no stream")
	db.beat(t, ref)
	goesOn.next()
}

// A stuck writer never takes anything until its deadline, as a client that is
// gone without a word.
type stuckWriter struct {
	http.ResponseWriter
	deadline chan time.Time
}

func (w *stuckWriter) SetWriteDeadline(t time.Time) error {
	select {
	case w.deadline <- t:
	default:
	}
	return nil
}

func (w *stuckWriter) Write([]byte) (int, error) { return 0, errors.New("i/o timeout") }
func (w *stuckWriter) Flush()                    {}

// A wrapped writer is that of a middleware which does not know of http.Flusher.
type wrapped struct{ http.ResponseWriter }

type unwraps struct{ wrapped }

func (w unwraps) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestAMiddlewareThatHidesTheFlusherIsNamed(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), nil)
	events := func(wrap func(http.ResponseWriter) http.ResponseWriter) *client {
		base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(wrap(w), r)
		}), nil)
		return open(t, base)
	}
	c := events(func(w http.ResponseWriter) http.ResponseWriter { return wrapped{w} })
	assert.Equal(t, http.StatusNotImplemented, c.res.StatusCode)
	text, err := c.lines.ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, text, "http.Flusher")
	c = events(func(w http.ResponseWriter) http.ResponseWriter { return unwraps{wrapped{w}} })
	assert.Equal(t, http.StatusOK, c.res.StatusCode)
	c.next()
}

func TestAClientThatTakesNothingIsLetGo(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), nil)
	w := &stuckWriter{httptest.NewRecorder(), make(chan time.Time, 1)}
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/events", nil)) // it returns
	left := time.Until(<-w.deadline)
	assert.Positive(t, left)
	assert.LessOrEqual(t, left, writeTimeout)
}

func TestTheStreamOfEachSpanHasItsOwnTimeline(t *testing.T) {
	t.Parallel()
	db, _ := led(t)
	u := newUpdate(newHandler(t, db, nil), newHandler(t, db, nil).read(ctx, nil, true), nil)
	assert.Regexp(t, `<svg data-from="\d+" data-to="\d+">`, u.timeline("7d")[partTimeline],
		"now moves without being sent")
	week := u.event("7d", true, map[string]string{}, new(string))
	quarter := u.event("15m", true, map[string]string{}, new(string))
	current := func(event string) string {
		_, rest, _ := strings.Cut(event, `aria-current=\"true\">`)
		name, _, _ := strings.Cut(rest, "<")
		return name
	}
	assert.Equal(t, []string{"7d", "15m"}, []string{current(week), current(quarter)})
}
