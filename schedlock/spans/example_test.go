package spans_test

import (
	"context"
	"log/slog"
	"os"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/spans"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// The app sets up OpenTelemetry's SDK first. Its log then tells of each line of a
// job to which span it belongs.
func Example() {
	log := slog.New(spans.Handler(slog.NewJSONHandler(os.Stderr, nil)))
	s := spans.New(nil) // the global provider
	jobs := s.Jobs([]tasks.Job{{
		Name: "import", Spec: tasks.Every(time.Hour),
		Do: func(ctx context.Context, _ tasks.Run) error {
			log.InfoContext(ctx, "imported", "rows", 3)
			return nil
		},
	}})
	app, err := startup.NewApp(startup.Config{
		Open: func(context.Context) (driver.Store, error) { return memory.New(), nil },
		Jobs: jobs, Log: log,
		Lock: []schedlock.Option{schedlock.WithObserver(s.Observe)},
	})
	if err != nil {
		panic(err)
	}
	if err := app.Run(context.Background()); err != nil {
		panic(err)
	}
}
