package bounded

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Log returns a logger whose lines go to those of log, through a [Queue]: a handler
// that blocks holds up nobody who logs. Lines that are lost are counted in the log.
// A logger that has a queue already is returned as it is.
func Log(log *slog.Logger) *slog.Logger {
	to := log.Handler()
	if _, ok := to.(*handler); ok {
		return log
	}
	return slog.New(&handler{func() slog.Handler { return to }, &Queue{Missed: func(n int) {
		r := slog.NewRecord(time.Now(), slog.LevelWarn,
			"log lines were lost: the log could not keep up", 0)
		r.AddAttrs(slog.Int("lines", n))
		hand(context.Background(), to, r)
	}}})
}

// FlushLog waits until the lines of a logger that Log has made are written, but
// not for longer than limit.
func FlushLog(log *slog.Logger, limit time.Duration) {
	if h, ok := log.Handler().(*handler); ok {
		h.queue.Wait(limit)
	}
}

// A handler is a slog.Handler behind a queue, which it shares with those that
// were made of it by WithAttrs and WithGroup.
type handler struct {
	// to is called in the queue only: any method of the app's handler may block or panic.
	to    func() slog.Handler
	queue *Queue
}

// Enabled implements slog.Handler. That of log is asked in the queue: it may wait for the lock that
// a line has which blocks.
func (h *handler) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler. That of log formats the attributes at once, by what the app
// has given it: so the first line that bears them does it.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.derive(func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return h.derive(func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *handler) derive(with func(slog.Handler) slog.Handler) slog.Handler {
	return &handler{sync.OnceValue(func() slog.Handler { return with(h.to()) }), h.queue}
}

// Handle implements slog.Handler. Its error is always nil: slog drops it too.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	h.queue.Do(func() { hand(ctx, h.to(), r) })
	return nil
}

// hand hands a line over. What the handler makes of it is its own concern, as
// with slog.
func hand(ctx context.Context, to slog.Handler, r slog.Record) {
	if to.Enabled(ctx, r.Level) {
		_ = to.Handle(ctx, r)
	}
}
