package prom

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/tasks"
)

var _ prometheus.Collector = (*Metrics)(nil)

// Labels for what is in no list.
const (
	none  = "none"
	other = "other"
)

// What the labels can be. Every value is there from the start: a counter that
// appears with its first event has no increase that an alert could see.
var (
	endReasons = []driver.EndReason{
		driver.EndReleased, driver.EndExpired, driver.EndProvenDead,
		driver.EndSessionEnded, driver.EndRevoked, driver.EndLost,
	}
	lossReasons = []schedlock.LossReason{
		schedlock.LossDeadline, schedlock.LossRow, schedlock.LossSession, schedlock.LossSteppedDown,
	}
	selfStates = []schedlock.SelfState{
		schedlock.SelfStarting, schedlock.SelfStandby, schedlock.SelfLeading,
		schedlock.SelfSuspended, schedlock.SelfDraining, schedlock.SelfStopped,
	}
)

// Buckets in seconds.
var (
	heartbeatBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	handoverBuckets  = []float64{.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120,
		300, 600}
	drainBuckets = []float64{.01, .1, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600}
	runBuckets   = []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400}
)

// Metrics are the metrics of one lock and of the runs under it: a
// prometheus.Collector. All methods are safe for concurrent use.
type Metrics struct {
	own *prometheus.Registry // has those that are counted here, not what the lock says

	heartbeats        prometheus.Histogram
	heartbeatFailures prometheus.Counter
	elections         *prometheus.CounterVec
	handovers         *prometheus.HistogramVec
	losses            *prometheus.CounterVec
	revocations       prometheus.Counter
	drains            prometheus.Histogram
	storeFailures     prometheus.Counter

	runs      *prometheus.CounterVec
	skips     *prometheus.CounterVec
	running   *prometheus.GaugeVec
	durations *prometheus.HistogramVec
	delays    *prometheus.HistogramVec
	jobs      sync.Map // *job by name

	watched atomic.Pointer[watched]
	term    atomic.Int64 // of the last lease

	mu       sync.Mutex // guards what follows
	draining int64      // the term that drains; 0: none
	since    time.Time
}

// An Option sets something on New.
type Option func(*Metrics)

// WithJobs gives these jobs their series from the start. A job that is not
// among them gets its own with its first run.
func WithJobs(jobs []tasks.Job) Option {
	return func(m *Metrics) {
		for _, j := range jobs {
			m.job(j.Name)
		}
	}
}

// New makes the metrics, for startup.Config.Metrics.
func New(opts ...Option) *Metrics {
	m := &Metrics{own: prometheus.NewRegistry()}
	m.heartbeats = m.histogram("heartbeat_duration_seconds",
		"Time that a heartbeat took, failed ones included.", heartbeatBuckets)
	m.heartbeatFailures = m.counter("heartbeat_failures_total",
		"Heartbeats that failed and were repeated.")
	m.elections = m.counters("elections_total",
		"Acquisitions of the lock by this replica, by how the term before had ended.",
		"previous")
	m.handovers = m.histograms("handover_seconds",
		"For how long nobody led before this replica acquired the lock, at the most, "+
			"by how the term before had ended.", handoverBuckets, "previous")
	m.losses = m.counters("losses_total",
		"Leases of this replica that ended without a release, by how they were lost.",
		"reason")
	m.revocations = m.counter("revocations_total",
		"Orders of an operator to leave that this replica has obeyed.")
	m.drains = m.histogram("drain_seconds",
		"Time from the start of a drain to the release of the lock.", drainBuckets)
	m.storeFailures = m.counter("store_failures_total",
		"Looks and acquisitions of a standby that failed.")

	m.runs = m.counters("runs_total",
		"Attempts of runs that have ended as this replica has recorded them, "+
			"and ticks that it has skipped.", "job_name", "status")
	m.skips = m.counters("runs_skipped_total",
		"Ticks, and requests, that this replica has skipped, by reason.", "job_name", "reason")
	m.running = promauto.With(m.own).NewGaugeVec(prometheus.GaugeOpts{
		Name: "schedlock_runs_in_progress",
		Help: "Attempts of runs that are under way on this replica."}, []string{"job_name"})
	m.durations = m.histograms("run_duration_seconds",
		"Time that an attempt of a run took, failed ones included.", runBuckets, "job_name")
	m.delays = m.histograms("run_delay_seconds",
		"Time from when a run was due for the first time to the start of an attempt, "+
			"repeated ones included.", runBuckets, "job_name")
	for _, r := range endReasons {
		m.elections.WithLabelValues(label(endReasons, r))
		m.handovers.WithLabelValues(label(endReasons, r))
	}
	m.elections.WithLabelValues(other)
	m.handovers.WithLabelValues(other)
	m.elections.WithLabelValues(none)
	for _, r := range lossReasons {
		m.losses.WithLabelValues(label(lossReasons, r))
	}
	m.losses.WithLabelValues(other)
	for _, opt := range opts {
		opt(m)
	}
	return m
}

// counter and those below make what Collect sends.
func (m *Metrics) counter(name, help string) prometheus.Counter {
	return promauto.With(m.own).NewCounter(prometheus.CounterOpts{Name: "schedlock_" + name,
		Help: help})
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(m.own).NewCounterVec(prometheus.CounterOpts{Name: "schedlock_" + name,
		Help: help}, labels)
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(m.own).NewHistogram(prometheus.HistogramOpts{Name: "schedlock_" + name,
		Help: help, Buckets: buckets})
}

func (m *Metrics) histograms(name, help string, buckets []float64,
	labels ...string) *prometheus.HistogramVec {
	return promauto.With(m.own).NewHistogramVec(prometheus.HistogramOpts{Name: "schedlock_" + name,
		Help: help, Buckets: buckets}, labels)
}

// label makes a label of a value. One that is not known, such as what a hand
// has written into the history, is "other", so that no table can make series.
func label[T ~string](known []T, value T) string {
	if !slices.Contains(known, value) {
		return other
	}
	return strings.ReplaceAll(string(value), " ", "_")
}

// Observe is for schedlock.WithObserver.
func (m *Metrics) Observe(e schedlock.Event) {
	switch e.Kind {
	case schedlock.EventHeartbeat:
		m.heartbeats.Observe(e.Took.Seconds())
	case schedlock.EventHeartbeatFailed:
		m.heartbeats.Observe(e.Took.Seconds())
		m.heartbeatFailures.Inc()
	case schedlock.EventElected:
		m.term.Store(e.Term)
		if e.Reason == "" {
			m.elections.WithLabelValues(none).Inc()
			break
		}
		previous := label(endReasons, e.Reason)
		m.elections.WithLabelValues(previous).Inc()
		m.handovers.WithLabelValues(previous).Observe(e.Gap.Seconds())
	case schedlock.EventLost:
		m.losses.WithLabelValues(label(lossReasons, e.Loss)).Inc()
		m.drained(e.Term)
	case schedlock.EventRevoked:
		m.revocations.Inc()
	case schedlock.EventDraining:
		m.mu.Lock()
		m.draining, m.since = e.Term, time.Now()
		m.mu.Unlock()
	case schedlock.EventReleased:
		if took, ok := m.drained(e.Term); ok {
			m.drains.Observe(took.Seconds())
		}
	case schedlock.EventStoreFailed:
		m.storeFailures.Inc()
	}
}

// drained ends the drain of a term, if there is one.
func (m *Metrics) drained(term int64) (took time.Duration, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.draining != term {
		return 0, false
	}
	m.draining = 0
	return time.Since(m.since), true
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.own.Describe(out)
	for _, d := range descs {
		out <- d
	}
}

// Collect implements prometheus.Collector. It takes a second at the most,
// whatever the database does.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.collectLock(out)
	m.own.Collect(out)
}
