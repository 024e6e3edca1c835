package startup_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// A web app embeds it all with one call. Here the job ends the app once it has
// run.
func ExampleNewApp() {
	ctx, dsn, remove := exampleSetUp() // an app writes "file:app.db"
	defer remove()
	app, err := startup.NewApp(startup.Config{
		Open: sqlite.Opener(dsn),
		Jobs: []tasks.Job{{
			Name: "clean-up", Spec: tasks.Every(time.Hour), AtOnce: true,
			Do: func(ctx context.Context, run tasks.Run) error { return cleanUp(run) },
		}},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println("stopped:", app.Run(ctx)) // until ctx ends; then drains, releases, closes
	// Output:
	// cleaned up as the leader, attempt 1
	// stopped: <nil>
}

var endExample context.CancelFunc

func exampleSetUp() (ctx context.Context, dsn string, remove func()) {
	ctx, endExample = context.WithTimeout(context.Background(), time.Minute)
	dir, err := os.MkdirTemp("", "schedlock-example")
	if err != nil {
		log.Panic(err)
	}
	return ctx, "file:" + filepath.Join(dir, "app.db"), func() { os.RemoveAll(dir) }
}

func cleanUp(run tasks.Run) error {
	defer endExample()
	if err := run.Lease.Err(); err != nil {
		return err
	}
	fmt.Println("cleaned up as the leader, attempt", run.Attempt)
	return nil
}
