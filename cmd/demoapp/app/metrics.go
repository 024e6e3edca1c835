package app

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/tasks"
)

// metrics are those of the lock and of the runs, and of this process.
type metrics struct {
	*prom.Metrics
	registry *prometheus.Registry
}

func newMetrics(jobs []tasks.Job) *metrics {
	m := &metrics{Metrics: prom.New(prom.WithJobs(jobs)), registry: prometheus.NewRegistry()}
	m.registry.MustRegister(m.Metrics,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
