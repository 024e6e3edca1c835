package prom_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/wire"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/tasks"
)

func TestMain(m *testing.M) {
	child.InMemory()
	goleak.VerifyTestMain(m)
}

var ctx = context.Background()

// A world is a database and its replicas, in a synctest bubble.
type world struct {
	t        *testing.T
	db       *memory.Store
	replicas int
}

func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, &world{t: t, db: memory.New()})
	})
}

// A replica is one process of the fleet.
type replica struct {
	t       *testing.T
	link    *link
	lock    *schedlock.Lock
	runner  *tasks.Runner
	metrics *prom.Metrics
}

// join makes a replica that campaigns.
func (w *world) join(jobs ...tasks.Job) *replica {
	w.t.Helper()
	r := w.prepare(jobs...)
	r.campaign()
	return r
}

func (r *replica) campaign() {
	r.metrics.Watch(r.lock, r.runner)
	r.runner.Start()
	r.runner.Campaign()
	synctest.Wait()
}

func (w *world) prepare(jobs ...tasks.Job) *replica {
	w.t.Helper()
	w.replicas++
	m := prom.New(prom.WithJobs(jobs))
	r := &replica{t: w.t, link: newLink(w.db), metrics: m}
	log := slog.New(slog.DiscardHandler)
	var err error
	r.lock, err = schedlock.New(r.link, schedlock.WithLogger(log),
		schedlock.WithObserver(m.Observe),
		schedlock.WithOwner(driver.Owner{PID: w.replicas, Hostname: "test"}))
	require.NoError(w.t, err)
	r.runner, err = tasks.NewRunner(r.lock, r.link, jobs, tasks.WithLogger(log),
		tasks.WithOnRun(m.OnRun),
		tasks.WithKeepRuns(0)) // else it reads the jobs too
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		r.link.set(nil)
		r.stop()
	})
	return r
}

// stop drains and releases.
func (r *replica) stop() {
	r.t.Helper()
	require.NoError(r.t, r.runner.Stop(ctx))
	require.NoError(r.t, r.lock.Stop(ctx))
	synctest.Wait()
}

// sleep passes time, and what happens in it.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A link is a replica's connection to the database.
type link struct {
	*wire.Store
	before atomic.Pointer[func(ctx context.Context, op string) error]
	reads  atomic.Int64 // of the jobs
}

func newLink(db *memory.Store) *link {
	l := &link{Store: &wire.Store{Store: db}}
	l.On = func(s wire.Statement) (any, error) {
		if err := l.meet(s.Ctx, s.Op); err != nil {
			return nil, err
		}
		return s.Do(s.Ctx)
	}
	return l
}

func (l *link) Queue() taskqueue.Store { return queueLink{l.Store.Queue(), l} }

type queueLink struct {
	taskqueue.Store
	link *link
}

func (q queueLink) Count(ctx context.Context) ([]taskqueue.Count, error) {
	if err := q.link.meet(ctx, "count"); err != nil {
		return nil, err
	}
	return q.Store.Count(ctx)
}

// set says what happens before each statement; nil: nothing.
func (l *link) set(before func(ctx context.Context, op string) error) { l.before.Store(&before) }

func (l *link) meet(ctx context.Context, op string) error {
	if op == "jobs" {
		l.reads.Add(1)
	}
	if before := l.before.Load(); before != nil && *before != nil {
		return (*before)(ctx, op)
	}
	return nil
}

var errRefused = errors.New("connection refused")

// refuse fails these statements, or all of them.
func refuse(ops ...string) func(context.Context, string) error {
	return func(_ context.Context, op string) error {
		if len(ops) == 0 || slices.Contains(ops, op) {
			return errRefused
		}
		return nil
	}
}

// hang keeps a statement until its context ends.
func hang(hung string) func(context.Context, string) error {
	return func(ctx context.Context, op string) error {
		if op != hung {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

// A scrape is what Prometheus reads.
type scrape struct {
	t        *testing.T
	families map[string]*dto.MetricFamily
}

func (r *replica) scrape() scrape {
	r.t.Helper()
	return scraped(r.t, r.metrics)
}

// scraped is written and read as a server and Prometheus do; promlint must
// have nothing to say.
func scraped(t *testing.T, m *prom.Metrics) scrape {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	gathered, err := registry.Gather()
	require.NoError(t, err)
	var text bytes.Buffer
	for _, f := range gathered {
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	problems, err := promlint.New(bytes.NewReader(text.Bytes())).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&text)
	require.NoError(t, err)
	return scrape{t, families}
}

// find returns the series with these labels, given as name=value.
func (s scrape) find(name string, labels ...string) *dto.Metric {
	for _, m := range s.families[name].GetMetric() {
		var has []string
		for _, l := range m.GetLabel() {
			has = append(has, l.GetName()+"="+l.GetValue())
		}
		if slices.Equal(has, labels) {
			return m
		}
	}
	return nil
}

// value is that of a counter or a gauge, or how often a histogram has observed something. It
// must be there.
func (s scrape) value(name string, labels ...string) float64 {
	s.t.Helper()
	m := s.find(name, labels...)
	require.NotNil(s.t, m, "%s%v is not there", name, labels)
	return valueOf(m)
}

func valueOf(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() +
		float64(m.GetHistogram().GetSampleCount())
}

// is requires a value.
func (s scrape) is(want float64, name string, labels ...string) {
	s.t.Helper()
	require.InDelta(s.t, want, s.value(name, labels...), 0, "%s%v", name, labels)
}

// observed is how often, and the sum.
func (s scrape) observed(name string, labels ...string) (int, float64) {
	s.t.Helper()
	m := s.find(name, labels...)
	require.NotNil(s.t, m, "%s%v is not there", name, labels)
	return int(m.GetHistogram().GetSampleCount()), m.GetHistogram().GetSampleSum()
}

// all are the values of a metric by its labels, without those that are 0.
func (s scrape) all(name string) map[string]float64 {
	values := map[string]float64{}
	for _, m := range s.families[name].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		if v := valueOf(m); v != 0 {
			values[strings.Join(labels, " ")] = v
		}
	}
	return values
}
