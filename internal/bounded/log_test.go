package bounded

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A gate is a writer that blocks while it is shut.
type gate struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	open chan struct{}
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	<-open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.Write(p)
}

// lines are the messages, without what stands before and behind.
func (g *gate) lines() (messages []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for line := range strings.Lines(g.buf.String()) {
		_, line, _ = strings.Cut(line, "msg=")
		messages = append(messages, strings.TrimSpace(line))
	}
	return messages
}

func (g *gate) logger() *slog.Logger { return Log(slog.New(slog.NewTextHandler(g, nil))) }

func TestALineIsWrittenWhenTheCallReturns(t *testing.T) {
	g := newGate()
	log := g.logger()
	for i := range 100 {
		log.With("n", i).WithGroup("g").Info("line", "x", i)
		require.Len(t, g.lines(), i+1)
		require.Equal(t, fmt.Sprintf("line n=%d g.x=%d", i, i), g.lines()[i])
	}
	log.Debug("not for this handler")
	assert.Len(t, g.lines(), 100)
	assert.Same(t, log, Log(log), "one queue is enough")
}

func TestAHandlerThatBlocksHoldsUpNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		g.shut()
		log := g.logger()
		begin := time.Now()
		var want []string
		for i := range Capacity + 1 { // the first of them is in the handler
			log.Info(fmt.Sprint(i))
			want = append(want, fmt.Sprint(i))
		}
		require.Equal(t, Patience, time.Since(begin), "for all of them")
		for range 7 {
			log.Info("one too many")
		}
		require.Equal(t, Patience, time.Since(begin))
		require.Empty(t, g.lines())

		begin = time.Now()
		FlushLog(log, time.Second)
		require.Equal(t, time.Second, time.Since(begin), "a flush is bounded")
		close(g.open)
		FlushLog(log, time.Hour)
		synctest.Wait()
		want = append(want, `"log lines were lost: the log could not keep up" lines=7`)
		require.Equal(t, want, g.lines(), "in order, and what is missing is said")

		log.Info("again")
		assert.Equal(t, "again", g.lines()[len(want)], "at once again")
		begin = time.Now()
		FlushLog(log, time.Hour)
		assert.Zero(t, time.Since(begin))
	})
}

func TestWhatAQueueHasLostIsToldInItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		q := Queue{Missed: func(n int) { told = append(told, fmt.Sprint(n, " missed")) }}
		begin := time.Now()
		q.Wait(time.Hour)
		require.Zero(t, time.Since(begin), "for nothing")
		next := make(chan struct{})
		for range Capacity + 3 { // the first of them is under way
			q.Do(func() { <-next })
		}
		next <- struct{}{}
		synctest.Wait()
		q.Do(func() { told = append(told, "later") })
		close(next)
		q.Wait(time.Hour)
		require.Equal(t, []string{"2 missed", "later"}, told)
	})
}

// faulty panics, or ends its goroutine, at some lines.
type faulty struct{ slog.Handler }

func (f faulty) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "panic":
		panic("boom")
	case "goexit":
		runtime.Goexit()
	}
	return f.Handler.Handle(ctx, r)
}

func TestAHandlerThatFailsLosesItsOwnLineOnly(t *testing.T) {
	g := newGate()
	log := Log(slog.New(faulty{slog.NewTextHandler(g, nil)}))
	for _, message := range []string{"a", "panic", "b", "goexit", "c"} {
		log.Info(message)
	}
	assert.Equal(t, []string{"a", "b", "c"}, g.lines())
}

// clumsy panics, or ends its goroutine, when it is told attributes or a group.
type clumsy struct{ slog.Handler }

func (clumsy) WithAttrs([]slog.Attr) slog.Handler { panic("boom") }

func (clumsy) WithGroup(string) slog.Handler {
	runtime.Goexit()
	return nil
}

func TestAttributesThatAHandlerCannotBearLoseTheirLinesOnly(t *testing.T) {
	g := newGate()
	log := Log(slog.New(clumsy{slog.NewTextHandler(g, nil)}))
	attrs, group := log.With("n", 1), log.WithGroup("g")
	for range 2 {
		attrs.Info("a")
		group.Info("b")
		log.Info("c")
	}
	assert.Equal(t, []string{"c", "c"}, g.lines())
}

// A handler may log itself, to the logger that it is behind.
func TestAHandlerThatLogsDoesNotWaitForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		var log *slog.Logger
		log = Log(slog.New(echo{slog.NewTextHandler(g, nil), &log}))
		log.Info("a")
		FlushLog(log, time.Hour)
		assert.Equal(t, []string{"a", "echo"}, g.lines())
	})
}

type echo struct {
	slog.Handler
	log **slog.Logger
}

func (e echo) Handle(ctx context.Context, r slog.Record) error {
	if r.Message != "echo" {
		(*e.log).Info("echo")
	}
	return e.Handler.Handle(ctx, r)
}
