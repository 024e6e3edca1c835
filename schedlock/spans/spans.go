package spans

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks"
)

const (
	scope = "example.com/schedlock/schedlock/spans"

	term = attribute.Key("schedlock.term")
)

// Spans makes the spans of one lock and its runs. All methods are safe for
// concurrent use.
type Spans struct {
	tracer trace.Tracer

	mu       sync.Mutex        // guards what follows
	acquired trace.SpanContext // of term
	term     int64             // the last that was acquired; 0: none was
	leaving  trace.Span        // the hand-over that is under way; nil: none is
	from     int64             // its term
}

// New makes the spans with a provider. nil is the global one, also one that the
// app sets later.
func New(provider trace.TracerProvider) *Spans {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return &Spans{tracer: provider.Tracer(scope)}
}

// Observe is for schedlock.WithObserver.
func (s *Spans) Observe(e schedlock.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case schedlock.EventElected:
		span := s.begin("acquire the lock", e.Term, e.Took)
		if e.Reason != "" {
			span.SetAttributes(attribute.String("schedlock.previous_end", string(e.Reason)),
				attribute.Float64("schedlock.gap_seconds", e.Gap.Seconds()))
		}
		span.End()
		s.acquired, s.term = span.SpanContext(), e.Term
	case schedlock.EventRevoked:
		s.leave(e.Term, 0).SetAttributes(attribute.Bool("schedlock.revoked", true))
	case schedlock.EventDraining:
		s.leave(e.Term, 0)
	case schedlock.EventReleaseFailed:
		record(s.leave(e.Term, e.Took), e.Err)
	case schedlock.EventReleased:
		s.leave(e.Term, e.Took).SetAttributes(attribute.String("schedlock.end", string(e.Reason)))
		s.left()
	case schedlock.EventLost:
		if s.leaving == nil || s.from != e.Term {
			return // nobody wanted to leave
		}
		s.leaving.SetStatus(codes.Error, "the lease was lost: "+string(e.Loss))
		s.left()
	}
}

// begin begins a span of the lock that has lasted for some time; mu is held.
func (s *Spans) begin(name string, of int64, took time.Duration) trace.Span {
	_, span := s.tracer.Start(context.Background(), name, trace.WithNewRoot(),
		trace.WithTimestamp(time.Now().Add(-took)), trace.WithAttributes(term.Int64(of)),
		trace.WithLinks(s.links(of)...))
	return span
}

// leave is the hand-over of a term, begun if none is under way; mu is held.
func (s *Spans) leave(of int64, took time.Duration) trace.Span {
	if s.leaving != nil && s.from != of {
		s.leaving.SetStatus(codes.Error, "no release was seen")
		s.left()
	}
	if s.leaving == nil {
		s.leaving, s.from = s.begin("hand over the lock", of, took), of
	}
	return s.leaving
}

func (s *Spans) left() {
	s.leaving.End()
	s.leaving = nil
}

// links lead to the acquisition of a term, if it is known; mu is held.
func (s *Spans) links(of int64) []trace.Link {
	if s.term != of || !s.acquired.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: s.acquired}}
}

// record is RecordError for errors whose text may be no UTF-8: for such a text an exporter drops
// all the spans that it sends together. It returns the text. A panic is recorded by the SDK itself,
// with its stack: its text stays as it is.
func record(span trace.Span, err error) string {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	span.AddEvent("exception", trace.WithAttributes(
		attribute.String("exception.type", fmt.Sprintf("%T", err)),
		attribute.String("exception.message", text)))
	return text
}

// Jobs returns the same jobs, with a span around each attempt. It leaves alone
// those that it is given.
func (s *Spans) Jobs(jobs []tasks.Job) []tasks.Job {
	traced := make([]tasks.Job, len(jobs))
	for i, j := range jobs {
		if do := j.Do; do != nil { // a job without is refused by NewRunner
			j.Do = func(ctx context.Context, run tasks.Run) error { return s.run(ctx, run, do) }
		}
		traced[i] = j
	}
	return traced
}

func (s *Spans) run(ctx context.Context, run tasks.Run,
	do func(context.Context, tasks.Run) error) (err error) {
	s.mu.Lock()
	links := s.links(run.Term)
	s.mu.Unlock()
	ctx, span := s.tracer.Start(ctx, "run "+run.Job, trace.WithNewRoot(), trace.WithLinks(links...),
		trace.WithAttributes(term.Int64(run.Term), attribute.String("schedlock.job", run.Job),
			attribute.String("schedlock.tick", run.ScheduledAt.UTC().Format(time.RFC3339Nano)),
			attribute.Int("schedlock.attempt", run.Attempt)))
	if run.RequestedBy != "" {
		span.SetAttributes(attribute.String("schedlock.requested_by", run.RequestedBy))
	}
	defer span.End() // it records a panic, and lets it go on to the runner
	returned := false
	defer func() {
		switch {
		case !returned:
			span.SetStatus(codes.Error, "the job panicked, or ended its goroutine")
		case err != nil:
			span.SetStatus(codes.Error, record(span, err))
		}
	}()
	err = do(ctx, run)
	returned = true
	return err
}
