package main

import (
	"bytes"
	"context"
	_ "embed"
	"html/template"
	"net/http"
	"time"

	"example.com/schedlock/cmd/demoapp/bans"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

const (
	pageTerms = 20
	pageRuns  = 30
	pageBans  = 50
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
	"short": func(d time.Duration) string { return d.Round(100 * time.Millisecond).String() },
	"took": func(r ledger.Run) string {
		if r.StartedAt.IsZero() || r.FinishedAt.IsZero() {
			return "–"
		}
		return r.FinishedAt.Sub(r.StartedAt).Round(time.Millisecond).String()
	},
	"length": func(t schedlock.Term) string {
		if t.Open() {
			return "until now"
		}
		return t.EndedAt.Sub(t.AcquiredAt).Round(time.Millisecond).String()
	},
}).Parse(pageHTML))

// pageData is what the page shows. An error of the database takes the place of
// what could not be read; this replica's own state is always there.
type pageData struct {
	Self  schedlock.Status
	Owner schedlock.Owner
	Lock  *schedlock.LockInfo
	Left  time.Duration // of the TTL since the last heartbeat
	Terms []schedlock.Term
	Runs  []ledger.Run
	Bans  []bans.Ban
	Count int
	Error string
}

func (a *app) servePage(w http.ResponseWriter, r *http.Request) {
	lock := a.sched.Lock()
	data := pageData{Self: lock.Status(), Owner: lock.Owner()}
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
	if data.Runs, err = store.(ledger.Store).Runs(ctx, "", pageRuns); err != nil {
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
