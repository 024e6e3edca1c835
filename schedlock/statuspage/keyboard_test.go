package statuspage

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// A keyboard is all that somebody has who uses the page.
type keyboard struct {
	*browsertest.Browser
	t *testing.T
}

// browse visits a page, and waits until it hears what changes.
func browse(t *testing.T, h http.Handler, scripts ...string) (keyboard, *httptest.Server) {
	t.Helper()
	k, server := visit(t, h, scripts...)
	k.sees("#stream", "live")
	return k, server
}

// visit opens a page in a browser. Scripts run before it.
func visit(t *testing.T, h http.Handler, scripts ...string) (keyboard, *httptest.Server) {
	t.Helper()
	missing.Long(t, "opens a browser")
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	k := keyboard{browsertest.New(t), t}
	k.Look(looks[0])
	for _, script := range scripts {
		k.Before(script)
	}
	k.Do(chromedp.Navigate(server.URL))
	return k, server
}

// until waits until an expression is true on the page.
func (k keyboard) until(what, expression string) {
	k.t.Helper()
	await(k.t, 20*time.Millisecond, what, func() bool {
		return browsertest.Eval[bool](k.Browser, expression)
	})
}

func (k keyboard) press(keys ...string) {
	k.t.Helper()
	for _, key := range keys {
		k.Do(chromedp.KeyEvent(key))
	}
}

// on waits until something has the focus, and that can be seen.
func (k keyboard) on(name string) {
	k.t.Helper()
	var where []string
	defer func() {
		if k.t.Failed() {
			k.t.Log("focus", where)
		}
	}()
	await(k.t, 20*time.Millisecond, "focus on "+name, func() bool {
		where = k.where()
		return where[0] == "" && where[1] == name
	})
}

// where says what has the focus, if that cannot be seen, and how it is called.
func (k keyboard) where() []string {
	k.t.Helper()
	return browsertest.Eval[[]string](k.Browser, `(() => {
		const e = document.activeElement;
		const seen = e !== document.body && e.matches(":focus-visible") && e.checkVisibility() &&
			(getComputedStyle(e).outlineStyle !== "none" || e.closest("svg") !== null);
		const text = e.outerHTML.slice(0, 100);
		return [seen ? "" : text, e.id || e.name || e.getAttribute("href") || text];
	})()`)
}

// walk presses Tab until something has the focus.
func (k keyboard) walk(to string) {
	k.t.Helper()
	for range 100 {
		k.press(kb.Tab)
		switch where := k.where(); {
		case strings.HasPrefix(where[0], "<body"): // behind the last one
		case where[0] != "":
			require.Fail(k.t, "nobody sees where the focus is", where[0])
		case strings.HasSuffix(where[1], to):
			return
		}
	}
	require.Fail(k.t, "Tab does not lead there", to)
}

func (k keyboard) sees(selector, text string) {
	k.t.Helper()
	k.until(fmt.Sprintf("%s shows %q", selector, text), fmt.Sprintf(
		`(document.querySelector(%q)?.innerText ?? "").includes(%q)`, selector, text))
}

func (k keyboard) closed() {
	k.t.Helper()
	k.until("the dialog is closed", `!document.querySelector("dialog[open]")?.innerText`)
}

// opens presses Enter on a link for so long that the key repeats, and waits for the question.
func (k keyboard) opens(question string) {
	k.t.Helper()
	enter := kb.Encode('\r') // down, the character, up
	send := func(event int) {
		k.With(func(ctx context.Context) error {
			_, err := chromedp.Call(ctx, input.DispatchKeyEvent, *enter[event])
			return err
		})
	}
	send(0)
	k.sees("dialog[open] h1", question)
	for event := range enter {
		send(event)
	}
	k.on("by")
}

func TestOrdersAreGivenAndUndoneByKeyboard(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.set(time.Now()) // it stands still, so that no heartbeat is missing
	ref := db.lead(t, other, "")
	for _, name := range []string{"clean", "import"} {
		db.run(t, ref, name, ledger.Done, "")
	}
	page := newPage(t, db, withControl)
	var away atomic.Bool // orders lead to a login
	k, _ := browse(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && away.Load() {
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		page.ServeHTTP(w, r)
	}))
	paused := func(job string) bool {
		p := db.inbox(t)
		return p.Paused(job) != nil
	}

	// A pause of one job, and of all: the same place undoes it, and knows the name.
	for i, of := range []struct{ id, job string }{{"pause-job-import", "import"}, {"pause-all", ""}} {
		k.walk(of.id)
		k.opens("Pause")
		require.False(t, paused(of.job), "a key that repeats gives no order")
		if i == 0 {
			k.press("ann")
		}
		k.press(kb.Tab, "a new disk", kb.Tab, " ")
		k.closed()
		require.True(t, paused(of.job))
		k.sees("#"+of.id, "esume")
		k.on(of.id) // also while the page changes
		k.opens("Resume")
		k.sees("dialog", "Paused by ann since")
		assert.Equal(t, "ann", browsertest.Eval[string](k.Browser, `document.activeElement.value`))
		k.press(kb.Escape)
		k.closed()
		k.on(of.id)
		require.True(t, paused(of.job), "Escape does nothing")
		k.opens("Resume")
		k.press(kb.Enter)
		k.closed()
		k.sees("#"+of.id, "ause")
		k.on(of.id)
		require.False(t, paused(of.job))
	}

	// The page shows in its place how far a run has come.
	k.walk("run-job-import")
	k.opens("Run import now?")
	k.sees("dialog", "This order can't be withdrawn")
	k.press(kb.Tab, kb.Tab, kb.Enter)
	k.closed()
	k.sees("#job-import .progress", "Run asked for by ann")
	k.sees("#job-import .progress strong", "asked")
	run, started, err := db.Answer(ctx, ref, db.inbox(t).Requests[0], "")
	require.NoError(t, err)
	require.True(t, started)
	k.sees("#job-import .progress strong", "running")
	db.finish(t, run, ledger.End{Status: ledger.Done})
	k.sees("#job-import .progress strong", "done")
	k.on("run-job-import")

	// What fails keeps what was typed, and says what to do.
	k.opens("Run import now?")
	k.press(kb.Tab, "again")
	away.Store(true)
	k.press(kb.Enter)
	k.sees("dialog [role=alert]", "Not done: this led to another page, such as a login.")
	away.Store(false)
	db.paused(t, "import", "bob", "")
	k.press(kb.Enter)
	k.sees("dialog [role=alert]", "; resume it first")
	assert.Equal(t, []string{"ann", "again"}, browsertest.Eval[[]string](k.Browser,
		`[...document.querySelectorAll("dialog input:not([type=hidden])")].map((e) => e.value)`))
	k.on("by")
	k.press(kb.Escape)
	k.closed()
	k.on("pause-job-import") // what it was opened from is gone

	// A finding offers what ends it, and is gone then.
	k.walk("orders/resume?job=import")
	k.opens("Resume import?")
	k.press(kb.Enter)
	k.closed()
	k.until("it is gone", `!document.querySelector("#findings section")`)
	k.on("findings")

	k.walk(fmt.Sprint("handover-", ref.Term))
	k.opens("Hand over the lead?")
	k.press(kb.Enter)
	k.closed()
	require.Equal(t, "ann", db.terms(t)[0].Revoked.By)
	k.sees("#handover .progress strong", "asked")
	k.on("handover")
	db.ended(t, ref, driver.EndRevoked)
	k.sees("#handover .progress strong", "leaving")
	next := db.lead(t, driver.Owner{PID: 52, Hostname: "web-2"}, "")
	k.sees("#handover .progress strong", "web-2 leads")
	k.walk(fmt.Sprint("handover-", next.Term))
}
