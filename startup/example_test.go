package startup_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

func Example() {
	say := func(what string) func(context.Context) error {
		return func(context.Context) error {
			fmt.Println(what)
			return nil
		}
	}
	g, err := startup.New([]startup.Stage{
		{Name: "http", After: []string{"database"}, Start: say("listen"),
			Stop: say("close the listener")},
		{Name: "database", Start: say("open the database"), Stop: say("close the database")},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := g.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	budget, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := g.Stop(budget); err != nil {
		fmt.Println(err)
	}
	// Output:
	// open the database
	// listen
	// close the listener
	// close the database
}

func ExampleNew_faults() {
	_, err := startup.New([]startup.Stage{
		{Name: "a", After: []string{"b"}},
		{Name: "b", After: []string{"a"}},
		{Name: "http", After: []string{"databse"}},
	}, nil)
	fmt.Println(err)
	// Output:
	// stage "http": After names "databse", but no stage has that name
	// stages wait for each other: a → b → a; break the cycle in After
}

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
