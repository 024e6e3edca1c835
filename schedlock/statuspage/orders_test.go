package statuspage

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

func TestARefusedOrderChangesNothing(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", "", "")
	const origin = "orders are taken from this page only, not from those of another site; " +
		"a proxy in between must pass on the header Host\n"
	onlyLooks := func(c *Config) {
		c.Control, c.MayOrder = true, func(*http.Request) bool { return false }
	}
	for _, tt := range []struct {
		config  func(*Config)
		headers []string // of another site
		text    string
	}{
		{nil, nil, "Control, in the Config of package statuspage"},
		{func(c *Config) { c.ControlHint = "start it with --control" }, nil,
			"start it with --control\n"},
		{withControl, []string{"Sec-Fetch-Site", "cross-site"}, origin},
		{withControl, []string{"Sec-Fetch-Site", "same-site"}, origin},
		{withControl, []string{"Origin", "https://evil.example"}, origin},
		{withControl, []string{"Origin", "null"}, origin},
		{onlyLooks, nil, "you may look at this page, but you may not give orders: " +
			"ask an operator of this app\n"},
	} {
		h := newHandler(t, db, tt.config)
		for _, path := range orderPaths {
			form := url.Values{"job": {"tick"}, "term": {fmt.Sprint(ref.Term)}}
			answers := []*httptest.ResponseRecorder{
				send(h, http.MethodPost, path, form, tt.headers...)}
			if tt.headers == nil { // it does not even ask
				answers = append(answers, get(h, path+"?"+form.Encode()))
			}
			for _, w := range answers {
				assert.Equal(t, http.StatusForbidden, w.Code, "%s %v", path, tt.headers)
				assert.Contains(t, w.Body.String(), tt.text)
			}
		}
	}
	assert.Zero(t, db.inbox(t))
	assert.Zero(t, db.terms(t)[0].Revoked)
}

func TestOrdersAreCarriedOut(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", "", "")
	h, term := newHandler(t, db, withControl), fmt.Sprint(ref.Term)
	ok := func(path, location string, form url.Values) {
		t.Helper()
		w := post(h, path, form)
		require.Equal(t, http.StatusSeeOther, w.Code, "%s", w.Body)
		require.Equal(t, location, w.Header().Get("Location"))
	}

	ok("/orders/run", "../?span=24h#job-tick", url.Values{"job": {"tick"},
		"by": {" ann "}, "reason": {"round 1"}, "span": {"24h"}})
	ok("/orders/run", "../#job-tick", url.Values{"job": {"tick"}, "span": {"//evil.example"}})
	requests := db.inbox(t).Requests
	require.Len(t, requests, 2)
	assert.Equal(t, ledger.Action{Job: "tick", By: "ann", Reason: "round 1"}, requests[0].Action)
	assert.Equal(t, ledger.Action{Job: "tick", By: "web page of here pid 63"}, requests[1].Action)
	assert.Contains(t, get(h, "/").Body.String(), "2 asked for")

	ok("/orders/pause", "../#job-tick", url.Values{"job": {"tick"}, "by": {"bob"}})
	ok("/orders/pause", "../", url.Values{"all": {"true"}, "by": {"cat"}, "reason": {"restore"}})
	inbox := db.inbox(t)
	require.Equal(t, "cat", inbox.Paused("").By)
	body := get(h, "/").Body.String()
	assert.Contains(t, body, "The whole scheduler is paused by cat since")
	assert.Contains(t, body, `href="orders/resume?all=true">Resume everything …</a>`)
	assert.NotContains(t, body, `href="orders/run`, "nothing can run")

	ok("/orders/resume", "../", url.Values{"all": {"true"}, "by": {"dan"}})
	inbox = db.inbox(t)
	require.Nil(t, inbox.Paused("other"))
	assert.Contains(t, get(h, "/").Body.String(), `href="orders/resume?job=tick"`)
	for range 2 { // that it goes on is what was asked for, also if it did
		ok("/orders/resume", "../#job-tick", url.Values{"job": {"tick"}})
	}
	inbox = db.inbox(t)
	require.Nil(t, inbox.Paused("tick"))

	assert.Contains(t, get(h, "/").Body.String(), `id="handover-`+term+`"`)
	ok("/orders/handover", "../", url.Values{"term": {term}, "by": {"eve"}, "reason": {"deploy"}})
	revoked := db.terms(t)[0].Revoked
	assert.Equal(t, []string{"eve", "deploy"}, []string{revoked.By, revoked.Reason})
	body = get(h, "/").Body.String()
	assert.Contains(t, body, "Told to leave by eve (deploy); leaves at its next heartbeat")
	assert.Contains(t, body, "Hand-over asked for by eve: deploy<br>"+
		`<strong aria-current="step">asked</strong>`)
	assert.NotContains(t, body, "handover-")
}

func TestWhoMayOnlyLookIsOfferedNoOrders(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", ledger.Done, "")
	db.paused(t, "tick", "ann", "")
	h := newHandler(t, db, func(c *Config) {
		c.Control = true
		c.MayOrder = func(r *http.Request) bool { return r.Header.Get("Role") == "operator" }
	})
	for _, role := range []string{"operator", "guest"} {
		base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Role", role)
			h.ServeHTTP(w, r)
		}), nil)
		parts := open(t, base).next().Parts
		page := get(h, "/", "Role", role).Body.String()
		for _, text := range []string{page, parts[partJobs] + parts[partFindings] +
			parts[partHandover]} {
			assert.Equal(t, role == "operator", strings.Contains(text, "orders/"), role)
			assert.Equal(t, role == "operator", strings.Contains(text, "data-order"), role)
			assert.Contains(t, text, "tick is paused by ann", role)
			assert.NotContains(t, text, "· </li>", role)
		}
	}
}

// The page remembers who has given an order, without JavaScript too.
func TestTheNameOfWhoOrdersIsRemembered(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", "", "")
	h := newHandler(t, db, withControl)
	w := post(h, "/orders/run", url.Values{"job": {"tick"}, "by": {"Änne; <a>"}})
	require.Equal(t, http.StatusSeeOther, w.Code)
	cookies := w.Result().Cookies()
	require.Len(t, cookies, 1)
	assert.Empty(t, cookies[0].Path, "a browser takes the folder of the orders")
	assert.True(t, cookies[0].HttpOnly)
	asks := func(path string) string {
		return get(h, path, "Cookie", cookies[0].Name+"="+cookies[0].Value).Body.String()
	}
	assert.Contains(t, asks("/orders/pause?all=true"), `value="Änne; &lt;a&gt;"`)
	assert.Contains(t, asks("/orders/pause?all=true&by=bob"), `value="bob"`)
	assert.Empty(t, post(h, "/orders/run", url.Values{"job": {"tick"}}).Result().Cookies())
}

// Each order asks first and says what it does, and one that fails keeps what was
// typed: without JavaScript, too.
func TestAnOrderAsksFirst(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", "", "")
	db.paused(t, "tick", "ann", "disk")
	h := newHandler(t, db, withControl)
	for path, want := range map[string][]string{
		"/orders/run?job=tick": {"Run tick now?", "The leader starts one run", `action="run"`},
		"/orders/pause?all=true&span=1h": {"Pause everything?", "What runs now goes on",
			`name="all" value="true"`, `href="../?span=1h"`},
		"/orders/resume?job=tick": {"Resume tick?", "Paused by ann since", ": disk",
			"Of the ticks that were missed", `name="job" value="tick"`},
		"/orders/handover?term=7": {"Hand over the lead?", "concerns term 7 only",
			`name="term" value="7"`},
	} {
		w := get(h, path)
		assert.Equal(t, http.StatusOK, w.Code, path)
		assert.NotContains(t, w.Body.String(), "<script")
		for _, text := range want {
			assert.Contains(t, w.Body.String(), text, path)
		}
	}
	assert.Equal(t, http.StatusBadRequest, get(h, "/orders/pause").Code)
	for query, term := range map[string]string{"": "", "?term=abc": "abc", "?term=-7": "-7"} {
		w := get(h, "/orders/handover"+query)
		assert.Equal(t, http.StatusBadRequest, w.Code, query)
		assert.Contains(t, w.Body.String(), fmt.Sprintf("term %q is not a number above 0", term))
	}
	assert.Empty(t, db.inbox(t).Requests, "asking does nothing")

	w := post(h, "/orders/run", url.Values{"job": {"tick"}, "by": {"bob"},
		"reason": {`why "so"`}}, "Accept", "text/html,*/*")
	assert.Equal(t, http.StatusConflict, w.Code)
	for _, text := range []string{"Not done:", "paused", `name="by" maxlength="100"`,
		`value="bob"`, `value="why &#34;so&#34;"`} {
		assert.Contains(t, w.Body.String(), text)
	}
}

var hidden = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`)

// Without a script each order is a page of its own, and leads back.
func TestOrdersAreGivenAndUndoneWithoutAScript(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "import", ledger.Done, "")
	h := newHandler(t, db, withControl)
	order := func(id, question string) {
		t.Helper()
		find := func(pattern, text string) string {
			found := regexp.MustCompile(pattern).FindStringSubmatch(text)
			require.NotNil(t, found, pattern)
			return html.UnescapeString(found[1])
		}
		link := find(`(<a [^>]*\bid="`+id+`"[^>]*>)`, get(h, "/").Body.String())
		page := get(h, "/"+find(`href="([^"]*)"`, link)).Body.String()
		require.Contains(t, page, `<h1 id="order-title">`+question)
		require.Regexp(t, `(?s)<form .*<input name="by".*<button class="[a-z]+">.*</form>`, page,
			"a button that sends it: one of another type does not")
		form := url.Values{"by": {"ann"}}
		for _, field := range hidden.FindAllStringSubmatch(page, -1) {
			form.Add(field[1], html.UnescapeString(field[2]))
		}
		w := post(h, "/orders/"+find(`<form method="post" action="(\w+)"`, page), form)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		require.Regexp(t, `^\.\./(#|$)`, w.Header().Get("Location"))
	}
	for _, of := range []struct{ id, job, what string }{
		{"pause-job-import", "import", "import"}, {"pause-all", "", "everything"},
	} {
		order(of.id, "Pause "+of.what+"?")
		inbox := db.inbox(t)
		require.Equal(t, "ann", inbox.Paused(of.job).By)
		order(of.id, "Resume "+of.what+"?")
		inbox = db.inbox(t)
		require.Nil(t, inbox.Paused(of.job))
	}
	order("run-job-import", "Run import now?")
	require.Equal(t, "ann", db.inbox(t).Requests[0].By)
	order(fmt.Sprint("handover-", ref.Term), "Hand over the lead?")
	require.Equal(t, "ann", db.terms(t)[0].Revoked.By)
}

func TestAPageWithoutARunnerHasNoJobsAndHandsOver(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	h := newHandler(t, db, func(c *Config) { c.Runner, c.Control = nil, true })
	assert.NotContains(t, get(h, "/").Body.String(), "jobs")
	for _, path := range []string{"/orders/run", "/orders/pause", "/orders/resume",
		"/job-runs?job=tick"} {
		assert.Equal(t, http.StatusNotFound, get(h, path).Code)
	}
	require.Equal(t, http.StatusSeeOther, post(h, "/orders/handover",
		url.Values{"term": {fmt.Sprint(ref.Term)}}).Code)
	assert.Equal(t, "web page of here pid 63", db.terms(t)[0].Revoked.By)
}

func TestOrdersThatCannotBeCarriedOutSayWhy(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "tick", "", "")
	db.run(t, ref, "paused", "", "")
	db.paused(t, "paused", "bob", "")
	db.run(t, ref, "full", "", "")
	for range ledger.MaxPending {
		_, err := db.Trigger(ctx, ledger.Action{Job: "full", By: "ann"})
		require.NoError(t, err)
	}
	h := newHandler(t, db, withControl)
	for _, tt := range []struct {
		path   string
		form   url.Values
		status int
		text   string
	}{
		{"/orders/run", url.Values{}, 400, "it does not say which job"},
		{"/orders/pause", url.Values{}, 400,
			"it does not say which job: give its name, or all=true for every job"},
		{"/orders/pause", url.Values{"job": {""}, "by": {"ann"}}, 400, "it does not say which job"},
		{"/orders/resume", url.Values{"job": {""}}, 400, "it does not say which job"},
		{"/orders/pause", url.Values{"all": {"yes"}}, 400, `all "yes" is not true`},
		{"/orders/pause", url.Values{"all": {"true"}, "job": {"tick"}}, 400, "give one of them"},
		{"/orders/run", url.Values{"job": {"nope"}}, 404, `no leader has had a job "nope" yet`},
		{"/orders/pause", url.Values{"job": {"nope"}}, 404, `no leader has had a job "nope" yet`},
		{"/orders/resume", url.Values{"job": {"nope"}}, 404, `no leader has had a job "nope" yet`},
		{"/orders/run", url.Values{"job": {"paused"}}, 409, `job "paused" is paused by bob since`},
		{"/orders/run", url.Values{"job": {"full"}}, 429, "1000 are the limit"},
		{"/orders/run", url.Values{"job": {"tick"}, "by": {strings.Repeat("x", 201)}}, 400,
			"the name of who asks has 201 bytes, 200 are allowed"},
		{"/orders/handover", url.Values{"term": {"1"}, "reason": {strings.Repeat("x", 1001)}}, 400,
			"the reason has 1001 bytes, 1000 are allowed"},
		{"/orders/handover", url.Values{"term": {"seven"}}, 400,
			`term "seven" is not a number above 0`},
		{"/orders/handover", url.Values{"term": {fmt.Sprint(ref.Term - 1)}}, 409,
			"that term does not hold the lock any more"},
		{"/orders/run", url.Values{"job": {strings.Repeat("x", maxForm)}}, 413,
			"the form has more than 65536 bytes"},
	} {
		w := post(h, tt.path, tt.form)
		assert.Equal(t, tt.status, w.Code, "%s %.60v", tt.path, tt.form)
		assert.Contains(t, w.Body.String(), tt.text)
		assert.Contains(t, w.Header().Get("Content-Type"), "text/plain")
	}
	assert.Zero(t, db.terms(t)[0].Revoked)
	w := post(newHandler(t, irrevocable{db}, withControl), "/orders/handover",
		url.Values{"term": {fmt.Sprint(ref.Term)}})
	assert.Equal(t, http.StatusNotImplemented, w.Code)
	assert.Equal(t, driver.ErrNotRevocable.Error()+"\n", w.Body.String())

	db.fail(errors.New("cannot open /secret/app.db"))
	w = post(h, "/orders/run", url.Values{"job": {"tick"}})
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "the database cannot be read; look at the page whether the order was carried "+
		"out, then try again\n", w.Body.String())
}

type irrevocable struct{ *database }

func (irrevocable) Revoke(ctx context.Context, term int64, by,
	reason string) (schedlock.Revocation, error) {
	return driver.Base{}.Revoke(ctx, term, by, reason)
}
