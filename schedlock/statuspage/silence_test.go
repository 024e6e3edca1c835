package statuspage

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/ledger"
)

// fast makes the clocks of a page run fifty times as fast.
const fast = `(() => {
	const { setInterval } = window;
	window.setInterval = (f, ms) => setInterval(f, ms / 50);
	const now = performance.now.bind(performance);
	performance.now = () => 50 * now();
	const timeout = AbortSignal.timeout.bind(AbortSignal);
	AbortSignal.timeout = (ms) => timeout(ms / 50);
})()`

// A network that swallows everything ends no connection, and gives no error.
func TestASilentServerIsMissed(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	db := newDatabase()
	db.set(time.Now())
	ref := db.lead(t, other, "")
	db.run(t, ref, "import", ledger.Done, "")
	h := newPage(t, db, withControl)
	h.live.silence = 50 * time.Millisecond
	var silent atomic.Bool
	k, server := browse(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent.Load() && (r.URL.Path == "/events" || r.Method == http.MethodPost) {
			_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection is not seen
			<-r.Context().Done()
			return
		}
		h.ServeHTTP(w, r)
	}), fast)
	// Before it is closed: else that waits for what it does not answer.
	t.Cleanup(server.CloseClientConnections)

	silent.Store(true)
	k.walk("run-job-import")
	k.opens("Run import now?")
	k.press(kb.Enter)
	k.sees("dialog [role=alert]", "No answer: it is not known whether this was done.")
	k.press(kb.Escape)

	// The page is hidden for a while, and its stream begins anew.
	browsertest.Eval[bool](k.Browser, `(() => {
		let hidden = true;
		Object.defineProperty(document, "hidden", { get: () => hidden });
		document.dispatchEvent(new Event("visibilitychange"));
		hidden = false;
		document.dispatchEvent(new Event("visibilitychange"));
		return true;
	})()`)
	k.sees("#stream", "not connected")
	silent.Store(false)
	k.sees("#stream", "live")
}

// An EventSource does not tell the page what was answered.
func TestAStreamThatIsRefusedSaysWhy(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	db, _ := led(t)
	h := newPage(t, db, nil)
	k, _ := visit(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			w = wrapped{w}
		}
		h.ServeHTTP(w, r)
	}))
	k.sees("#cut", "No live data: a middleware of this app hides http.Flusher")
	k.sees("#stream", "not connected")
}
