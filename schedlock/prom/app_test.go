package prom_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

var _ startup.Metrics = (*prom.Metrics)(nil)

func TestOneLineInTheConfigOfAnAppGivesAllMetrics(t *testing.T) {
	store := memory.New()
	ran, told := make(chan struct{}), make(chan tasks.RunEvent, 10)
	jobs := []tasks.Job{{Name: "import", Spec: tasks.Every(time.Hour), AtOnce: true,
		Do: func(context.Context, tasks.Run) error {
			close(ran)
			return nil
		}}}
	m := prom.New(prom.WithJobs(jobs))
	app, err := startup.NewApp(startup.Config{
		Open: func(context.Context) (driver.Store, error) { return store, nil },
		Jobs: jobs, Metrics: m,
		OnRun: func(e tasks.RunEvent) { told <- e },
		Log:   slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	now := func() scrape { return scraped(t, m) }
	now().is(1, "schedlock_state", "state=starting")
	now().is(0, "schedlock_leader")

	require.NoError(t, app.Start(t.Context()))
	<-ran
	<-told // the start
	<-told // the end: the app's own function is told too
	now().is(1, "schedlock_state", "state=leading")
	now().is(60, "schedlock_ttl_seconds")
	require.Eventually(t, func() bool { // each is told in a goroutine of its own
		s := now()
		return s.value("schedlock_elections_total", "previous=none") == 1 &&
			s.value("schedlock_runs_total", "job_name=import", "status=done") == 1
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, app.Stop(t.Context()))
	now().is(1, "schedlock_state", "state=stopped")
}
