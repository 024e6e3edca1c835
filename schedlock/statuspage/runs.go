package statuspage

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/internal/forms"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

const (
	runsPath    = "job-runs" // below the mount; not "runs", which apps use for their own JSON
	runsOnAPage = 50

	firstSearch = 100    // runs that a search reads first, and then four times as many
	lastSearch  = 10_000 // the most: a job keeps no more of them by default
)

//go:embed runs.html
var runsHTML string

var allStatuses = []ledger.Status{ledger.InProgress, ledger.Done, ledger.Failed, ledger.Abandoned,
	ledger.Skipped}

// runsQuery says which runs of a job are asked for.
type runsQuery struct {
	job          string
	status       ledger.Status // "": any
	span         string        // of the last 15m, …; "" if since or nothing was given
	since, until time.Time     // of the tick; both included; zero: no limit
	after        time.Time     // the oldest runs that are newer than that; zero: the newest
}

func parseRunsQuery(v url.Values) (q runsQuery, err error) {
	if q.job = v.Get("job"); q.job == "" {
		return q, fmt.Errorf("job is missing: give the name of one, as in %s?job=import", runsPath)
	}
	q.status = ledger.Status(v.Get("status"))
	if q.status != "" && !slices.Contains(allStatuses, q.status) {
		return q, fmt.Errorf("status %.40q is not one of in_progress, done, failed, abandoned, "+
			"skipped", q.status)
	}
	at := func(name string) (t time.Time, err error) {
		if text := v.Get(name); text != "" {
			if t, err = time.Parse(time.RFC3339, text); err != nil {
				err = fmt.Errorf("%s %.40q is not a time such as 2026-11-24T02:14:00Z", name, text)
			}
		}
		return t, err
	}
	since := v.Get("since")
	if q.span, err = parseSpan(since); err != nil {
		if q.since, err = at("since"); err != nil {
			return q, fmt.Errorf("since %.40q is neither one of 15m, 1h, 24h, 7d, all "+
				"nor a time such as 2026-11-24T02:14:00Z", since)
		}
	}
	if q.until, err = at("until"); err != nil {
		return q, err
	}
	if q.after, err = at("after"); err != nil {
		return q, err
	}
	switch {
	case !q.until.IsZero() && !q.after.IsZero():
		return q, fmt.Errorf("until %.40q and after %.40q: give one of them", v.Get("until"),
			v.Get("after"))
	case !q.until.IsZero() && q.since.After(q.until):
		return q, fmt.Errorf("since %.40q is later than until %.40q", since, v.Get("until"))
	}
	return q, nil
}

// one reports whether the query is for the run of one tick.
func (q runsQuery) one() bool { return !q.since.IsZero() && q.since.Equal(q.until) }

// runLink leads to one run, with its attempts.
func runLink(r ledger.Run) string {
	return runsQuery{job: r.Job, since: r.ScheduledAt, until: r.ScheduledAt}.link()
}

// but leads to other runs of the job: the query is changed.
func (q runsQuery) but(change func(*runsQuery)) string {
	change(&q)
	return q.link()
}

// link leads to what the query asks for.
func (q runsQuery) link() string {
	v := url.Values{"job": {q.job}}
	set := func(name, text string) {
		if text != "" {
			v.Set(name, text)
		}
	}
	set("status", string(q.status))
	set("since", cmp.Or(q.span, stampIn(q.since)))
	set("until", stampIn(q.until))
	set("after", stampIn(q.after))
	return runsPath + "?" + v.Encode()
}

// stampIn is a time as it stands in a query; "" for none.
func stampIn(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func (q runsQuery) matches(r ledger.Run) bool {
	return !r.ScheduledAt.Before(q.since) && r.ScheduledAt.After(q.after) &&
		(q.until.IsZero() || !r.ScheduledAt.After(q.until)) && q.ofStatus(r)
}

func (q runsQuery) ofStatus(r ledger.Run) bool { return q.status == "" || r.Status == q.status }

// runsFound is a page of runs.
type runsFound struct {
	runs         []ledger.Run // newest first
	newer, older bool         // there are more
	cut          bool         // older ones were not looked at
}

// search reads the newest runs, those that do not match too, until it has a page of them.
func (q runsQuery) search(ctx context.Context, store ledger.Store) (f runsFound, err error) {
	if q.one() {
		r, found, err := store.Run(ctx, q.job, q.since)
		if found && q.matches(r) {
			f.runs = []ledger.Run{r}
		}
		return f, err
	}
	floor := latest(q.since, q.after) // nothing older is asked for
	for limit := firstSearch; ; limit = min(4*limit, lastSearch) {
		all, err := store.Runs(ctx, q.job, limit)
		if err != nil {
			return f, err
		}
		var found []ledger.Run
		for _, r := range all {
			if q.matches(r) {
				found = append(found, r)
			}
		}
		over := len(all) < limit || all[len(all)-1].ScheduledAt.Before(floor)
		f.cut = !over && limit == lastSearch
		if !over && !f.cut && (len(found) <= runsOnAPage || !q.after.IsZero()) {
			continue
		}
		f.runs = found[:min(len(found), runsOnAPage)]
		if !q.after.IsZero() { // the oldest of them
			f.runs = found[len(found)-len(f.runs):]
		}
		f.newer = len(f.runs) > 0 && slices.ContainsFunc(all, func(r ledger.Run) bool {
			return q.ofStatus(r) && r.ScheduledAt.After(f.runs[0].ScheduledAt)
		})
		f.older = !q.after.IsZero() || len(found) > runsOnAPage
		return f, nil
	}
}

// runsView is what the page of a job's runs shows.
type runsView struct {
	Title        string // of the app's page
	Job          tasks.JobInfo
	Runs         []ledger.Run
	Statuses     []choice
	Times        []choice
	Attempts     []ledger.Attempt // of a run that was asked for alone, newest first
	NotKept      int              // so many of its attempts are not known
	Between      string           // which time was asked for, if it is none of Times
	Newer, Older string           // links; "": there are none
	Cut          int              // so many runs were looked at, and there may be more; 0: all were
	Now          time.Time
}

// choice is a link that filters.
type choice struct {
	Name, Link string
	Current    bool
}

func (h *Handler) serveRuns(w http.ResponseWriter, r *http.Request) {
	v, err := forms.Query(r)
	var q runsQuery
	if err == nil {
		q, err = parseRunsQuery(v)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	lock := h.app.Lock()
	if lock == nil {
		answerLater(w, errStarting.Error())
		return
	}
	store, ok := lock.Store().(ledger.Store)
	if !ok {
		http.Error(w, "this database keeps no runs", http.StatusNotImplemented)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	view, err := h.readRuns(ctx, store, q)
	if err == nil || !errors.Is(context.Cause(ctx), context.Canceled) { // else the client is gone
		h.noteOutage(err)
	}
	switch {
	case err != nil:
		answerLater(w, h.cfg.PublicError(err))
	case view == nil:
		http.Error(w, fmt.Sprintf("no leader has had a job %.200q yet", q.job), http.StatusNotFound)
	default:
		h.answer(w, r, http.StatusOK, "runs", view, view.Now)
	}
}

// readRuns returns nil if there is no such job.
func (h *Handler) readRuns(ctx context.Context, store ledger.Store, q runsQuery) (*runsView,
	error) {
	look, err := h.app.Lock().Store().Look(ctx)
	if err != nil {
		return nil, err
	}
	jobs, err := h.app.Runner().Jobs(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(jobs, func(j tasks.JobInfo) bool { return j.Name == q.job })
	if i < 0 {
		return nil, nil
	}
	asked := q
	if d, _ := lengthOf(q.span); d > 0 {
		asked.since = look.Now.Add(-d)
	}
	f, err := asked.search(ctx, store)
	if err != nil {
		return nil, err
	}
	v := &runsView{Title: h.cfg.Title, Job: jobs[i], Runs: f.runs, Now: look.Now,
		Between: q.between()}
	if f.cut {
		v.Cut = lastSearch
	}
	if q.one() && len(f.runs) == 1 {
		run := f.runs[0]
		if v.Attempts, err = ledger.Attempts(ctx, store, run); err != nil {
			return nil, err
		}
		v.NotKept = run.Attempt - len(v.Attempts)
	}
	for _, s := range append([]ledger.Status{""}, allStatuses...) {
		v.Statuses = append(v.Statuses, choice{cmp.Or(statusWords(s), "all"),
			q.but(func(q *runsQuery) { q.status, q.after = s, time.Time{} }), q.status == s})
	}
	for _, s := range spans {
		all := s.d == 0 && q.span == "" && v.Between == ""
		v.Times = append(v.Times, choice{s.name,
			runsQuery{job: q.job, status: q.status, span: s.name}.link(), q.span == s.name || all})
	}
	if f.newer {
		v.Newer = q.but(func(q *runsQuery) {
			q.until, q.after = time.Time{}, f.runs[0].ScheduledAt
		})
	}
	if f.older && len(f.runs) > 0 {
		end := f.runs[len(f.runs)-1].ScheduledAt.Add(-time.Microsecond)
		v.Older = q.but(func(q *runsQuery) { q.until, q.after = end, time.Time{} })
	}
	return v, nil
}

// between is which time was asked for in other words than those of a span.
func (q runsQuery) between() string {
	if q.one() {
		return "at " + dayAndTime(q.since) + " UTC"
	}
	var parts []string
	for i, t := range []time.Time{q.since, q.until, q.after} {
		if !t.IsZero() {
			parts = append(parts, []string{"from ", "up to ", "after "}[i]+dayAndTime(t)+" UTC")
		}
	}
	return strings.Join(parts, " ")
}

// lasted is how long an attempt took, or has taken so far.
func lasted(started, finished time.Time) template.HTML {
	switch {
	case started.IsZero():
		return "–"
	case finished.IsZero():
		return agoTag(started) + " so far"
	}
	return template.HTML(took(finished.Sub(started)))
}
