package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

// seen is what OnEvent was told.
type seen struct {
	mu     sync.Mutex
	events []queue.Event
}

func (s *seen) tell(e queue.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *seen) of(kind queue.EventKind) (events []queue.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == kind {
			events = append(events, e)
		}
	}
	return events
}

// A bench is a call of Work in a bubble.
type bench struct {
	*testing.T
	seen
	q    *queue.Queues
	stop context.CancelFunc
	out  chan error
}

func work(t *testing.T, q *queue.Queues, handle queue.Handler, o queue.WorkOptions) *bench {
	b := &bench{T: t, q: q, out: make(chan error, 1)}
	if o.OnEvent == nil {
		o.OnEvent = b.tell
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	t.Cleanup(b.stop)
	go func() { b.out <- q.Work(ctx, "q", handle, o) }()
	return b
}

func (b *bench) get(id string) queue.Info {
	b.Helper()
	info, found, err := b.q.Get(ctx, "q", id)
	require.NoError(b, err)
	require.True(b, found)
	return info
}

// end stops the workers, and waits for them.
func (b *bench) end() {
	b.Helper()
	b.stop()
	require.NoError(b, <-b.out)
}

// nothing is a handler that has no work.
func nothing(context.Context, *queue.Task) error { return nil }

func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

func TestWorkDoesEachTaskOnceAndEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		ids := []string{"a", "b", "c", "d", "e", "f", "g"}
		add(t, q, "q", 0, ids...)
		var (
			mu          sync.Mutex
			did         []string
			now, atOnce int
		)
		b := work(t, q, func(_ context.Context, task *queue.Task) error {
			mu.Lock()
			did, now = append(did, task.ID), now+1
			atOnce = max(atOnce, now)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}, queue.WorkOptions{Workers: 3})
		time.Sleep(10 * time.Second)
		add(t, q, "q", 0, "later")
		time.Sleep(5 * time.Second)
		b.end()
		slices.Sort(did)
		require.Equal(t, append(ids, "later"), did)
		require.Equal(t, 3, atOnce)
		for _, id := range did {
			require.Equal(t, queue.Done, b.get(id).State)
		}
		require.Len(t, b.of(queue.EventDone), 8)
		require.Len(t, b.of(queue.EventStarted), 8)
		require.Equal(t, time.Second, b.of(queue.EventDone)[0].Took)
		require.Equal(t, "q", b.of(queue.EventDone)[0].Queue)
	})
}

// counting counts captures.
type counting struct {
	taskqueue.Store
	captures atomic.Int64
	err      atomic.Pointer[error]
	captured func()                // is called once tasks were captured, before the answer
	fault    atomic.Pointer[fault] // of Extend and Done; nil: none
}

// A fault answers in the place of the database.
type fault func(context.Context) ([]string, error)

func (c *counting) set(f fault) { c.fault.Store(&f) }

func (c *counting) Capture(ctx context.Context, name string, token driver.Token, hold time.Duration,
	limit int) ([]queue.Info, error) {
	c.captures.Add(1)
	if err := c.err.Load(); err != nil {
		return nil, *err
	}
	tasks, err := c.Store.Capture(ctx, name, token, hold, limit)
	if c.captured != nil && len(tasks) > 0 {
		c.captured()
	}
	return tasks, err
}

func (c *counting) Extend(ctx context.Context, name string, token driver.Token, hold time.Duration,
	ids []string) ([]string, error) {
	if f := c.fault.Load(); f != nil && *f != nil {
		return (*f)(ctx)
	}
	return c.Store.Extend(ctx, name, token, hold, ids)
}

func (c *counting) Done(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	if f := c.fault.Load(); f != nil && *f != nil {
		return (*f)(ctx)
	}
	return c.Store.Done(ctx, name, token, ids)
}

func counted(t *testing.T, opts ...queue.Option) (*counting, *queue.Queues) {
	c := &counting{Store: memory.New().Queue()}
	q, err := queue.New(c, opts...)
	require.NoError(t, err)
	return c, q
}

func TestWorkBacksOffWhereThereIsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, q := counted(t)
		var log logtest.Log
		b := work(t, q, nothing, queue.WorkOptions{MaxPause: 4 * time.Second, Log: log.Logger()})
		time.Sleep(100 * time.Second)
		n := c.captures.Load()
		require.Greater(t, n, int64(15))
		require.Less(t, n, int64(60), "50 ms, 100 ms … 4 s, and then every 4 s")
		refused := errors.New("refused")
		c.err.Store(&refused)
		time.Sleep(1000 * time.Second)
		require.Less(t, c.captures.Load()-n, int64(100),
			"captures of a database that does not answer")
		require.NotEmpty(t, b.of(queue.EventStoreErr))
		require.ErrorIs(t, b.of(queue.EventStoreErr)[0].Err, refused)
		c.err.Store(nil)
		add(t, q, "q", 0, "a")
		time.Sleep(time.Minute)
		require.Equal(t, queue.Done, b.get("a").State, "after the outage")
		require.Equal(t, 1, log.Count("no task can be captured"))
		require.Equal(t, 1, log.Count("tasks can be captured again"))
		b.end()
	})
}

// pausing knows the longest time between two captures.
type pausing struct {
	taskqueue.Store
	last    time.Time
	longest time.Duration
}

func (p *pausing) Capture(ctx context.Context, name string, token driver.Token, hold time.Duration,
	limit int) ([]queue.Info, error) {
	if !p.last.IsZero() {
		p.longest = max(p.longest, time.Since(p.last))
	}
	p.last = time.Now()
	return p.Store.Capture(ctx, name, token, hold, limit)
}

func TestWorkPausesForMaxPauseAtMost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := &pausing{Store: memory.New().Queue()}
		q, err := queue.New(p)
		require.NoError(t, err)
		b := work(t, q, nothing, queue.WorkOptions{MaxPause: 4 * time.Second})
		time.Sleep(10 * time.Minute)
		b.end()
		require.LessOrEqual(t, p.longest, 4*time.Second)
		require.Greater(t, p.longest, 2*time.Second)
	})
}

func TestAPanicIsAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 0, "panic", "goexit", "broken error", "good")
		var log logtest.Log
		b := work(t, q, func(_ context.Context, task *queue.Task) error {
			switch task.ID {
			case "panic":
				panic("at the disco")
			case "goexit":
				runtime.Goexit()
			case "broken error":
				return (*brokenError)(nil)
			}
			return nil
		}, queue.WorkOptions{Log: log.Logger()})
		time.Sleep(10 * time.Second)
		b.end()
		require.Equal(t, 3, log.Count("a handler has panicked"))
		require.Equal(t, 3, log.Count("a task has failed"))
		require.Equal(t, queue.Failed, b.get("panic").State)
		require.Equal(t, "panic: at the disco", b.get("panic").LastError)
		require.Equal(t, queue.Failed, b.get("goexit").State)
		require.Contains(t, b.get("goexit").LastError, "runtime.Goexit")
		require.Equal(t, queue.Done, b.get("good").State)
		require.Contains(t, b.get("broken error").LastError, "nil pointer")
		failed := b.of(queue.EventFailed)
		require.Len(t, failed, 3)
		require.True(t, failed[0].Panic && failed[1].Panic && failed[2].Panic)
	})
}

// A brokenError is one whose methods panic: a nil pointer that was returned as an error.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

func TestAFailureIsTriedAgainAfterADelayThatDoubles(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 3, "a")
		var at []time.Time
		b := work(t, q, func(context.Context, *queue.Task) error {
			at = append(at, time.Now())
			return errors.New("why")
		}, queue.WorkOptions{RetryDelay: 10 * time.Second, MaxRetryDelay: 20 * time.Second,
			MaxPause: 100 * time.Millisecond})
		time.Sleep(5 * time.Minute)
		b.end()
		require.Len(t, at, 4)
		for i, want := range []time.Duration{10 * time.Second, 20 * time.Second, 20 * time.Second} {
			require.InDelta(t, want, at[i+1].Sub(at[i]), float64(time.Second))
		}
		require.Equal(t, queue.Failed, b.get("a").State)
		require.Equal(t, "why", b.get("a").LastError)
	})
}

// A task that has failed is told from one that has not by its error.
func TestAnErrorWithoutATextIsAFailureToo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 9, "a")
		b := work(t, q, func(context.Context, *queue.Task) error { return &brokenError{} },
			queue.WorkOptions{RetryDelay: time.Hour, MaxRetryDelay: 9 * time.Hour})
		time.Sleep(time.Hour + time.Minute)
		failed := b.get("a")
		require.Equal(t, 2, failed.Attempts)
		require.Equal(t, 2*time.Hour, failed.VisibleAt.Sub(failed.UpdatedAt))
		require.Equal(t, "an error without a text", failed.LastError)
		b.end()
	})
}

// A deployment may interrupt a long task many times before it fails once.
func TestAReleaseDoesNotDelayARetry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 1, "a")
		for range 10 {
			require.NoError(t, q.Release(ctx, capture(t, q, "q", 1)...))
		}
		b := work(t, q, func(context.Context, *queue.Task) error {
			return errors.New("why")
		}, queue.WorkOptions{})
		synctest.Wait()
		failed := b.get("a")
		require.Equal(t, time.Second, failed.VisibleAt.Sub(failed.UpdatedAt))
		b.end()
	})
}

// A fault that hits every task must not use up all their retries at once.
func TestWorkPausesAfterFailuresInARow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		for i := range 100 {
			add(t, q, "q", 0, fmt.Sprintf("%d", i))
		}
		var calls atomic.Int64
		var good atomic.Bool
		var did []time.Time
		b := work(t, q, func(context.Context, *queue.Task) error {
			calls.Add(1)
			if good.Load() {
				did = append(did, time.Now())
				return nil
			}
			return errors.New("the mail server is down")
		}, queue.WorkOptions{})
		time.Sleep(2 * time.Minute)
		require.Less(t, calls.Load(), int64(20))
		good.Store(true)
		time.Sleep(2 * time.Minute)
		require.EqualValues(t, 100, calls.Load())
		b.end()
		require.Equal(t, did[0], did[len(did)-1], "no pause while there are tasks")
	})
}

func TestATaskIsExtendedWhileItsHandlerRuns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t, queue.WithTimeout(3*time.Second))
		add(t, q, "q", 1, "a")
		var calls atomic.Int64
		handle := func(ctx context.Context, _ *queue.Task) error {
			calls.Add(1)
			sleepOrEnd(ctx, time.Minute)
			return context.Cause(ctx)
		}
		a, b := work(t, q, handle, queue.WorkOptions{}), work(t, q, handle, queue.WorkOptions{})
		time.Sleep(2 * time.Minute)
		a.end()
		b.end()
		require.EqualValues(t, 1, calls.Load(), "another worker has taken it meanwhile")
		require.Equal(t, queue.Done, a.get("a").State)
	})
}

func TestAnAttemptHasALimit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 0, "heeds", "ignores")
		hang := make(chan struct{})
		b := work(t, q, func(ctx context.Context, task *queue.Task) error {
			if task.ID == "ignores" {
				<-hang
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}, queue.WorkOptions{Workers: 2, Limit: time.Minute})
		time.Sleep(5 * time.Minute)
		require.Equal(t, queue.ErrLimit.Error(), b.get("heeds").LastError)
		require.Equal(t, queue.Failed, b.get("ignores").State, "the other worker has found it lost")
		require.Len(t, b.of(queue.EventStuck), 1)
		close(hang)
		b.end()
	})
}

// An observer that hangs or panics holds up nobody.
func TestAnObserverIsBounded(t *testing.T) {
	for name, observe := range map[string]func(queue.Event){
		"hangs":  func(queue.Event) { time.Sleep(24 * time.Hour) },
		"panics": func(queue.Event) { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueues(t)
				add(t, q, "q", 0, "a", "b", "c")
				var log bytes.Buffer
				b := work(t, q, nothing, queue.WorkOptions{OnEvent: observe,
					Log: slog.New(slog.NewTextHandler(&log, nil))})
				time.Sleep(10 * time.Second)
				assert.Equal(t, queue.Done, b.get("c").State)
				b.end()
				time.Sleep(1000 * time.Hour) // by then all calls have returned
				assert.Equal(t, name == "panics",
					strings.Contains(log.String(), `msg="OnEvent has panicked"`))
			})
		})
	}
}

func TestWorkSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	q := newQueues(t)
	err := q.Work(ctx, "", nil, queue.WorkOptions{Workers: 1001, MaxPause: -1,
		RetryDelay: time.Hour, MaxRetryDelay: time.Second, Limit: -1, Drain: -1})
	for _, says := range []string{"the name of the queue is empty", "the Handler is nil",
		"Workers 1001 is not from 1 to 1000",
		"MaxPause -1ns is not", "MaxRetryDelay 1s is not from 1h", "Limit -1ns is not",
		"Drain -1ns is not"} {
		require.ErrorContains(t, err, says)
	}
	err = q.Work(ctx, "q", nothing,
		queue.WorkOptions{Workers: -1, RetryDelay: 367 * 24 * time.Hour})
	require.ErrorContains(t, err, "Workers -1 is not from 1")
	require.ErrorContains(t, err, "RetryDelay 8808h0m0s is not from")
}
