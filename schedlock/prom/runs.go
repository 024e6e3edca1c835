package prom

import (
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

var (
	runStatuses = []ledger.Status{ledger.Done, ledger.Failed, ledger.Abandoned, ledger.Skipped}
	skipReasons = []string{ledger.Missed, ledger.Overlap, ledger.Paused, ledger.UnknownJob}
)

// A job is the series of one job.
type job struct {
	label    string // its name; a label must be UTF-8
	ended    map[ledger.Status]prometheus.Counter
	active   atomic.Int64 // attempts under way; a gauge cannot be read
	running  prometheus.Gauge
	duration prometheus.Observer
	delay    prometheus.Observer
}

// job returns the series of a job, and makes them if there are none yet.
func (m *Metrics) job(name string) *job {
	if j, ok := m.jobs.Load(name); ok {
		return j.(*job)
	}
	label := utf8Label(name)
	j := &job{
		label: label, ended: map[ledger.Status]prometheus.Counter{},
		running:  m.running.WithLabelValues(label),
		duration: m.durations.WithLabelValues(label), delay: m.delays.WithLabelValues(label),
	}
	for _, status := range runStatuses {
		j.ended[status] = m.runs.WithLabelValues(label, string(status))
	}
	for _, reason := range skipReasons {
		m.skips.WithLabelValues(label, strings.ReplaceAll(reason, " ", "_"))
	}
	m.skips.WithLabelValues(label, other)
	first, _ := m.jobs.LoadOrStore(name, j)
	return first.(*job)
}

// OnRun is for tasks.WithOnRun and startup.Config.OnRun.
func (m *Metrics) OnRun(e tasks.RunEvent) {
	j := m.job(e.Job)
	switch e.Status {
	case ledger.InProgress:
		j.active.Add(1)
		j.running.Inc()
		j.delay.Observe(e.Late.Seconds())
	case ledger.Done, ledger.Failed:
		j.active.Add(-1)
		j.running.Dec()
		j.ended[e.Status].Inc()
		j.duration.Observe(e.Took.Seconds())
	case ledger.Abandoned:
		j.ended[e.Status].Inc()
	case ledger.Skipped:
		n := float64(max(e.Count, 0)) // a counter panics if it shall go back
		j.ended[e.Status].Add(n)
		m.skips.WithLabelValues(j.label, label(skipReasons, e.Reason)).Add(n)
	}
}

// utf8Label is a name as a label can have it.
func utf8Label(name string) string {
	if !utf8.ValidString(name) {
		return strconv.Quote(name)
	}
	return name
}
