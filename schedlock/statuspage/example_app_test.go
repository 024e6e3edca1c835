package statuspage_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/statuspage"
	"example.com/schedlock/startup"
)

// The page takes the app before that has started, and says so until it has.
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
	page, err := statuspage.New(statuspage.Config{App: app, Hosts: []string{"example.com"}})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/scheduler/", page)

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
