package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

// metrics observes the lock, and the runs that fail, for Prometheus.
type metrics struct {
	registry  *prometheus.Registry
	leader    prometheus.Gauge
	term      prometheus.Gauge
	heartbeat prometheus.Histogram
	events    *prometheus.CounterVec
	failures  *prometheus.CounterVec
}

func newMetrics(jobs []tasks.Job) *metrics {
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
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "schedlock_run_failures_total", Help: "Attempts of runs that failed, or were abandoned by the leader before, as this replica has recorded them.",
		}, []string{"job", "status"}),
	}
	for _, kind := range schedlock.EventKinds { // a counter that is not there cannot alarm
		m.events.WithLabelValues(string(kind))
	}
	for _, j := range jobs {
		for _, status := range []ledger.Status{ledger.Failed, ledger.Abandoned} {
			m.failures.WithLabelValues(j.Name, string(status))
		}
	}
	m.registry.MustRegister(m.leader, m.term, m.heartbeat, m.events, m.failures,
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

// runFailed counts an attempt that did not succeed.
func (m *metrics) runFailed(f tasks.Failure) {
	m.failures.WithLabelValues(f.Job, string(f.Status)).Inc()
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
