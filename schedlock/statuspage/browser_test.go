package statuspage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// Where pictures of all states of the page go:
//
//	go test ./schedlock/statuspage -run TestThePageInEachState -args -pictures /tmp/pictures
var pictures = flag.String("pictures", "", "folder for pictures of the page in each state")

// hour is an hour of three jobs with a fail-over in it.
func hour(t *testing.T) *moving {
	m := before(t, time.Hour)
	m.leads("web-1", 41, "")
	for i := range 60 {
		switch {
		case i == 40: // nobody leads for a while
			m.release()
			m.pass(3 * time.Minute)
			m.leads("web-2", 52, driver.EndReleased)
			continue
		case i > 40 && i < 43:
			continue
		}
		m.job("import", ledger.Done, 20*time.Second, "")
		if i%5 == 0 {
			m.job("report", ledger.Done, 3*time.Minute, "")
			m.job("clean up old sessions and their files", ledger.Done, time.Second, "")
		}
		m.pass(time.Minute)
	}
	m.beat(t, m.ref)
	return m
}

// states are what the page can look like.
var states = []struct {
	name string
	make func(t *testing.T) *moving
}{
	{"healthy", hour},
	{"failing", func(t *testing.T) *moving {
		m := hour(t)
		m.job("import", ledger.Failed, time.Second,
			"fetch https://lists.example.com/drop.txt: dial tcp: lookup lists.example.com: "+
				"no such host\n"+strings.Repeat("at some::very::long::place::without::a::space::", 6))
		m.job("report", ledger.InProgress, 0, "")
		return m
	}},
	{"nobody", func(t *testing.T) *moving {
		m := hour(t)
		m.release()
		m.pass(2 * time.Minute)
		return m
	}},
	{"late", func(t *testing.T) *moving {
		m := hour(t)
		m.pass(30 * time.Second)
		return m
	}},
	{"gone", hour}, // once the page is open
	{"paused", func(t *testing.T) *moving {
		m := hour(t)
		m.paused(t, "", "ann", "a new disk")
		m.paused(t, "report", "ann", "a new disk")
		return m
	}},
	{"300-terms", func(t *testing.T) *moving {
		m := before(t, 50*time.Hour)
		for i := range 300 {
			m.leads(fmt.Sprintf("web-%d", i%5), 40+i%5, driver.EndReleased)
			m.pass(10 * time.Minute)
			if i < 299 {
				m.release()
			}
		}
		m.job("import", ledger.Done, time.Second, "")
		m.beat(t, m.ref)
		return m
	}},
	{"150-failures", func(t *testing.T) *moving {
		m := before(t, 150*time.Minute)
		m.leads("web-1", 41, "")
		for range 150 {
			m.job("import", ledger.Failed, time.Second, "no such host")
			m.pass(time.Minute)
		}
		m.beat(t, m.ref)
		return m
	}},
	{"one-job", func(t *testing.T) *moving {
		m := before(t, 10*time.Second)
		m.leads("web-1", 41, "")
		m.job("import", ledger.Done, time.Second, "")
		m.pass(10 * time.Second)
		return m
	}},
	{"100-jobs", hundredJobs},
}

func hundredJobs(t *testing.T) *moving {
	m := before(t, 200*time.Minute)
	m.leads("web-1", 41, "")
	for i := range 200 {
		status := ledger.Done
		if i%100 == 50 {
			status = ledger.Failed
		}
		m.job(fmt.Sprintf("job %02d", i%100), status, 40*time.Second, "no such host")
		m.pass(time.Minute)
	}
	m.beat(t, m.ref)
	return m
}

// How somebody looks at the page: each window, of which the first is how each state is looked at …
var windows = []browsertest.Look{
	{Name: "light", Width: 1280, Height: 900},
	{Name: "print", Width: 768, Height: 1000, Print: true},
	{Name: "phone", Width: 360, Height: 740},
	{Name: "tablet", Width: 768, Height: 1024},
	{Name: "wide", Width: 3840, Height: 2160},
}

// … and other looks at the first. The last one is none at a page that has no script anyway.
var looks = slices.Concat(windows, []browsertest.Look{
	{Name: "dark", Width: 1280, Height: 900, Dark: true},
	{Name: "forced", Width: 1280, Height: 900, Forced: true},
	{Name: "no-script", Width: 1280, Height: 900, NoScript: true},
})

func TestThePageInEachState(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	b := browsertest.New(t)
	k := keyboard{b, t}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	databases := map[string]*moving{}
	for _, state := range states {
		databases[state.name] = state.make(t)
		mux.Handle("/"+state.name+"/", newPage(t, databases[state.name], withControl))
	}
	for i, state := range states {
		for j, look := range looks {
			if j > 0 && i > 1 { // all looks of some states, and one of each
				break
			}
			t.Run(state.name+"/"+look.Name, func(t *testing.T) {
				b.Look(look)
				base := server.URL + "/" + state.name + "/"
				if j == 0 || look.NoScript { // the others look at the same page
					b.Do(chromedp.Navigate(base))
				}
				if j == 0 {
					k.sees("#stream", "live")
				}
				if state.name == "gone" {
					databases["gone"].fail(errors.New("cannot open /secret/app.db"))
					k.until("the page knows that it is old", `document.body.matches(".stale")`)
				}
				keep(t, b, state.name+"-"+look.Name)
				requireGood(t, b, look)
				if j == 0 {
					assert.Empty(t, browsertest.Eval[[]string](b, belowTheFold))
					for _, l := range windows {
						b.Look(l)
						assert.LessOrEqual(t, browsertest.Eval[int64](b, pageWidth), l.Width)
					}
				}
				for _, request := range b.Requests() {
					rest, own := strings.CutPrefix(request, "GET "+base)
					path, _, _ := strings.Cut(rest, "?")
					assert.True(t, own && slices.Contains([]string{"", "style.css", "page.js",
						"icon.svg", "events"}, path), request)
				}
			})
		}
	}
	databases["failing"].pass(time.Second)
	run := databases["failing"].tried("import", 3, "fetch: no such host\n"+
		strings.Repeat("at some::very::long::place::without::a::space::", 6))
	for _, page := range []struct{ name, path string }{
		{"runs", "job-runs?job=import"},
		{"attempts", runLink(run)},
		{"order", "orders/run?job=import"},
	} {
		b.Do(chromedp.Navigate(server.URL + "/failing/" + page.path))
		for _, look := range looks[:len(looks)-1] {
			t.Run(page.name+"/"+look.Name, func(t *testing.T) {
				b.Look(look)
				keep(t, b, page.name+"-"+look.Name)
				requireGood(t, b, look)
			})
		}
		for _, request := range b.Requests() {
			assert.True(t, strings.HasPrefix(request, "GET "+server.URL+"/failing/"), request)
		}
	}
	b.RequireSilence()
}

func TestLongNamesMakeNoPageWide(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	b := browsertest.New(t)
	long := strings.Repeat("W", 200)
	m := before(t, time.Hour)
	m.leads(long[:64], 41, "")
	run := m.tried(long, 3, long)
	m.paused(t, long, long, long)
	server := httptest.NewServer(newHandler(t, m, func(c *Config) {
		c.Control, c.Title = true, long
		c.Sections = []Section{{Title: long, Render: func(context.Context) (template.HTML, error) {
			return "", nil
		}}}
	}))
	t.Cleanup(server.Close)
	for _, path := range []string{"", runLink(run), "orders/resume?job=" + long} {
		b.Do(chromedp.Navigate(server.URL + "/" + path))
		for _, l := range windows {
			b.Look(l)
			assert.LessOrEqual(t, browsertest.Eval[int64](b, pageWidth), l.Width, path)
		}
	}
}

func TestJobsAreFilteredByName(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	m := hundredJobs(t)
	k, _ := browse(t, newPage(t, m, withControl))
	b := k.Browser
	b.Do(chromedp.SendKeys("#filter input", "JOB 5", chromedp.NodeVisible))
	const shown = `[...document.querySelectorAll("#jobs-list .job")].filter((e) =>
		e.checkVisibility()).map((e) => e.querySelector("h3").textContent).sort().join()`
	want := "job 50,job 51,job 52,job 53,job 54,job 55,job 56,job 57,job 58,job 59"
	require.Equal(t, want, browsertest.Eval[string](b, shown))
	require.Equal(t, "10 of 100 jobs", browsertest.Eval[string](b,
		`document.querySelector("#filter [role=status]").textContent`))
	m.job("job 52", ledger.Failed, time.Second, "no such host") // it moves to the front
	k.sees(`[id="job-job%2052"]`, "failed last time")
	require.Equal(t, want, browsertest.Eval[string](b, shown))

	b.Do(chromedp.SendKeys("#filter input", "x"), chromedp.Click(`.findings a[href^="#job-"]`))
	require.Equal(t, int64(100), browsertest.Eval[int64](b, `[...document.querySelectorAll(
		"#jobs-list .job")].filter((e) => e.checkVisibility()).length`), "a link shows its job")
	b.RequireSilence()
}

func keep(t *testing.T, b *browsertest.Browser, name string) {
	if *pictures != "" {
		require.NoError(t, os.WriteFile(filepath.Join(*pictures, name+".png"), b.Picture(true), 0o644))
	}
}

// requireGood holds a page to what each look at it must give.
func requireGood(t *testing.T, b *browsertest.Browser, look browsertest.Look) {
	t.Helper()
	assert.LessOrEqual(t, browsertest.Eval[int64](b, pageWidth), look.Width, "it scrolls sideways")
	assert.Empty(t, b.Nameless(), "what takes focus has a name")
	b.Do(chromedp.KeyEvent(kb.Tab)) // focus shows where it is, as for who uses the keyboard
	for what, script := range map[string]string{
		"ids that are there twice": `[...document.querySelectorAll("[id]")].map((e) => e.id)
			.filter((id, i, all) => all.indexOf(id) !== i)`,
		"headings out of order": `(() => {
			const levels = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
				.filter((e) => e.checkVisibility()).map((e) => Number(e.tagName[1]));
			return levels.map((level, i) => [level, i ? levels[i - 1] : 0])
				.filter(([level, last], i) => level > last + 1 || i && level === 1).map(String);
		})()`,
		"text that is hard to read": lowContrast,
		"what shows no focus":       noFocus,
	} {
		if look.Print && what == "what shows no focus" {
			continue // paper has none
		}
		assert.Empty(t, browsertest.Eval[[]string](b, script), what)
	}
}

const pageWidth = `document.documentElement.scrollWidth`

// belowTheFold names what does not lie within the window.
const belowTheFold = `["#verdict", ".tiles", "#findings", "#jobs-list .job"].filter((what) => {
	const e = document.querySelector(what);
	return !e || e.getBoundingClientRect().bottom > innerHeight;
})`

// noFocus names what takes focus, and looks the same with it.
const noFocus = `(() => {
	const look = (e) => [e, ...e.children].map((x) => {
		const s = getComputedStyle(x);
		return [s.outlineStyle, s.outlineWidth, s.stroke, s.strokeWidth].join();
	}).join();
	const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), summary")]
		.filter((e) => e.checkVisibility() && !e.closest("dialog:not([open])")).slice(0, 150);
	const bad = all.filter((e) => {
		document.activeElement?.blur();
		const before = look(e);
		e.focus({ preventScroll: true, focusVisible: true });
		return document.activeElement !== e || look(e) === before;
	});
	document.activeElement?.blur();
	return bad.map((e) => e.outerHTML.slice(0, 100));
})()`

// lowContrast names texts whose contrast with what is behind them is below 4.5. Of a drawing that
// is what an earlier sibling, or the first shape of the drawing, is filled with.
const lowContrast = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const colours = new Map();
	const parse = (text) => {
		if (!colours.has(text)) colours.set(text, read(text));
		return [...colours.get(text)];
	};
	const read = (text) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = text;
		canvas.fillRect(0, 0, 1, 1);
		const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
		return [r, g, b, a / 255];
	};
	const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
	const light = (c) => {
		const [r, g, b] = c.map((x) => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const ground = parse("Canvas");
	const behind = (e) => {
		if (!e) return ground;
		const s = getComputedStyle(e);
		let own = parse(s.backgroundColor);
		if (e.matches?.("svg.lane") && !e.querySelector(".when")) {
			own = parse(getComputedStyle(e.querySelector(".ground")).fill);
		}
		return own[3] === 1 ? own : over(own, behind(e.parentElement));
	};
	const bad = new Set();
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const e = walker.currentNode.parentElement;
		if (!walker.currentNode.nodeValue.trim() || !e.checkVisibility() || e.closest("title, script, noscript, .unseen")) continue;
		const s = getComputedStyle(e);
		const box = e.getBoundingClientRect();
		if (!box.width || !box.height) continue;
		let opacity = 1;
		for (let up = e; up; up = up.parentElement) opacity *= Number(getComputedStyle(up).opacity);
		const drawn = e instanceof SVGElement;
		const term = e.previousElementSibling?.matches(".term") && e.previousElementSibling;
		const below = term ? parse(getComputedStyle(term).fill) : behind(e);
		const ink = parse(drawn ? s.fill : s.color);
		ink[3] *= opacity;
		const [a, b] = [light(over(ink, below)), light(below)];
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < 4.5) bad.add(contrast.toFixed(2) + " " + (e.getAttribute("class") ?? "") + " in " + e.parentElement.outerHTML.slice(0, 60) + ": " + walker.currentNode.nodeValue.trim().slice(0, 40));
	}
	return [...bad];
})()`
