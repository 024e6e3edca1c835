// Command without is a web app on a SQLite file that does something every
// hour, without the module: what the size of the app with it is compared with.
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

	"github.com/ncruces/go-sqlite3/driver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	db, err := driver.Open("file:app.db")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	go func() {
		for range time.Tick(time.Hour) {
			if err := cleanUp(ctx); err != nil {
				log.Print(err)
			}
		}
	}()
	server := &http.Server{Addr: "127.0.0.1:8080",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "hello")
		})}
	context.AfterFunc(ctx, func() { _ = server.Shutdown(context.Background()) })
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

func cleanUp(context.Context) error { return nil }
