// Package logqueue keeps a log handler that blocks, such as one that writes to
// a pipe which nobody reads, from blocking who logs; see package inturn. Lines
// that are lost, because a thousand wait already, are counted in the log.
package logqueue

import (
	"context"
	"log/slog"
	"time"

	"example.com/schedlock/internal/inturn"
)

// Wrap returns a logger whose lines go to those of log, through a queue. A
// logger that has one already is returned as it is.
func Wrap(log *slog.Logger) *slog.Logger {
	to := log.Handler()
	if _, ok := to.(*handler); ok {
		return log
	}
	return slog.New(&handler{to, &inturn.Queue{Missed: func(n int) {
		r := slog.NewRecord(time.Now(), slog.LevelWarn,
			"log lines were lost: the log could not keep up", 0)
		r.AddAttrs(slog.Int("lines", n))
		hand(context.Background(), to, r)
	}}})
}

// Flush waits until the lines of a logger that Wrap has made are written, but
// not for longer than limit.
func Flush(log *slog.Logger, limit time.Duration) {
	if h, ok := log.Handler().(*handler); ok {
		h.queue.Wait(limit)
	}
}

// A handler is a slog.Handler behind a queue, which it shares with those that
// were made of it by WithAttrs and WithGroup.
type handler struct {
	slog.Handler
	queue *inturn.Queue
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.queue}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.queue}
}

// Handle implements slog.Handler. Its error is always nil: slog drops it too.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	h.queue.Do(func() { hand(ctx, h.Handler, r) })
	return nil
}

// hand hands a line over. What the handler makes of it is its own concern, as
// with slog.
func hand(ctx context.Context, to slog.Handler, r slog.Record) {
	if to.Enabled(ctx, r.Level) {
		_ = to.Handle(ctx, r)
	}
}
