package main

import (
	"bytes"
	"context"
	_ "embed"
	"html/template"
	"net/http"
	"net/url"
	"time"

	"example.com/schedlock/cmd/demoapp/bans"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

const (
	pageTerms = 20
	pageRuns  = 30
	pageBans  = 50

	// overdue is how late a tick may be decided before the page says so.
	overdue = 2 * time.Second
)

//go:embed page.html
var pageHTML string

//go:embed style.css
var styleCSS []byte

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"stamp": func(t time.Time) string {
		if t.IsZero() {
			return "–"
		}
		return t.UTC().Format("2006-01-02 15:04:05 UTC")
	},
	"escape":  url.PathEscape,
	"overdue": func(t time.Time) bool { return !t.IsZero() && time.Since(t) > overdue },
	"short":   func(d time.Duration) string { return d.Round(100 * time.Millisecond).String() },
	"took":    took,
	"lasted": func(r ledger.Run) string {
		if r.StartedAt.IsZero() || r.FinishedAt.IsZero() {
			return "–"
		}
		return took(r.FinishedAt.Sub(r.StartedAt))
	},
	"length": func(t schedlock.Term) string {
		if t.Open() {
			return "until now"
		}
		return t.EndedAt.Sub(t.AcquiredAt).Round(time.Millisecond).String()
	},
}).Parse(pageHTML))

// took is a duration as a person reads it.
func took(d time.Duration) string {
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// pageData is what the page shows. An error of the database takes the place of
// what could not be read; this replica's own state is always there.
type pageData struct {
	Self  schedlock.Status
	Owner schedlock.Owner
	Lock  *schedlock.LockInfo
	Left  time.Duration // of the TTL since the last heartbeat
	Terms []schedlock.Term
	Jobs  []tasks.JobInfo
	Pause *ledger.Pause // of the whole scheduler
	Runs  []ledger.Run
	Bans  []bans.Ban
	Count int
	Error string

	Control bool // there are buttons
}

func (a *app) servePage(w http.ResponseWriter, r *http.Request) {
	lock := a.sched.Lock()
	data := pageData{Self: lock.Status(), Owner: lock.Owner(), Control: a.cfg.control}
	status := http.StatusOK
	if err := a.readPage(r.Context(), &data); err != nil {
		a.log.Warn("page cannot read the database", "err", err)
		data.Error, status = publicError(err), http.StatusServiceUnavailable
	}
	var body bytes.Buffer
	if err := pageTemplate.Execute(&body, data); err != nil {
		a.log.Error("page template", "err", err)
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = body.WriteTo(w)
}

func (a *app) readPage(ctx context.Context, data *pageData) (err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	store := a.sched.Store()
	if data.Lock, err = schedlock.GetLockInfo(ctx, store); err != nil {
		return err
	}
	if i := data.Lock; i != nil {
		data.Left = max(i.Timing.TTL-i.HeartbeatAge, 0)
	}
	if data.Terms, err = store.Terms(ctx, pageTerms); err != nil {
		return err
	}
	if data.Jobs, err = a.sched.Runner().Jobs(ctx); err != nil {
		return err
	}
	inbox, err := a.ledger().Inbox(ctx)
	if err != nil {
		return err
	}
	data.Pause = inbox.Paused("")
	if data.Runs, err = a.ledger().Runs(ctx, "", pageRuns); err != nil {
		return err
	}
	if data.Bans, err = a.database.bans.Latest(ctx, pageBans); err != nil {
		return err
	}
	data.Count, err = a.database.bans.Count(ctx)
	return err
}

func serveStyle(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	_, _ = w.Write(styleCSS)
}
