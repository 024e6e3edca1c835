package app

import (
	"context"
	_ "embed"
	"html/template"
	"net/http"
	"strings"
	"time"

	"example.com/schedlock/cmd/demoapp/bans"
	"example.com/schedlock/schedlock/statuspage"
)

// pageBans is how many of the newest bans the page shows.
const pageBans = 20

//go:embed bans.html
var bansHTML string

var bansTemplate = template.Must(template.New("bans").Funcs(template.FuncMap{
	"stamp": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
}).Parse(bansHTML))

// handlePage mounts the page at the root. Each of its paths has a pattern of
// its own, so that the others keep their methods, and what there is not is not
// found.
func (a *app) handlePage(mux *http.ServeMux) {
	page, err := statuspage.New(statuspage.Config{
		Title:       "demoapp",
		App:         a.sched,
		Control:     a.cfg.control,
		ControlHint: noControl,
		Hosts:       []string{"*"}, // see handler
		Sections:    []statuspage.Section{{Title: "Bans", Render: a.renderBans}},
		Log:         a.log,
		PublicError: publicError,
	})
	if err != nil {
		panic(err) // a mistake in the lines above
	}
	for _, pattern := range []string{"/{$}", "/style.css", "/page.js", "/icon.svg", "/events",
		"/job-runs", "/orders/{order}"} {
		mux.Handle(pattern, page)
	}
}

func (a *app) renderBans(ctx context.Context) (template.HTML, error) {
	var (
		data struct {
			Bans  []bans.Ban
			Count int
		}
		text strings.Builder
		err  error
	)
	if data.Bans, err = a.database.bans.Latest(ctx, pageBans); err != nil {
		return "", err
	}
	if data.Count, err = a.database.bans.Count(ctx); err != nil {
		return "", err
	}
	err = bansTemplate.Execute(&text, data)
	return template.HTML(text.String()), err
}
