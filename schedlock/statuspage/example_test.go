package statuspage_test

import (
	"context"
	"fmt"
	"html/template"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/statuspage"
	"example.com/schedlock/tasks"
)

// The page is mounted under a path of the app's own. It belongs behind the
// login of whoever may see it; with Control, of whoever may use it.
func Example() {
	store := memory.New() // an app has that of package sqlite or postgres
	lock, err := schedlock.New(store)
	if err != nil {
		log.Fatal(err)
	}
	runner, err := tasks.NewRunner(lock, store, []tasks.Job{{
		Name: "import", Spec: tasks.Every(5 * time.Minute),
		Do: func(context.Context, tasks.Run) error { return nil },
	}})
	if err != nil {
		log.Fatal(err)
	}
	page, err := statuspage.New(statuspage.Config{
		Hosts:  []string{"example.com"},
		Title:  "demoapp",
		Lock:   lock,
		Runner: runner,
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

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/scheduler/", nil))
	fmt.Println(answer.Code, answer.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}
