package startup_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// The "import now" button of a web page: it works on any replica.
func ExampleApp_Runner() {
	ctx, dsn, remove := exampleSetUp() // an app writes "file:app.db"
	defer remove()
	app, err := startup.NewApp(startup.Config{
		Open: sqlite.Opener(dsn),
		Jobs: []tasks.Job{{
			Name: "import", Spec: tasks.Cron("30 2 * * *", "Europe/Berlin"),
			Retry: tasks.Retry{Attempts: 3, Backoff: 10 * time.Millisecond},
			Do: func(_ context.Context, run tasks.Run) error {
				fmt.Println("attempt", run.Attempt, "for", run.RequestedBy)
				if run.Attempt == 1 {
					return fmt.Errorf("the list is not there yet")
				}
				return nil
			},
		}},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Panic(err)
	}
	if err := app.Start(ctx); err != nil {
		log.Panic(err)
	}
	defer app.Stop(ctx)
	for { // until this replica, the first, has led and so made the job known
		request, err := app.Runner().Trigger(ctx, "import", "alice", "the list is new")
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		run, err := app.Runner().Await(ctx, request)
		fmt.Println(run.Status, err)
		return
	}
	// Output:
	// attempt 1 for alice
	// attempt 2 for alice
	// done <nil>
}
