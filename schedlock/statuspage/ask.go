package statuspage

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// question asks whether an order is meant, and says what it does. It is a page
// of its own, which page.js shows in a dialog. After a failed order it has what
// was typed.
type question struct {
	Title   string // of the app's page
	Kind    string // the last part of the path
	Job     string
	All     bool
	Term    string
	Span    string
	By      string
	Reason  string
	Failed  string // why it was not carried out; "": it was not tried yet
	Ask     string // what is asked
	Do      string // what stands on the button
	Effects []string
	Pause   *ledger.Pause // that the order ends
}

// ask asks for the first time, or again if failed says why an order was not carried out.
func (h *Handler) ask(w http.ResponseWriter, r *http.Request, kind string, status int,
	failed string) {
	q := h.newQuestion(r, kind)
	q.Failed = failed
	why := ""
	switch {
	case failed != "": // it says why
	case kind == "handover" && q.Term == "":
		why = noTerm(r.FormValue("term"))
	case kind != "handover" && q.Job == "" && !q.All:
		why = "it does not say which job"
	}
	if why != "" {
		http.Error(w, why, http.StatusBadRequest)
		return
	}
	h.answer(w, r, status, "question", q, time.Now())
}

func (h *Handler) newQuestion(r *http.Request, kind string) *question {
	q := &question{Title: h.cfg.Title, Kind: kind, Job: r.FormValue("job"),
		All: r.FormValue("all") == "true", By: r.FormValue("by"), Reason: r.FormValue("reason")}
	if !r.Form.Has("by") {
		q.By = remembered(r)
	}
	if span, err := parseSpan(r.FormValue("span")); err == nil {
		q.Span = span
	}
	what := cmp.Or(q.Job, "everything")
	switch kind {
	case "run":
		q.Ask, q.Do = "Run "+what+" now?", "Run now"
		q.Effects = []string{"The leader starts one run besides the schedule, within a second. " +
			"If nobody leads, the next leader starts it.",
			"This order can't be withdrawn. A pause keeps back what has not started."}
	case "pause":
		q.Ask, q.Do = "Pause "+what+"?", "Pause"
		q.Effects = []string{"Nothing of it starts, on any replica, until somebody resumes it. " +
			"What runs now goes on, but is not tried again meanwhile. Resume undoes it."}
	case "resume":
		q.Ask, q.Do = "Resume "+what+"?", "Resume"
		q.Effects = []string{"It starts again when it is due. Of the ticks that were missed, " +
			"its CatchUp says which run at once: by default the newest one of each job. " +
			"Pause undoes it, but what has started goes on."}
		if q.All {
			q.Effects = append(q.Effects, "Jobs that are paused one by one stay so.")
		}
		q.Pause = h.pauseOf(r.Context(), q.Job)
	case "handover":
		if term, err := strconv.ParseInt(r.FormValue("term"), 10, 64); err == nil && term > 0 {
			q.Term = strconv.FormatInt(term, 10)
		}
		q.Ask, q.Do = "Hand over the lead?", "Tell it to leave"
		q.Effects = []string{"The leader starts nothing new, waits for what runs, and leaves. " +
			"Another replica leads then; if there is none, it leads again itself. " +
			"The order concerns term " + q.Term + " only.",
			"It can't be withdrawn. To bring the lead back, hand over again."}
	}
	return q
}

// pauseOf is best effort: the order does not need it.
func (h *Handler) pauseOf(ctx context.Context, job string) *ledger.Pause {
	store, ok := h.app.Lock().Store().(ledger.Store)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pending, err := store.Pending(ctx)
	if err != nil {
		return nil
	}
	return pending.Paused(job)
}

// wantsPage tells a browser from a script, which gets one line of text.
func wantsPage(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}
