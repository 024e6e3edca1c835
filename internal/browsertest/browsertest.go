// Package browsertest opens pages in a real Chromium, for tests.
package browsertest

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

// patience is how long one step may take on a busy machine.
const patience = time.Minute

// programs are the names under which Chromium is installed.
var programs = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
	"chrome"}

// A Browser is a window of Chromium with one tab, and with cookies of its own.
type Browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	console  []string
	requests []string
}

// tests runs the tests of a package, and then ends the process of their windows.
type tests struct{ runner }

type runner interface{ Run() int }

// process is the Chromium that the tests of a package share: to start one takes longer than most
// of what they do with it.
var process struct {
	sync.Mutex
	ctx context.Context // nil: none runs
	end func()
}

// EndAfter is m for TestMain. It ends the browser after the tests.
func EndAfter(m runner) runner { return tests{m} }

func (m tests) Run() int {
	defer func() {
		if process.end != nil {
			process.end()
		}
	}()
	return m.runner.Run()
}

// New opens a window, which closes with the test. The test is skipped where there is no browser.
func New(t *testing.T) *Browser {
	t.Helper()
	ctx, cancel := chromedp.NewContext(running(t), chromedp.WithNewBrowserContext())
	// It closes before the cleanups: else a server would wait for the streams of its pages.
	closed := make(chan struct{})
	context.AfterFunc(t.Context(), func() { cancel(); close(closed) })
	t.Cleanup(func() { <-closed })
	b := &Browser{t: t, ctx: ctx}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleException ||
				m.Type == chromedp.ConsoleWarning {
				b.mu.Lock()
				b.console = append(b.console, m.String())
				b.mu.Unlock()
			}
		}
	}()
	require.NoError(t, chromedp.Listen(ctx, func(ev any) {
		if sent, ok := ev.(*network.EventRequestWillBeSent); ok {
			b.mu.Lock()
			b.requests = append(b.requests, sent.Request.Method+" "+sent.Request.URL)
			b.mu.Unlock()
		}
	}))
	// Else only one window has the focus, and the others show none.
	b.With(func(ctx context.Context) error {
		_, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled,
			emulation.SetFocusEmulationEnabledParams{Enabled: true})
		return err
	})
	return b
}

// running is the context of the browser, which it starts if nobody has done so.
func running(t *testing.T) context.Context {
	t.Helper()
	process.Lock()
	defer process.Unlock()
	if process.ctx != nil {
		return process.ctx
	}
	program := ""
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		missing.Skip(t, "Chromium, on the PATH (Debian: apt-get install chromium)")
	}
	dir, err := os.MkdirTemp("", "browser") // it leaves folders behind
	require.NoError(t, err)
	ctx, stop := chromedp.NewExecAllocator(context.Background(),
		append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program),
			chromedp.Env("TMPDIR="+dir), chromedp.Flag("disable-gpu", true))...)
	ctx, closeTab := chromedp.NewContext(ctx)
	process.ctx, process.end = ctx, func() {
		closeTab()
		stop()
		_ = os.RemoveAll(dir)
	}
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	return ctx
}

// With calls do with a context that ends when a step has taken too long.
func (b *Browser) With(do func(ctx context.Context) error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	require.NoError(b.t, do(ctx))
}

// Do repeats actions on a node that the page has drawn anew meanwhile.
func (b *Browser) Do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	b.With(func(ctx context.Context) error {
		err := chromedp.Do(ctx, actions...)
		for err != nil && strings.Contains(err.Error(), "Could not find node with given id") {
			err = chromedp.Do(ctx, actions...)
		}
		return err
	})
}

// Eval is the value of an expression on the page, or on the next one if a button
// has just led there.
func Eval[T any](b *Browser, expression string) (value T) {
	b.t.Helper()
	b.With(func(ctx context.Context) (err error) {
		value, err = chromedp.Run(ctx, chromedp.Evaluate[T](expression))
		for err != nil && strings.Contains(err.Error(), "Inspected target navigated or closed") {
			value, err = chromedp.Run(ctx, chromedp.Evaluate[T](expression))
		}
		return err
	})
	return value
}

// A Look is how somebody looks at a page.
type Look struct {
	Name          string
	Width, Height int64
	Scale         float64 // 0: 1
	Dark          bool
	Forced        bool // the colours of the system
	Print         bool
	NoScript      bool
}

// Look makes the page look so, and those that are opened next.
func (b *Browser) Look(l Look) {
	b.t.Helper()
	scheme, forced, media := "light", "none", ""
	if l.Dark {
		scheme = "dark"
	}
	if l.Forced {
		forced = "active"
	}
	if l.Print {
		media = "print"
	}
	b.With(func(ctx context.Context) error {
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(l.Width, l.Height,
			chromedp.EmulateScale(max(l.Scale, 1)))); err != nil {
			return err
		}
		if _, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: l.NoScript}); err != nil {
			return err
		}
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media: media, Features: []*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: scheme},
				{Name: "forced-colors", Value: forced}}})
		return err
	})
}

// Before runs a script on each page that is opened next, before the page's own.
func (b *Browser) Before(script string) {
	b.t.Helper()
	b.With(func(ctx context.Context) error {
		_, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument,
			page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	})
}

// Picture is a PNG of what the window shows, or of all of the page.
func (b *Browser) Picture(all bool) (raw []byte) {
	b.t.Helper()
	b.With(func(ctx context.Context) (err error) {
		shot := chromedp.CaptureScreenshot()
		if all {
			shot = chromedp.FullScreenshot(100)
		}
		raw, err = chromedp.Run(ctx, shot)
		return err
	})
	return raw
}

// Nameless are the roles of what can take focus and has no name for who does not see it.
func (b *Browser) Nameless() (roles []string) {
	b.t.Helper()
	b.With(func(ctx context.Context) error {
		tree, err := chromedp.Call(ctx, accessibility.GetFullAXTree,
			accessibility.GetFullAXTreeParams{})
		if err != nil {
			return err
		}
		for _, node := range tree.Nodes {
			if node.Ignored || !focusable(node) || text(node.Name) != "" {
				continue
			}
			if role := text(node.Role); role != "RootWebArea" {
				roles = append(roles, role)
			}
		}
		return nil
	})
	return roles
}

func focusable(n *accessibility.Node) bool {
	for _, p := range n.Properties {
		if p.Name == accessibility.PropertyNameFocusable {
			return string(p.Value.Value) == "true"
		}
	}
	return false
}

func text(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	return strings.Trim(string(v.Value), `" `)
}

// RequireSilence fails if the page has complained, violations of its policy among that.
func (b *Browser) RequireSilence() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.console, "the browser's console")
}

// Requests are those that pages have sent since it was called last.
func (b *Browser) Requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent := b.requests
	b.requests = nil
	return sent
}
