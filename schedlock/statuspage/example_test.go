package statuspage_test

import (
	"context"
	"fmt"
	"html/template"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/statuspage"
	"example.com/schedlock/startup"
)

// The page is mounted under a path of the app's own. It belongs behind the login of
// whoever may see it; with Control, of whoever may use it. It takes the app before that
// has started, and says so until it has.
func ExampleNew() {
	ctx := context.Background()
	store := memory.New() // an app has Open: sqlite.Opener("file:app.db")
	app, err := startup.NewApp(startup.Config{
		Open: func(context.Context) (driver.Store, error) { return store, nil },
		Log:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	page, err := statuspage.New(statuspage.Config{
		App:   app,
		Hosts: []string{"example.com"},
		Title: "demoapp",
		Sections: []statuspage.Section{{
			Title: "Bans",
			Render: func(context.Context) (template.HTML, error) {
				return "<p>1,204 in all</p>", nil
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	login := func(next http.Handler) http.Handler { return next } // the app's own
	mux := http.NewServeMux()
	mux.Handle("/scheduler/", login(page))

	show := func() {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/scheduler/", nil))
		fmt.Println(http.StatusText(answer.Code))
	}
	show()
	if err := app.Start(ctx); err != nil {
		log.Fatal(err)
	}
	defer app.Stop(ctx)
	show()
	// Output:
	// Service Unavailable
	// OK
}
