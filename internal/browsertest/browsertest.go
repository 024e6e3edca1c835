// Package browsertest opens pages in a real Chromium, for tests.
package browsertest

import (
	"context"
	"os"
	"os/exec"
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

// A Browser is a Chromium with one tab.
type Browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	console  []string
	requests []string
}

// New starts a browser, which ends with the test. The test is skipped where there is none.
func New(t *testing.T) *Browser {
	t.Helper()
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
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath(program),
		chromedp.Headless, chromedp.Env("TMPDIR="+dir),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-gpu", true))
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
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
	return b
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
