package queue_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

func sleepOrEnd(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// The handler's context ends before another worker can have the task, also if
// the statement that would extend it hangs.
func TestALostTaskEndsItsHandlersContextFirst(t *testing.T) {
	hangs := func(ctx context.Context) ([]string, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, tc := range map[string]struct {
		fault           fault
		atLeast, atMost time.Duration
		ignores         time.Duration // for so long the handler goes on all the same
		says, stuck     int           // that the database, or the handler, does not answer
	}{
		"extend hangs": {fault: hangs, atLeast: 8 * time.Second,
			atMost: 9*time.Second + 100*time.Millisecond, says: 1},
		"extend hangs, and so does the handler": {fault: hangs, atLeast: 8 * time.Second,
			atMost: 9*time.Second + 100*time.Millisecond, ignores: 15 * time.Second,
			says: 1, stuck: 1},
		"the database says so": {fault: func(context.Context) ([]string, error) { return nil, nil },
			atLeast: 10 * time.Second / 3, atMost: 10 * time.Second / 3},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c, q := counted(t, queue.WithTimeout(10*time.Second))
				add(t, q, "q", 1, "a")
				c.set(tc.fault)
				began := time.Now()
				var ended time.Duration
				var cause error
				var log logtest.Log
				b := work(t, q, func(ctx context.Context, task *queue.Task) error {
					if task.Attempts > 1 {
						return nil
					}
					<-ctx.Done()
					ended, cause = time.Since(began), context.Cause(ctx)
					c.set(nil)
					time.Sleep(tc.ignores)
					return ctx.Err()
				}, queue.WorkOptions{Log: log.Logger()})
				time.Sleep(time.Minute)
				b.end()
				require.GreaterOrEqual(t, ended, tc.atLeast)
				require.LessOrEqual(t, ended, tc.atMost)
				require.ErrorIs(t, cause, schedlock.ErrLost)
				require.Len(t, b.of(queue.EventLost), 1)
				require.Equal(t, 1, log.Count("a task was lost before its end was recorded"))
				require.Len(t, b.of(queue.EventStoreErr), tc.says)
				require.Len(t, b.of(queue.EventStuck), tc.stuck)
				require.Equal(t, tc.stuck, log.Count("a handler does not return"))
				require.Equal(t, queue.Done, b.get("a").State, "the next attempt")
				require.Zero(t, b.get("a").RetriesLeft)
			})
		})
	}
}

// Neither an attempt is lost by it nor the end of one, and each outage is one line.
func TestATaskOutlastsAnOutageThatIsShorterThanItsTimeOut(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, q := counted(t, queue.WithTimeout(30*time.Second))
		add(t, q, "q", 0, "a")
		outage := func() {
			c.set(func(context.Context) ([]string, error) { return nil, errors.New("refused") })
			time.AfterFunc(24*time.Second, func() { c.set(nil) })
		}
		var log logtest.Log
		b := work(t, q, func(ctx context.Context, _ *queue.Task) error {
			outage()
			sleepOrEnd(ctx, 45*time.Second+time.Millisecond) // it was extended just before
			outage()
			sleepOrEnd(ctx, 45*time.Second)
			outage()
			return context.Cause(ctx)
		}, queue.WorkOptions{Log: log.Logger(), Drain: 1})
		time.Sleep(91 * time.Second)
		b.end() // it waits for the end of the task
		require.Equal(t, queue.Done, b.get("a").State)
		require.Equal(t, 1, b.get("a").Attempts)
		require.Len(t, b.of(queue.EventStoreErr), 3)
		require.Equal(t, 2, log.Count("a task cannot be extended"))
		require.Equal(t, 1, log.Count("the end of a task cannot be recorded"))
	})
}

func TestAStopDrainsThenInterruptsAndReleases(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 0, "short", "long", "waits")
		began := time.Now()
		var cause error
		b := work(t, q, func(ctx context.Context, task *queue.Task) error {
			if task.ID == "short" {
				time.Sleep(20 * time.Second)
				return ctx.Err()
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}, queue.WorkOptions{Workers: 2, Drain: 30 * time.Second})
		time.Sleep(5 * time.Second)
		b.end()
		require.InDelta(t, 35*time.Second, time.Since(began), float64(2*time.Second))
		require.ErrorIs(t, cause, queue.ErrDrained)
		require.Equal(t, queue.Done, b.get("short").State)
		require.Equal(t, queue.Pending, b.get("long").State,
			"an attempt that a stop interrupts costs no retry")
		require.Equal(t, queue.Pending, b.get("waits").State,
			"nothing is captured during the drain")
		require.Zero(t, b.get("waits").Attempts)
		require.Len(t, b.of(queue.EventReleased), 1)
	})
}

// Its work goes on: so its task must not be released.
func TestAHandlerThatIgnoresItsContextIsLeftToTheTimeOut(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 1, "good", "a")
		began, hang := time.Now(), make(chan struct{})
		var log logtest.Log
		b := work(t, q, func(_ context.Context, task *queue.Task) error {
			if task.ID == "a" {
				<-hang
			}
			return nil
		}, queue.WorkOptions{Drain: 1, Log: log.Logger()})
		time.Sleep(time.Second)
		b.stop()
		var stuck *queue.StuckError
		require.ErrorAs(t, <-b.out, &stuck)
		require.Equal(t, []string{"a"}, stuck.IDs)
		require.LessOrEqual(t, time.Since(began), 13*time.Second)
		require.Len(t, b.of(queue.EventStuck), 1)
		require.Equal(t, 1, log.Count("the contexts of the running handlers end"))
		require.Equal(t, 1, log.Count("handlers do not return"))
		require.Equal(t, queue.InProgress, b.get("a").State)
		time.Sleep(2 * time.Minute)
		require.Len(t, capture(t, q, "q", 1), 1, "after the time-out another worker has it")
		close(hang)
		synctest.Wait()
		require.Equal(t, queue.InProgress, b.get("a").State,
			"the late end of the first worker changes nothing")
	})
}

func TestAHandlerMayEndItsTaskItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t)
		add(t, q, "q", 5, "a")
		b := work(t, q, func(ctx context.Context, task *queue.Task) error {
			require.NoError(t, q.Fail(ctx, task, errors.New("not today"), 24*time.Hour))
			sleepOrEnd(ctx, 2*time.Minute) // with something else
			return context.Cause(ctx)
		}, queue.WorkOptions{})
		time.Sleep(3 * time.Minute)
		b.end()
		require.NoError(t, b.of(queue.EventEnded)[0].Err)
		require.Empty(t, b.of(queue.EventStoreErr))
		require.Equal(t, "not today", b.get("a").LastError)
		require.Equal(t, 1, b.get("a").Attempts)
		require.Len(t, b.of(queue.EventEnded), 1)
	})
}

// The transaction is rolled back then, and the handler may go on with something else.
func TestATaskIsExtendedAfterADoneTxThatHasFailed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueues(t, queue.WithTimeout(3*time.Second))
		add(t, q, "q", 1, "a")
		b := work(t, q, func(ctx context.Context, task *queue.Task) error {
			require.ErrorIs(t, q.DoneTx(ctx, "no transaction", task), taskqueue.ErrTx)
			sleepOrEnd(ctx, time.Minute)
			return context.Cause(ctx)
		}, queue.WorkOptions{})
		time.Sleep(2 * time.Minute)
		b.end()
		require.Equal(t, queue.Done, b.get("a").State)
		require.Equal(t, 1, b.get("a").Attempts)
	})
}

// Its transaction has kept the others out until then.
func TestACommitAfterTheTimeOutHasDoneTheTask(t *testing.T) {
	for name, commits := range map[string]bool{"committed": true, "rolled back": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				store := memory.New()
				q, err := queue.New(store.Queue(), queue.WithTimeout(3*time.Second))
				require.NoError(t, err)
				add(t, q, "q", 0, "a")
				b := work(t, q, func(_ context.Context, task *queue.Task) error {
					tx := store.Begin()
					require.NoError(t, q.DoneTx(ctx, tx, task))
					time.Sleep(10 * time.Second)
					if commits {
						return tx.Commit()
					}
					return tx.Rollback()
				}, queue.WorkOptions{})
				time.Sleep(15 * time.Second)
				b.end()
				require.Empty(t, b.of(queue.EventStoreErr))
				if commits {
					require.Len(t, b.of(queue.EventDone), 1)
					require.Empty(t, b.of(queue.EventLost))
					require.Equal(t, queue.Done, b.get("a").State)
				} else {
					require.Empty(t, b.of(queue.EventDone))
					require.NotEmpty(t, b.of(queue.EventLost))
				}
			})
		})
	}
}

// A slow database answers when the time-out of what was captured has passed.
func TestAHandlerIsNotCalledForATaskThatIsLostAlready(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, q := counted(t, queue.WithTimeout(3*time.Second))
		add(t, q, "q", 1, "a")
		c.captured = func() {
			if c.captures.Load() == 1 {
				time.Sleep(4 * time.Second)
			}
		}
		var calls atomic.Int64
		b := work(t, q, func(context.Context, *queue.Task) error {
			calls.Add(1)
			return nil
		}, queue.WorkOptions{})
		time.Sleep(time.Minute)
		b.end()
		require.EqualValues(t, 1, calls.Load())
		require.Len(t, b.of(queue.EventLost), 1)
		require.Len(t, b.of(queue.EventStarted), 1)
		require.Equal(t, queue.Done, b.get("a").State)
	})
}

// A lateEnd ends right after it was asked whether it has.
type lateEnd struct {
	context.Context
	armed  atomic.Bool
	cancel context.CancelFunc
}

func (c *lateEnd) Err() error {
	if c.armed.CompareAndSwap(true, false) {
		defer c.cancel()
	}
	return c.Context.Err()
}

func TestAStopAtAnyMomentLeavesNoTaskCaptured(t *testing.T) {
	for name, end := range map[string]func(*lateEnd){
		"between two questions": func(c *lateEnd) { c.armed.Store(true) },
		"during a capture":      func(c *lateEnd) { c.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c, q := counted(t)
				add(t, q, "q", 0, "a")
				stopping := &lateEnd{}
				stopping.Context, stopping.cancel = context.WithCancel(ctx)
				c.captured = func() { end(stopping) }
				var log logtest.Log
				require.NoError(t, q.Work(stopping, "q", nothing,
					queue.WorkOptions{Log: log.Logger()}))
				info, _, err := q.Get(ctx, "q", "a")
				require.NoError(t, err)
				require.NotEqual(t, queue.InProgress, info.State)
				require.Empty(t, log.String())
			})
		})
	}
}
