package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/schedlock/schedlock"
)

// metrics observes the lock for Prometheus.
type metrics struct {
	registry  *prometheus.Registry
	leader    prometheus.Gauge
	term      prometheus.Gauge
	heartbeat prometheus.Histogram
	events    *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "schedlock_leader", Help: "1 while this replica holds the scheduler lock.",
		}),
		term: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "schedlock_term", Help: "Term (fencing token) of this replica's last lease.",
		}),
		heartbeat: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "schedlock_heartbeat_duration_seconds", Help: "Time that a heartbeat took, failed ones included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "schedlock_events_total", Help: "Events of the scheduler lock by kind.",
		}, []string{"kind"}),
	}
	for _, kind := range schedlock.EventKinds { // a counter that is not there cannot alarm
		m.events.WithLabelValues(string(kind))
	}
	m.registry.MustRegister(m.leader, m.term, m.heartbeat, m.events,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Observe implements schedlock.Observer.
func (m *metrics) Observe(e schedlock.Event) {
	m.events.WithLabelValues(string(e.Kind)).Inc()
	switch e.Kind {
	case schedlock.EventElected:
		m.leader.Set(1)
		m.term.Set(float64(e.Term))
	case schedlock.EventLost, schedlock.EventReleased:
		m.leader.Set(0)
	case schedlock.EventHeartbeat, schedlock.EventHeartbeatFailed:
		m.heartbeat.Observe(e.Took.Seconds())
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
