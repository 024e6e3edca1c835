package prom_test

import (
	"context"
	"log"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

func Example() {
	jobs := []tasks.Job{{
		Name: "import", Spec: tasks.Every(10 * time.Minute),
		Do: func(context.Context, tasks.Run) error { return nil },
	}}
	m := prom.New(prom.WithJobs(jobs))
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	app, err := startup.NewApp(startup.Config{
		Open: sqlite.Opener("file:app.db"),
		Jobs: jobs, Metrics: m,
		Server: func(*startup.App) *http.Server {
			return &http.Server{Addr: "127.0.0.1:8080", Handler: mux}
		},
	})
	if err != nil {
		log.Panic(err)
	}
	if err := app.Run(context.Background()); err != nil {
		log.Panic(err)
	}
}
