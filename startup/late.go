package startup

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// lateStart is a stage whose Start was left behind. There is at most one, as it
// ends the start of the graph.
type lateStart struct {
	stage Stage
	done  chan struct{} // closed when Start, and Stop after it, have returned
	err   error         // of Stop; read it after done
}

// followUp waits for a Start that was left behind, and stops the stage if it
// succeeds.
func (g *Graph) followUp(ctx context.Context, st Stage, begin time.Time,
	start <-chan error) *lateStart {
	late := &lateStart{stage: st, done: make(chan struct{})}
	go func() {
		defer close(late.done)
		if err := <-start; err != nil {
			g.logFailure(ctx, slog.LevelWarn, "late stage failed to start", st, begin, err)
			return
		}
		stageCtx, cancel := context.WithTimeoutCause(ctx, st.StopTimeout, stopLimit(st.StopTimeout))
		defer cancel()
		err := <-call(stageCtx, st.Stop)
		if err == nil {
			g.logDone(ctx, "late stage started, and was stopped again", st, begin)
			return
		}
		if stageCtx.Err() != nil {
			err = interrupted(stageCtx, err)
		}
		g.logFailure(ctx, slog.LevelWarn, "late stage started, but failed to stop", st, begin, err)
		late.err = &StageError{Stage: st.Name, Op: opStop, Err: err}
	}()
	return late
}

// awaitLate waits for the stage that was left behind while it started, as long
// as it would wait for it to stop.
func (g *Graph) awaitLate(ctx context.Context) error {
	if g.late == nil {
		return nil
	}
	waitCtx, cancel := g.stopContext(ctx, g.late.stage)
	defer cancel()
	select {
	case <-g.late.done:
		return g.late.err
	case <-waitCtx.Done():
		return &StageError{Stage: g.late.stage.Name, Op: opStop,
			Err: fmt.Errorf("%w; it was left behind while it started, and is not stopped yet",
				interrupted(waitCtx, nil))}
	}
}
