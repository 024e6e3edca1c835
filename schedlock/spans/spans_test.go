package spans_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/spans"
	"example.com/schedlock/tasks"
)

var ctx = context.Background()

// A replica is a process of the fleet whose spans are kept.
type replica struct {
	t      *testing.T
	lock   *schedlock.Lock
	runner *tasks.Runner
	ended  *tracetest.SpanRecorder
}

// join makes a replica that campaigns until the end of the test.
func join(t *testing.T, db *memory.Store, jobs ...tasks.Job) *replica {
	t.Helper()
	r := &replica{t: t, ended: tracetest.NewSpanRecorder()}
	s := spans.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(r.ended)))
	discard := slog.New(slog.DiscardHandler)
	var err error
	r.lock, err = schedlock.New(db, schedlock.WithLogger(discard),
		schedlock.WithObserver(s.Observe))
	require.NoError(t, err)
	r.runner, err = tasks.NewRunner(r.lock, db, s.Jobs(jobs), tasks.WithLogger(discard))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.runner.Stop(ctx))
		require.NoError(t, r.lock.Stop(ctx))
	})
	r.runner.Start()
	r.runner.Campaign()
	synctest.Wait()
	return r
}

// find returns the ended spans of a name.
func (r *replica) find(name string) (all []sdk.ReadOnlySpan) {
	for _, span := range r.ended.Ended() {
		if span.Name() == name {
			all = append(all, span)
		}
	}
	return all
}

// one is the only span of a name that has ended.
func (r *replica) one(name string) sdk.ReadOnlySpan {
	r.t.Helper()
	all := r.find(name)
	require.Len(r.t, all, 1, name)
	return all[0]
}

func attributes(span sdk.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

func took(span sdk.ReadOnlySpan) time.Duration { return span.EndTime().Sub(span.StartTime()) }

// every is a job that is due each minute.
func every(name string, do func(context.Context, tasks.Run) error) tasks.Job {
	return tasks.Job{Name: name, Spec: tasks.Every(time.Minute), Do: do}
}

func TestTheSpansOfALifeAndOfAHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		started := make(chan struct{})
		slow := every("import", func(context.Context, tasks.Run) error {
			close(started)
			time.Sleep(10 * time.Second)
			return nil
		})
		a := join(t, db, slow)
		b := join(t, db)
		first := a.one("acquire the lock")
		term := a.lock.Lease().Term()
		require.Equal(t, map[string]any{"schedlock.term": term}, attributes(first))
		require.Empty(t, b.ended.Ended(), "a standby has none")
		<-started
		_, err := a.runner.HandOver(ctx, term, "ann", "a deploy")
		require.NoError(t, err)
		time.Sleep(20 * time.Second)
		synctest.Wait()

		run := a.one("run import")
		require.Equal(t, 10*time.Second, took(run))
		require.Equal(t, codes.Unset, run.Status().Code)
		require.Equal(t, term, attributes(run)["schedlock.term"])
		require.Equal(t, int64(1), attributes(run)["schedlock.attempt"])
		require.Equal(t, "import", attributes(run)["schedlock.job"])
		require.NotContains(t, attributes(run), "schedlock.requested_by")
		left := a.one("hand over the lock")
		require.Equal(t, map[string]any{"schedlock.term": term, "schedlock.revoked": true,
			"schedlock.end": "revoked"}, attributes(left))
		require.Equal(t, took(run), took(left), "it waits for the run")
		for _, span := range []sdk.ReadOnlySpan{run, left} {
			require.Len(t, span.Links(), 1, span.Name())
			require.Equal(t, first.SpanContext(), span.Links()[0].SpanContext, span.Name())
			require.False(t, span.Parent().IsValid(), span.Name())
		}
		next := attributes(b.one("acquire the lock"))
		require.Equal(t, b.lock.Lease().Term(), next["schedlock.term"])
		require.Equal(t, "revoked", next["schedlock.previous_end"])
		require.Contains(t, next, "schedlock.gap_seconds")
	})
}

func TestARunThatFailsOrPanicsIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := join(t, memory.New(),
			every("fails", func(context.Context, tasks.Run) error {
				return errors.New("no disk \xff") // an exporter would drop the whole batch
			}),
			every("panics", func(context.Context, tasks.Run) error { panic("a bug") }))
		time.Sleep(61 * time.Second)
		synctest.Wait()
		failed := a.one("run fails")
		require.Equal(t, sdk.Status{Code: codes.Error, Description: "no disk \uFFFD"}, failed.Status())
		require.Len(t, failed.Events(), 1)
		require.Equal(t, "exception", failed.Events()[0].Name)
		require.ElementsMatch(t, []attribute.KeyValue{
			attribute.String("exception.type", "*errors.errorString"),
			attribute.String("exception.message", "no disk \uFFFD")}, failed.Events()[0].Attributes)
		panicked := a.one("run panics")
		require.Equal(t, codes.Error, panicked.Status().Code)
		require.Contains(t, panicked.Events()[0].Attributes,
			attribute.String("exception.message", "a bug"))
		jobs, err := a.runner.Jobs(ctx)
		require.NoError(t, err)
		for _, j := range jobs {
			require.Equal(t, 1, int(j.Streak), "%s: the ledger has it too", j.Name)
		}
	})
}

func TestWhatAJobLogsHasTheIDsOfItsSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := slog.New(spans.Handler(slog.NewJSONHandler(&text, nil))).With("app", "shop")
		a := join(t, memory.New(), every("import", func(ctx context.Context, _ tasks.Run) error {
			require.True(t, trace.SpanFromContext(ctx).IsRecording())
			log.InfoContext(ctx, "imported", "rows", 3)
			return nil
		}))
		time.Sleep(61 * time.Second)
		synctest.Wait()
		var line map[string]any
		require.NoError(t, json.Unmarshal(text.Bytes(), &line))
		c := a.one("run import").SpanContext()
		require.Equal(t, c.TraceID().String(), line["trace_id"])
		require.Equal(t, c.SpanID().String(), line["span_id"])
		require.Equal(t, "shop", line["app"])
		text.Reset()
		log.InfoContext(ctx, "outside of a run")
		require.NotContains(t, text.String(), "trace_id")
	})
}

// Orders of events that the lock may send, and what becomes of the hand-over.
func TestEachHandOverEnds(t *testing.T) {
	t.Parallel()
	event := func(kind schedlock.EventKind, term int64) schedlock.Event {
		e := schedlock.Event{Kind: kind, Term: term}
		switch kind {
		case schedlock.EventReleased:
			e.Reason, e.Took = "released", time.Second
		case schedlock.EventReleaseFailed:
			e.Err = errors.New("connection refused")
		case schedlock.EventLost:
			e.Loss = schedlock.LossDeadline
		}
		return e
	}
	for name, c := range map[string]struct {
		events []schedlock.Event
		want   []codes.Code
	}{
		"released by hand, without a drain": {[]schedlock.Event{
			event(schedlock.EventReleased, 1)}, []codes.Code{codes.Unset}},
		"lost, though nobody wanted to leave": {[]schedlock.Event{
			event(schedlock.EventLost, 1)}, nil},
		"lost while it drains": {[]schedlock.Event{
			event(schedlock.EventDraining, 1), event(schedlock.EventLost, 1)},
			[]codes.Code{codes.Error}},
		"a release that fails is repeated": {[]schedlock.Event{
			event(schedlock.EventDraining, 1), event(schedlock.EventReleaseFailed, 1),
			event(schedlock.EventReleased, 1)}, []codes.Code{codes.Unset}},
		"the release of the term before was never seen": {[]schedlock.Event{
			event(schedlock.EventDraining, 1), event(schedlock.EventDraining, 3),
			event(schedlock.EventReleased, 3)}, []codes.Code{codes.Error, codes.Unset}},
		"a loss of the term before is told late": {[]schedlock.Event{
			event(schedlock.EventDraining, 3), event(schedlock.EventLost, 1),
			event(schedlock.EventReleased, 3)}, []codes.Code{codes.Unset}},
	} {
		ended := tracetest.NewSpanRecorder()
		s := spans.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(ended)))
		for _, e := range c.events {
			s.Observe(e)
		}
		var got []codes.Code
		for _, span := range ended.Ended() {
			require.Equal(t, "hand over the lock", span.Name(), name)
			got = append(got, span.Status().Code)
		}
		require.Equal(t, c.want, got, name)
		require.Len(t, ended.Started(), len(c.want), name)
	}
}

// An app that does not want spans has no OpenTelemetry in its program, and no app
// gets an SDK from this package.
func TestNobodyElseLinksOpenTelemetry(t *testing.T) {
	t.Parallel()
	list := func(dir string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	others := list("../..", "./schedlock/...", "./tasks/...", "./startup/...", "./cmd/...")
	require.Contains(t, others, "example.com/schedlock/schedlock\n")
	require.NotContains(t, others, "go.opentelemetry.io/")
	own := list(".", ".")
	require.Contains(t, own, "go.opentelemetry.io/otel/trace\n")
	require.False(t, strings.Contains(own, "go.opentelemetry.io/otel/sdk"))
}
