package startup_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// The app's own work, one replica at a time, and a queue that all of them serve:
// both in the database of the lock.
func ExampleApp_Locks() {
	ctx, dsn, remove := exampleSetUp() // an app writes "file:app.db"
	defer remove()
	app, err := startup.NewApp(startup.Config{Open: sqlite.Opener(dsn),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Panic(err)
	}
	if err := app.Start(ctx); err != nil {
		log.Panic(err)
	}
	defer app.Stop(ctx)

	err = app.Locks().WithLock(ctx, "reindex", func(ctx context.Context, lock *named.Lock) error {
		fmt.Println("reindexes alone")
		return ctx.Err()
	})
	fmt.Println(err)

	added, err := app.Queues().Add(ctx, "mail", 3, "order-17")
	fmt.Println(added, err)
	// Output:
	// reindexes alone
	// <nil>
	// [order-17] <nil>
}

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
