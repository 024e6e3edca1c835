// Command with is a web app on a SQLite file that does something every hour on
// one of its replicas, by the module: how large that is says docs/benchmarks.md.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	app, err := startup.NewApp(startup.Config{
		Open: sqlite.Opener("file:app.db"),
		Jobs: []tasks.Job{{Name: "clean-up", Spec: tasks.Every(time.Hour), Do: cleanUp}},
		Server: func(*startup.App) *http.Server {
			return &http.Server{Addr: "127.0.0.1:8080",
				Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprintln(w, "hello")
				})}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := app.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func cleanUp(context.Context, tasks.Run) error { return nil }
