package startup_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
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
