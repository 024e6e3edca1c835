package statuspage

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

func TestItWorksUnderAnyPath(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), withControl)
	for _, tt := range []struct {
		pattern, base string
		handler       http.Handler
	}{
		{"/", "/", h},
		{"/scheduler/", "/scheduler/", h},
		{"/a/b/", "/a/b/", h},
		{"/scheduler/", "/scheduler/", http.StripPrefix("/scheduler", h)},
		{"/scheduler/", "/scheduler/", http.StripPrefix("/scheduler/", h)},
		{"/{tenant}/s/", "/x/s/", http.StripPrefix("/x/s", h)},
	} {
		mux := http.NewServeMux()
		mux.Handle(tt.pattern, tt.handler)
		for path, contentType := range map[string]string{
			"": "text/html; charset=utf-8", "style.css": "text/css; charset=utf-8",
			"page.js": "text/javascript; charset=utf-8", "icon.svg?leading": "image/svg+xml",
		} {
			w := get(mux, tt.base+path)
			assert.Equal(t, http.StatusOK, w.Code, "%s at %s: %s", path, tt.pattern, w.Body)
			assert.Equal(t, contentType, w.Header().Get("Content-Type"))
		}
		for _, path := range []string{"nothing", "x/", "x/style.css", "style.css/"} {
			assert.Equal(t, http.StatusNotFound, get(mux, tt.base+path).Code, "%s at %s", path,
				tt.pattern)
		}
	}
	body := get(h, "/").Body.String()
	urls := regexp.MustCompile(`(?:href|src|action|formaction)="([^"]*)"`)
	for _, url := range urls.FindAllStringSubmatch(body, -1) {
		assert.NotRegexp(t, `^(/|[a-z]+:)`, url[1], "it is relative")
	}
}

func TestAWrongMethodIsAnsweredWithTheRightOnes(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), withControl)
	for path, allow := range map[string]string{
		"/": "GET, HEAD", "/style.css": "GET, HEAD", "/page.js": "GET, HEAD",
		"/icon.svg": "GET, HEAD", "/job-runs": "GET, HEAD",
		"/events": "GET", "/orders/run": "GET, HEAD, POST", "/orders/pause": "GET, HEAD, POST",
		"/orders/resume": "GET, HEAD, POST", "/orders/handover": "GET, HEAD, POST",
	} {
		w := send(h, http.MethodPut, path, nil)
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code, path)
		assert.Equal(t, allow, w.Header().Get("Allow"), path)
	}
	assert.Equal(t, http.StatusBadRequest, get(h, "/?span=2h").Code)
	assert.Contains(t, get(h, "/?span=2h").Body.String(),
		`span "2h" is not one of 15m, 1h, 24h, 7d, all`)
	assert.Equal(t, http.StatusBadRequest, get(h, "/events?span=2h").Code)
	for _, path := range []string{"/?x=1;span=1h", "/job-runs?job=tick&status=%zz",
		"/orders/pause?all=true&job=%zz"} {
		w := get(h, path)
		assert.Equal(t, http.StatusBadRequest, w.Code, path)
		assert.Contains(t, w.Body.String(), "write it as in ?NAME=VALUE", path)
	}
}

func TestTheAnswersForbidWhatThePageDoesNotNeed(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", ledger.Failed, "no")
	for _, control := range []bool{false, true} {
		h := newHandler(t, db, func(c *Config) { c.Control = control })
		forms := map[bool]string{false: "'none'", true: "'self'"}[control]
		for _, path := range []string{"/", "/style.css", "/page.js", "/icon.svg", "/nothing"} {
			header := get(h, path).Header()
			assert.Equal(t, "default-src 'none'; style-src 'self'; script-src 'self'; "+
				"connect-src 'self'; img-src 'self'; base-uri 'none'; "+
				"form-action "+forms+"; frame-ancestors 'none'",
				header.Get("Content-Security-Policy"), path)
			assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
			assert.Equal(t, "same-origin", header.Get("Referrer-Policy"))
			if strings.Contains(path, "style") || strings.Contains(path, "js") {
				assert.Equal(t, "no-cache", header.Get("Cache-Control"))
				w := get(h, path, "If-None-Match", header.Get("ETag"))
				assert.Equal(t, http.StatusNotModified, w.Code)
			} else {
				assert.Equal(t, "no-store", header.Get("Cache-Control"), path)
			}
		}
		body := get(h, "/").Body.String()
		assert.NotRegexp(t, `(?i)\sstyle=|\son[a-z]+=|<style|<script[^>]*>[^<]|https?://`, body)
	}
}

func TestTheTextOfOthersIsEscaped(t *testing.T) {
	t.Parallel()
	const evil = `</title></script><img src=x onerror="alert(1)"><time data-ago="1"></time>'{{.}}`
	db := newDatabase()
	ref := db.lead(t, driver.Owner{PID: 7, Hostname: evil}, "")
	db.run(t, ref, "job "+evil, ledger.Failed, "error "+evil)
	db.paused(t, "", "by "+evil, "why "+evil)
	db.paused(t, "job "+evil, "by "+evil, "why "+evil)
	_, err := db.Revoke(ctx, ref.Term, "told by "+evil, "told why "+evil)
	require.NoError(t, err)
	h := newHandler(t, db, func(c *Config) {
		c.Control, c.Title = true, "title "+evil
		c.Sections = []Section{{Title: "section " + evil,
			Render: func(context.Context) (template.HTML, error) {
				return "<b>the app's own</b>", nil
			}}}
		c.PublicError = func(error) string { return evil }
	})
	pages := []string{get(h, "/").Body.String()}
	base, _ := serve(t, h, nil)
	for _, part := range open(t, base).next().Parts {
		pages = append(pages, part)
	}
	db.fail(errors.New("down"))
	pages = append(pages, get(h, "/").Body.String())
	for _, page := range pages {
		assert.NotContains(t, page, "<img")
		assert.NotContains(t, page, `data-ago="1"`)
	}
	assert.Contains(t, pages[0], "<b>the app's own</b>")
	assert.GreaterOrEqual(t, strings.Count(pages[0], "onerror"), 10, "all of it is shown")
}

func TestAPageWithoutJavaScriptSaysItAll(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	now := time.Now().UTC().Truncate(time.Second)
	db.set(now.Add(-time.Hour))
	first := db.lead(t, driver.Owner{PID: 52, Hostname: "web-2"}, "")
	db.set(now.Add(-10 * time.Minute))
	_, err := db.Revoke(ctx, first.Term, "alice", "deploy")
	require.NoError(t, err)
	db.ended(t, first, driver.EndRevoked)
	db.set(now.Add(-9 * time.Minute))
	ref := db.lead(t, other, "")
	db.set(now.Add(-5 * time.Second))
	db.beat(t, ref)
	db.run(t, ref, "import", ledger.Failed, "list is gone")
	db.run(t, ref, "expire", ledger.Done, "")
	db.paused(t, "expire", "bob", "disk")
	db.set(now)

	w := get(newHandler(t, db, nil), "/")
	require.Equal(t, http.StatusOK, w.Code)
	bare := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(w.Body.String(), " ")
	text := strings.Join(strings.Fields(bare), " ")
	for _, want := range []string{
		"import has failed – schedlock", "Who leads pid 41 on web-1 leading for 9 min",
		"term " + fmt.Sprint(ref.Term),
		"last heartbeat 5 s ago 55 s of 1 min left",
		"pid 63 on here starting has not looked at the lock yet",
		"pid 52 on web-2", "50 min", "revoked, it was told to leave by alice: deploy",
		"1 min", "9 min so far still open",
		"import unknown to this replica failed last time", "takes 1.5 s, at most 1.5 s",
		"latest 1 run: 1 failed", "list is gone",
		"expire unknown to this replica paused", "paused by bob since", ": disk",
		"latest 1 run: 1 done",
		"tick every 1h", "no runs yet", "nobody led for 1 min",
	} {
		assert.Contains(t, text, want)
	}
	body := w.Body.String()
	assert.Contains(t, body, `<noscript><meta http-equiv="refresh" content="10"></noscript>`)
	assert.Contains(t, body, `width="91.67%"`, "the bar")
	assert.Regexp(t, `<svg data-from="\d+" data-to="\d+" x="9\d\.\d\d%">`, body, "now")
	for _, id := range []string{"leader", "beat", "bar", "self", "reason", "timeline", "terms",
		"jobs", "jobs-list", "alert", "stream"} {
		assert.Contains(t, body, `id="`+id+`"`)
	}
	assert.NotContains(t, body, "<button")
	assert.NotContains(t, body, "<form")
}

func TestItSaysHowTheLockStands(t *testing.T) {
	t.Parallel()
	type view = driver.Snapshot
	now := time.Now().UTC()
	row := driver.Row{Ref: driver.Ref{Owner: other, Term: 7}, State: driver.StateLeading,
		CreatedAt: now.Add(-time.Minute), HeartbeatAt: now, Timing: timing}
	ended := driver.Term{Ref: row.Ref, AcquiredAt: now.Add(-time.Minute),
		EndedAt: now.Add(-time.Second), EndReason: driver.EndReleased, TTL: time.Minute}
	open := driver.Term{Ref: row.Ref, TTL: time.Minute}
	revoked := driver.Term{Ref: row.Ref, Revoked: schedlock.Revocation{At: now, By: "alice",
		Reason: "deploy"}}
	edit := func(f func(*driver.Row)) *driver.Row { r := row; f(&r); return &r }
	in := func(s driver.State) *driver.Row { return edit(func(r *driver.Row) { r.State = s }) }
	aged := func(d time.Duration) *driver.Row {
		return edit(func(r *driver.Row) { r.HeartbeatAt = now.Add(-d) })
	}
	const leads, nobody = "pid 41 on web-1 leads", "nobody leads"
	for _, tt := range []struct {
		name     string
		view     view
		headline string
		words    string
	}{
		{"a leader", view{Row: &row}, leads, ""},
		{"that of another app", view{Row: edit(func(r *driver.Row) {
			r.App = driver.App{Name: "acme.com/shop", Program: "acme.com/shop"}
		})}, leads, "another app, acme.com/shop. While it leads no job of this app, billing, runs"},
		{"it drains", view{Row: in(driver.StateDraining)}, leads, "It is leaving"},
		{"it was told to leave", view{Row: in(driver.StateRevoked), Newest: &revoked}, leads,
			"Told to leave by alice (deploy); leaves at its next heartbeat"},
		{"its stamp lies ahead", view{Row: aged(-30 * time.Second)}, leads,
			"stamped in the future"},
		{"its stamp lies a TTL ahead", view{Row: aged(-time.Hour)}, "pid 41 on web-1 is stale",
			"Can't tell whether it leads"},
		{"its session has ended", view{Row: edit(func(r *driver.Row) {
			r.Grace = 5 * time.Second
		}), Sign: driver.SignEnded}, "pid 41 on web-1 is cut off",
			"Unless it is back within 5 s a standby takes over"},
		{"it has ended its term", view{Row: &row, Newest: &ended}, "pid 41 on web-1 is dead",
			"It has ended its term, but its row is still there. A standby takes over at once."},
		{"the same after a fail-over", view{Row: &row, Newest: &ended, FailedOver: true},
			"pid 41 on web-1 is dead",
			"The server has failed over: a standby takes over after 1 min"},
		{"it is late", view{Row: aged(25 * time.Second)}, leads, ""},
		{"it is past its renew deadline", view{Row: aged(45 * time.Second)},
			"pid 41 on web-1 is past its deadline",
			"No heartbeat for its renew deadline of 45 s: it has stopped itself, " +
				"and leads no more. A standby takes over after 1 min"},
		{"it is dead", view{Row: &row, Sign: driver.SignDead}, "pid 41 on web-1 is dead",
			"proven dead"},
		{"it has expired, and had been told to leave", view{Row: edit(func(r *driver.Row) {
			r.HeartbeatAt, r.State = now.Add(-2*time.Minute), driver.StateRevoked
		})}, "pid 41 on web-1 is expired", "No heartbeat for longer than its TTL of 1 min"},
		{"its row is locked", view{Row: &row, Blocker: "pid 9 of psql"},
			"pid 41 on web-1 is blocked", "its row is locked by pid 9 of psql"},
		{"it is free", view{Newest: &ended}, nobody, "The lock is free. A standby takes it at " +
			"its next look, within 1 s. Last: pid 41 on web-1, released."},
		{"nobody ever led", view{}, nobody, "Nobody ever has"},
		{"the row is missing", view{Newest: &open}, nobody,
			"The row of term 7 is missing although that has no end"},
		{"the row is missing, its process is dead", view{Newest: &open, Sign: driver.SignDead},
			nobody, "is proven dead. A standby takes over at once"},
		{"a new database, and a process holds the lease file", view{Sign: driver.SignAlive},
			nobody, "a process still holds"},
		{"a process holds the lease file", view{Newest: &ended, Sign: driver.SignAlive}, nobody,
			"a process still holds"},
		{"the server failed over", view{Newest: &ended, FailedOver: true}, nobody,
			"has failed over"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.view.Now = now
			s := &snapshot{now: now, view: tt.view, owner: other, // as in another container
				app: driver.App{Name: "billing", Program: "acme.com/billing"}}
			l := newLeader(newHandler(t, newDatabase(), nil), s)
			assert.Equal(t, tt.headline, l.Headline)
			assert.Contains(t, strings.Join(append(l.Words, l.Alerts...), " "), tt.words)
			if tt.headline == leads {
				assert.Equal(t, strings.Contains(tt.words, "another app"), len(l.Alerts) > 0)
				assert.Equal(t, iconStandby, l.Icon)
			} else {
				assert.Equal(t, iconNobody, l.Icon)
			}
			if tt.words == "" {
				assert.Empty(t, l.Words)
			}
			if b := newBeat(s); b != nil {
				assert.Equal(t, l.Late, l.State == "late")
				silent := now.Sub(tt.view.Row.HeartbeatAt)
				assert.Equal(t, silent >= timing.RenewDeadline, b.Class() == "low")
				assert.Equal(t, l.Late, b.Class() == "late")
			}
			if l.Silent {
				assert.NotContains(t, strings.Join(l.Words, " "), "what runs has returned",
					"it does nothing any more")
			}
		})
	}
}

func TestTheLeaderIsKnownToBeThisReplica(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), nil)
	lease, err := h.cfg.Lock.Acquire(ctx)
	require.NoError(t, err)
	body := get(h, "/").Body.String()
	assert.Contains(t, body, `<span class="tag here">this replica</span>`)
	assert.Contains(t, body, `href="icon.svg?leading"`)
	assert.Contains(t, body, "holds the lock; last confirmed under 1 s ago, trusted for 45 s")
	lease.StepDown(errors.New("database /secret/app.db was replaced"))
	body = get(h, "/").Body.String()
	assert.NotContains(t, body, "/secret")
	assert.Contains(t, body, fmt.Sprintf("its lease of term %d has ended (the lock was lost); "+
		"its work is returning", lease.Term()))
	require.NoError(t, lease.Release(ctx))
}

func TestWhileTheDatabaseDoesNotAnswerThisReplicaDoes(t *testing.T) {
	t.Parallel()
	db, _ := led(t)
	db.fail(errors.New("postgres://app:hunter2@db/x: cannot open /secret/app.db"))
	h := newHandler(t, db, nil)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = h.cfg.Lock.Wait(ctx)
	}()
	defer func() { cancel(); <-done }()
	eventually(t, "the standby has looked", func() bool {
		return h.cfg.Lock.Status().State == schedlock.SelfStandby
	})

	w := get(h, "/")
	body := w.Body.String()
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, body, "Can't tell who leads: the database cannot be read.")
	assert.Contains(t, body, "pid 63 on <strong>here</strong>")
	assert.Contains(t, body, "cannot read the lock: the database cannot be read")
	assert.NotRegexp(t, "secret|hunter2", body)

	db.heal()
	db.failRuns(errors.New("no such table: /secret"))
	w = get(h, "/")
	body = w.Body.String()
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, body, "pid 41 on</span> <strong>web-1</strong>", "that much is known")
	assert.Contains(t, body, "<title>Can&#39;t tell what happened before – schedlock</title>")
	assert.Contains(t, body, "Can't tell what happened before: the database cannot be read.")
	db.heal()

	db.fail(context.DeadlineExceeded)
	assert.Contains(t, get(h, "/").Body.String(), "the database did not answer in time")
	db.heal()
	w = get(h, "/")
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Contains(t, w.Body.String(), "pid 41 on web-1 leads")
}

func TestASectionThatFailsHidesNoOther(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), func(c *Config) {
		c.Sections = []Section{
			{Title: "Panics", Render: func(context.Context) (template.HTML, error) {
				panic("secret one")
			}},
			{Title: "Fails", Render: func(context.Context) (template.HTML, error) {
				return "", errors.New("secret two")
			}},
			{Title: "Works", Render: func(context.Context) (template.HTML, error) {
				return "<em>1,204 bans</em>", nil
			}},
		}
	})
	w := get(h, "/")
	body := w.Body.String()
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Contains(t, body, "this part cannot be shown")
	assert.Contains(t, body, "the database cannot be read")
	assert.Contains(t, body, "<em>1,204 bans</em>")
	assert.NotContains(t, body, "secret")
}

func TestAWrongConfigIsRefused(t *testing.T) {
	t.Parallel()
	h := newHandler(t, newDatabase(), nil)
	for want, cfg := range map[string]Config{
		"neither App nor Lock is set\nsection 0 has no title\nsection 0 (\" \") has no Render\n" +
			"section 1 (\"Bans\") has no Render": {Sections: []Section{{Title: " "},
			{Title: "Bans"}}, Runner: h.cfg.Runner},
		"App is set, and Lock or Runner too: App has both": {App: h.app, Lock: h.cfg.Lock},
		"App is set, and Lock or Runner too":               {App: h.app, Runner: h.cfg.Runner},
		`host "http://app.example" is not a host name or an IP address`: {Lock: h.cfg.Lock,
			Hosts: []string{"http://app.example"}},
	} {
		_, err := New(cfg)
		require.ErrorContains(t, err, "status page: "+want)
	}
}
