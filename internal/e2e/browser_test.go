//go:build unix

package e2e

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/missing"
)

// Where the pictures of the page go, the one in the README among them:
//
//	go test ./internal/e2e -run TestThePageInABrowser -args -pictures ../../docs
var pictures = flag.String("pictures", "", "folder for pictures of the page")

// browser is a real Chromium on a page.
type browser struct {
	*browsertest.Browser
	t *testing.T
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	return &browser{browsertest.New(t), t}
}

func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return browsertest.Eval[T](b.Browser, expression)
}

func (b *browser) text(id string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`document.getElementById(%q)?.innerText ?? ""`, id))
}

// left is how much of the bar is left, in percent.
func (b *browser) left() float64 {
	b.t.Helper()
	return eval[float64](b, `100 * document.getElementById("bar-left").getBoundingClientRect().width
		/ document.getElementById("bar").getBoundingClientRect().width`)
}

// sees waits until an element has a text.
func (b *browser) sees(id, text string) {
	b.t.Helper()
	eventually(b.t, fmt.Sprintf("#%s shows %q", id, text), func() error {
		if got := b.text(id); !strings.Contains(got, text) {
			return errors.New(got)
		}
		return nil
	})
}

var looks = []browsertest.Look{
	{Name: "light", Width: 1280, Height: 900, Scale: 2},
	{Name: "dark", Width: 1280, Height: 900, Scale: 2, Dark: true},
	{Name: "phone", Width: 360, Height: 740, Scale: 2},
}

// picture looks at the page, keeps the picture, and fails if it is blank, or
// wider than its window.
func (b *browser) picture(l browsertest.Look) {
	b.t.Helper()
	b.Look(l)
	b.sees("beat-left", "s")
	eval[bool](b, `window.scrollTo(0, 0), true`)
	raw := b.Picture(false)
	img, err := png.Decode(bytes.NewReader(raw))
	require.NoError(b.t, err)
	require.Equal(b.t, 2*l.Width, int64(img.Bounds().Dx()))
	colours := map[color.Color]int{}
	for y := 0; y < img.Bounds().Dy(); y += 5 {
		for x := 0; x < img.Bounds().Dx(); x += 5 {
			colours[img.At(x, y)]++
		}
	}
	require.Greater(b.t, len(colours), 20, "%s: an empty page", l.Name)
	r, g, blue, _ := img.At(4, 4).RGBA()
	require.Equal(b.t, l.Dark, r+g+blue < 3*0x8000, "%s: the background", l.Name)
	require.LessOrEqual(b.t, eval[int64](b, `document.documentElement.scrollWidth`), l.Width,
		"%s: wider than the window", l.Name)
	if *pictures != "" {
		require.NoError(b.t, os.WriteFile(filepath.Join(*pictures, "page-"+l.Name+".png"),
			raw, 0o644))
	}
}

// order gives an order in the dialog that a link opens. The dialog keeps the name.
func (b *browser) order(link, by, reason string) {
	b.t.Helper()
	b.Do(chromedp.Click(link), chromedp.WaitVisible("#dialog form"))
	if by != "" {
		b.Do(chromedp.SendKeys("#dialog input[name=by]", by))
	}
	if reason != "" {
		b.Do(chromedp.SendKeys("#dialog input[name=reason]", reason))
	}
	b.Do(chromedp.Click("#dialog button"), chromedp.WaitNotVisible("#dialog"))
}

func TestThePageInABrowser(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	f := newFleet(t, "CONTROL=true", "LOCK_TTL=8s", "LOCK_HEARTBEAT=1s", "TICK=1s", "TICK_FAIL=0")
	b := newBrowser(t)
	leader, _ := f.startLeader()
	standby, third := f.start(), f.start()

	// Whoever opens the page of a standby sees who leads, and the bar.
	b.Do(chromedp.Navigate(standby.url + "/"))
	b.sees("leader", fmt.Sprintf("pid %d", leader.pid()))
	b.sees("self", "standby")
	eval[bool](b, `window.notLoadedAgain = true`)
	falls, jumps, lowest := 0, 0, b.left()
	eventually(t, "the bar runs down, and jumps back", func() error {
		switch now := b.left(); {
		case now < lowest-1:
			falls, lowest = falls+1, now
		case now > lowest+5:
			jumps, lowest = jumps+1, now
		}
		if falls < 5 || jumps < 2 {
			return fmt.Errorf("%d times lower, %d jumps back, lowest %.1f %%", falls, jumps, lowest)
		}
		return nil
	})

	// Who leads dies: the page says so by itself.
	for range 2 {
		var next int
		leader.kill()
		died := time.Now()
		eventually(t, "the page shows another leader", func() error {
			text := b.text("leader")
			for _, r := range []*replica{standby, third} {
				if r != leader && strings.Contains(text, fmt.Sprintf("pid %d ", r.pid())) {
					next = r.pid()
					return nil
				}
			}
			return errors.New(text)
		})
		took := time.Since(died)
		t.Logf("the page shows the next leader %v after the one before was killed",
			took.Round(time.Millisecond))
		if *soak {
			require.Less(t, took, 2*time.Second)
		}
		require.Equal(t, next, standby.lock().Lock.PID)
		if next == standby.pid() {
			break // another death would take the page with it
		}
		leader = third
	}
	b.sees("self", "leading")

	// By its buttons, which the browser sends with where it is from.
	if third.hasExited() {
		third = f.start()
	}
	third.awaitLine("standing by")
	b.order("#handover a", "ann", "to see the page")
	b.sees("leader", fmt.Sprintf("pid %d", third.pid()))
	b.sees("terms", "told to leave by ann: to see the page")
	b.order(`a[aria-label="pause expire"]`, "", "a test")
	b.sees("jobs", "paused by ann")
	b.order(`a[aria-label="resume expire"]`, "", "")
	eventually(t, "it is resumed", func() error {
		if strings.Contains(b.text("jobs"), "paused by") {
			return errors.New("not yet")
		}
		return nil
	})
	b.order(`a[aria-label="run import now"]`, "", "")
	eventually(t, "the import was run", func() error {
		for _, r := range standby.runs("import") {
			if r.RequestedBy != "" && r.Status == "done" {
				return nil
			}
		}
		return errors.New("not yet")
	})

	if *pictures != "" {
		eventually(t, "there is something to see", func() error {
			if n := len(standby.runs("tick")); n < 25 {
				return fmt.Errorf("%d runs", n)
			}
			return nil
		})
	}
	for _, l := range looks {
		b.picture(l)
	}
	b.RequireSilence()
}
