package statuspage

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/ledger"
)

func TestTheDialogStaysTheOrderThatWasAskedForLast(t *testing.T) {
	missing.Costly(t, "opens another browser")
	t.Parallel()
	db := newDatabase()
	db.set(time.Now())
	ref := db.lead(t, other, "")
	db.run(t, ref, "import", ledger.Done, "")
	page := newPage(t, db, withControl)
	release, sent := make(chan struct{}), make(chan struct{}, 2)
	k, _ := browse(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/orders/pause" {
			page.ServeHTTP(w, r)
			return
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		page.ServeHTTP(w, r)
		sent <- struct{}{}
	}))
	browsertest.Eval[bool](k.Browser, `(() => {
		window.shown = [];
		window.said = [];
		const say = document.getElementById("say");
		new MutationObserver(() => said.push(say.textContent)).observe(say, { childList: true });
		const dialog = document.getElementById("dialog");
		new MutationObserver(() => shown.push(dialog.querySelector("h1").textContent))
			.observe(dialog, { childList: true });
		return true;
	})()`)
	click := func(selector string) {
		browsertest.Eval[bool](k.Browser,
			fmt.Sprintf(`(document.querySelector(%q).click(), true)`, selector))
	}
	answer := func() { release <- struct{}{}; <-sent }

	click("#pause-job-import") // its answer is slow
	click("#run-job-import")
	k.sees("dialog[open] h1", "Run import now?")
	answer()
	click("dialog .cancel")
	k.closed()
	click("#run-job-import") // its answer comes after the slow one
	k.sees("dialog[open] h1", "Run import now?")
	require.Equal(t, []string{"Run import now?", "Run import now?"},
		browsertest.Eval[[]string](k.Browser, `shown`))
	click("dialog .cancel")
	k.closed()

	// An order whose answer is slow, and the question of another one.
	click("#pause-job-import")
	answer()
	k.sees("dialog[open] h1", "Pause import?")
	click("dialog button")
	click("dialog .cancel")
	k.closed()
	click("#run-job-import")
	k.sees("dialog[open] h1", "Run import now?")
	answer()
	k.until("the page knows that it is carried out", `said.includes("asked for: Pause")`)
	k.sees("dialog[open] h1", "Run import now?")
	k.RequireSilence()
}
