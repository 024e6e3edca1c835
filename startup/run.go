package startup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
)

// Start starts the stages in order, each within its StartTimeout. If one fails,
// or if ctx ends before all have started, it stops those that had started, in
// reverse, and then returns the *StageError of the stage that failed, joined
// with those of the roll-back. ctx bounds the start only: it may end later
// without consequence, and the roll-back goes on without it, each stage within
// its StopTimeout.
//
// A stage that does not return within 1 s after its context was cancelled is
// left behind, and the error says that it still runs; see the package comment.
//
// Start works once. A second call is refused and changes nothing; after Stop it
// returns ErrStopped.
func (g *Graph) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	g.mu.Lock()
	begun, stopped := g.begun, g.stopCtx != nil
	if !begun {
		g.begun, g.interrupt = true, cancel
	}
	g.mu.Unlock()
	switch {
	case stopped:
		return ErrStopped
	case begun:
		return errors.New("startup: this app, or graph, was started before: each starts once")
	}

	failed := g.startAll(ctx)
	close(g.settled)
	if failed == nil {
		return nil
	}
	if errs := g.unwind(context.WithoutCancel(ctx)); len(errs) > 0 {
		return errors.Join(slices.Concat([]error{failed}, errs)...)
	}
	return failed
}

// Stop stops the stages that have started, in reverse. ctx is the budget for
// all of them: each gets its StopTimeout or what is left of the budget,
// whichever is shorter, but 1 s even if nothing is left. Without a deadline
// only the StopTimeouts count. Stop tries every stage and returns every error,
// as *StageErrors joined.
//
// It may be called at any time. During Start, it cancels the stage that is
// starting (cause ErrStopped) and the roll-back runs within this budget, its
// errors being returned by both calls. After a Start that failed it returns the
// errors of that roll-back, and waits for a stage that was left behind, no
// longer than for a stage to stop. Before Start it makes Start return
// ErrStopped.
//
// A second call waits for the first and returns the same result. The shortest
// of their budgets counts.
func (g *Graph) Stop(ctx context.Context) error {
	defer context.AfterFunc(ctx, g.cut)()

	g.mu.Lock()
	if g.stopCtx == nil {
		g.stopCtx = ctx
	}
	if !g.begun {
		g.begun = true
		close(g.settled)
	}
	if g.interrupt != nil {
		g.interrupt(ErrStopped)
	}
	g.mu.Unlock()

	<-g.settled
	g.stopOnce.do(func() {
		errs := slices.Clone(g.unwind(ctx))
		if err := g.awaitLate(ctx); err != nil {
			errs = append(errs, err)
		}
		g.stopErr = errors.Join(errs...)
	})
	return g.stopErr
}

// startAll starts the stages until one fails.
func (g *Graph) startAll(ctx context.Context) *StageError {
	for _, st := range g.stages {
		begin := time.Now()
		err := g.startStage(ctx, st)
		if err == nil {
			g.logDone(ctx, "stage started", st, begin)
			continue
		}
		level := slog.LevelError
		if ctx.Err() != nil {
			level = slog.LevelWarn // somebody wanted it
		}
		g.logFailure(ctx, level, "stage failed to start", st, begin, err)
		return &StageError{Stage: st.Name, Op: opStart, Err: err}
	}
	return nil
}

// startStage starts one stage. What has to be stopped afterwards is in
// g.started or g.late, also after an error.
func (g *Graph) startStage(ctx context.Context, st Stage) error {
	if ctx.Err() != nil {
		return fmt.Errorf("not begun: %w", interrupted(ctx, nil))
	}
	begin := time.Now()
	stageCtx, cancel := context.WithTimeoutCause(ctx, st.StartTimeout, startLimit(st.StartTimeout))
	defer cancel()

	result := call(stageCtx, st.Start)
	returned, err := await(stageCtx, result)
	if !returned {
		g.late = g.followUp(context.WithoutCancel(ctx), st, begin, result)
		return fmt.Errorf("%w; it still runs, and will be stopped if it succeeds after all",
			interrupted(stageCtx, nil))
	}
	if err == nil {
		g.started = append(g.started, st)
	}
	if stageCtx.Err() != nil {
		return interrupted(stageCtx, err) // also if it succeeded: too late
	}
	return err
}

// unwind stops what has started, once, and returns every error. g.settled must
// be closed.
func (g *Graph) unwind(ctx context.Context) []error {
	g.unwindOnce.do(func() {
		g.mu.Lock()
		if g.stopCtx != nil {
			ctx = g.stopCtx // a roll-back that Stop has caused
		}
		g.mu.Unlock()
		for _, st := range slices.Backward(g.started) {
			begin := time.Now()
			if err := g.stopStage(ctx, st); err != nil {
				g.logFailure(ctx, slog.LevelWarn, "stage failed to stop", st, begin, err)
				g.unwindErrs = append(g.unwindErrs, &StageError{Stage: st.Name,
					Op: opStop, Err: err})
				continue
			}
			g.logDone(ctx, "stage stopped", st, begin)
		}
	})
	return g.unwindErrs
}

// stopStage stops one stage. A Stop that succeeds within its grace after its
// deadline has succeeded: the stage is down.
func (g *Graph) stopStage(ctx context.Context, st Stage) error {
	begin := time.Now()
	stageCtx, cancel := g.stopContext(ctx, st)
	defer cancel()

	result := call(stageCtx, st.Stop)
	returned, err := await(stageCtx, result)
	if !returned {
		go func() {
			if err := <-result; err != nil {
				g.logFailure(ctx, slog.LevelWarn, "late stage failed to stop", st, begin, err)
				return
			}
			g.logDone(ctx, "late stage stopped", st, begin)
		}()
		return fmt.Errorf("%w; it still runs", interrupted(stageCtx, nil))
	}
	if err != nil && stageCtx.Err() != nil {
		return interrupted(stageCtx, err)
	}
	return err
}

// stopContext returns the context in which st stops, from now on: min(its own
// timeout, max(what is left of the budget, grace)).
func (g *Graph) stopContext(ctx context.Context, st Stage) (context.Context, context.CancelFunc) {
	begin := time.Now()
	limit, cause := st.StopTimeout, stopLimit(st.StopTimeout)
	if left := max(g.remaining(ctx), grace); left < limit {
		limit, cause = left, errBudget
	}
	stageCtx, cancelTimeout := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, cause)
	stageCtx, cancel := context.WithCancelCause(stageCtx)

	// A budget may also end before its deadline, or with another Stop.
	uncut := context.AfterFunc(g.budget, func() {
		time.AfterFunc(grace-time.Since(begin), func() { cancel(errBudget) })
	})
	return stageCtx, func() {
		uncut()
		cancel(nil)
		cancelTimeout()
	}
}

// remaining returns how much is left of the budget: of ctx, and of any other
// call of Stop once its budget has ended.
func (g *Graph) remaining(ctx context.Context) time.Duration {
	if ctx.Err() != nil || g.budget.Err() != nil {
		return 0
	}
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return math.MaxInt64
}

// call runs fn on a goroutine of its own. Its result can be received once.
func call(ctx context.Context, fn func(context.Context) error) <-chan error {
	return bounded.Go(func() error {
		if fn == nil {
			return nil
		}
		return fn(ctx)
	})
}

// await waits for a result until ctx has been over for its grace.
func await(ctx context.Context, result <-chan error) (returned bool, err error) {
	select {
	case err := <-result:
		return true, err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return true, err
	case <-time.After(grace):
		return false, nil
	}
}

// once is a sync.Once whose callers wait on a channel: testing/synctest sees
// that they are blocked, where those of a sync.Once would stop its clock.
type once struct {
	begun *atomic.Bool
	done  chan struct{}
}

func newOnce() once { return once{new(atomic.Bool), make(chan struct{})} }

// do calls f if it is the first, and returns when the first call of f is over.
func (o once) do(f func()) {
	if o.begun.CompareAndSwap(false, true) {
		defer close(o.done)
		f()
		return
	}
	<-o.done
}

func (g *Graph) logDone(ctx context.Context, msg string, st Stage, begin time.Time) {
	g.log.LogAttrs(ctx, slog.LevelInfo, msg, slog.String("stage", st.Name),
		slog.Duration("took", time.Since(begin)))
}

func (g *Graph) logFailure(ctx context.Context, level slog.Level, msg string, st Stage,
	begin time.Time, err error) {
	attrs := []slog.Attr{
		slog.String("stage", st.Name),
		slog.Duration("took", time.Since(begin)),
		slog.String("err", err.Error()),
	}
	if p, ok := errors.AsType[*bounded.Panic](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.Stack)))
	}
	g.log.LogAttrs(ctx, level, msg, attrs...)
}
