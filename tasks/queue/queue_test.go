package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

var ctx = context.Background()

func newQueues(t testing.TB, opts ...queue.Option) *queue.Queues {
	t.Helper()
	queues, err := queue.New(memory.New().Queue(), opts...)
	require.NoError(t, err)
	return queues
}

func add(t testing.TB, q *queue.Queues, name string, retries int, ids ...string) {
	t.Helper()
	added, err := q.Add(ctx, name, retries, ids...)
	require.NoError(t, err)
	require.Equal(t, ids, added)
}

func capture(t testing.TB, q *queue.Queues, name string, limit int) []*queue.Task {
	t.Helper()
	tasks, err := q.Capture(ctx, name, limit)
	require.NoError(t, err)
	return tasks
}

// second is the error of a call that returns something else, too.
func second[T any](_ T, err error) error { return err }

func TestWhatMakesNoSenseIsRefusedAndNamed(t *testing.T) {
	t.Parallel()
	q := newQueues(t)
	add(t, q, "q", 1, "a")
	task := capture(t, q, "q", 1)[0]
	_, _, noQueue := q.Get(ctx, "", "a")
	const year = 366 * 24 * time.Hour
	withTimeout := func(d time.Duration) error {
		return second(queue.New(memory.New().Queue(), queue.WithTimeout(d)))
	}
	for says, err := range map[string]error{
		"the name of the queue is empty":    second(q.Add(ctx, "", 0, "a")),
		"the id of the task is empty":       second(q.Add(ctx, "q", 0, "a", "")),
		"has 201 bytes, 200 are allowed":    second(q.Add(ctx, "q", 0, strings.Repeat("x", 201))),
		`"\xff" is not UTF-8`:               second(q.Add(ctx, "q", 0, "\xff")),
		`"a\x00b" is not UTF-8, or cont`:    second(q.AddTx(ctx, nil, "a\x00b", 0, "a")),
		"-1 retries are not from 0":         second(q.Add(ctx, "q", -1, "a")),
		"1000001 retries are not":           second(q.Add(ctx, "q", 1_000_001, "a")),
		"the limit 0 is not from 1":         second(q.Capture(ctx, "q", 0)),
		"the limit 10001 is not":            second(q.Capture(ctx, "q", 10_001)),
		"capture: the name of the queue":    second(q.Capture(ctx, "", 1)),
		"the delay -1ns is not from 0":      q.Fail(ctx, task, nil, -1),
		"the delay 8784h0m0.000000001s is":  q.Fail(ctx, task, nil, year+1),
		"add: the delay -1ns is not from":   second(q.AddAfter(ctx, "q", -1, 0, "b")),
		"add: the delay 8784h0m0.00000000":  second(q.AddAfter(ctx, "q", year+1, 0, "b")),
		"add: not a transaction of this st": second(q.AddAfterTx(ctx, nil, "q", 0, 0, "b")),
		`list: the state "open" is none`:    second(q.List(ctx, "q", "open", 1)),
		"list: the limit 0 is not from 1":   second(q.List(ctx, "q", queue.Pending, 0)),
		"list: the limit 10001 is not":      second(q.List(ctx, "q", queue.Pending, 10_001)),
		"get: the name of the queue":        noQueue,
		"the age -1s is negative":           second(q.Prune(ctx, "q", -time.Second, 1)),
		"the batch 0 is below 1":            second(q.Prune(ctx, "q", 0, 0)),
		"prune: the name of the queue":      second(q.Prune(ctx, "", 0, 1)),
		"store is nil":                      second(queue.New(nil)),
		"time-out 9ms is not a whole":       withTimeout(9 * time.Millisecond),
		"time-out 24h0m0.001s is not":       withTimeout(24*time.Hour + time.Millisecond),
		"time-out 1.0000005s is not":        withTimeout(time.Second + 500),
	} {
		require.ErrorContains(t, err, says)
	}
	require.NoError(t, q.Done(ctx, task), "nothing of it was done")
	for what, err := range map[string]error{
		"Add":      second(q.Add(ctx, "q", 1_000_000, "most retries")),
		"AddAfter": second(q.AddAfter(ctx, "q", year, 0, "longest delay")),
		"Capture":  second(q.Capture(ctx, "q", 10_000)),
		"10 ms":    withTimeout(10 * time.Millisecond),
		"24 h":     withTimeout(24 * time.Hour),
		"List":     second(q.List(ctx, "q", queue.Pending, 10_000)),
		"Prune":    second(q.Prune(ctx, "q", 0, 1)),
		"Count":    second(q.Count(ctx)),
	} {
		assert.NoError(t, err, what)
	}
}

func TestAddTellsWhatIsNew(t *testing.T) {
	t.Parallel()
	q := newQueues(t)
	added, err := q.Add(ctx, "q", 1, "b", "a", "b")
	require.NoError(t, err)
	require.Equal(t, []string{"b", "a"}, added, "in their order, and once")
	added, err = q.Add(ctx, "q", 1, "c", "a", "d")
	require.NoError(t, err)
	require.Equal(t, []string{"c", "d"}, added)
	added, err = q.Add(ctx, "q", 1)
	require.NoError(t, err)
	require.Empty(t, added)
	_, err = q.AddTx(ctx, "no transaction", "q", 1, "e")
	require.ErrorIs(t, err, queue.ErrTx)
	_, err = q.AddAfterTx(ctx, "no transaction", "q", 0, 1, "e")
	require.ErrorIs(t, err, queue.ErrTx)
}

// Tasks of several captures and queues in one call, some of them lost.
func TestDoneNamesWhatIsLostAndEndsTheRest(t *testing.T) {
	t.Parallel()
	q := newQueues(t)
	add(t, q, "one", 1, "a", "b", "c")
	add(t, q, "two", 1, "d")
	tasks := append(capture(t, q, "one", 2), capture(t, q, "one", 1)...)
	tasks = append(tasks, capture(t, q, "two", 1)...)
	require.NoError(t, q.Release(ctx, tasks[1], tasks[3]))
	err := q.Done(ctx, tasks...)
	require.ErrorIs(t, err, schedlock.ErrLost)
	var lost *queue.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, []*queue.Task{tasks[1], tasks[3]}, lost.Tasks)
	require.Equal(t, `lost: task "b" of queue "one", "d" of queue "two": the time-out has passed, `+
		`or it was ended before`, err.Error())
	for id, want := range map[string]queue.State{"a": queue.Done, "b": queue.Pending,
		"c": queue.Done} {
		info, found, err := q.Get(ctx, "one", id)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, want, info.State)
	}
	require.NoError(t, q.Done(ctx, tasks[0]), "it may be repeated")
	require.ErrorIs(t, q.Fail(ctx, tasks[0], nil, 0), schedlock.ErrLost)
	require.ErrorIs(t, q.Extend(ctx, tasks[0]), schedlock.ErrLost)
	require.NoError(t, q.Done(ctx), "no task")

	many := &queue.LostError{}
	for i := range 100 {
		many.Tasks = append(many.Tasks,
			&queue.Task{Info: queue.Info{Queue: "q", ID: fmt.Sprint(i)}})
	}
	require.Contains(t, many.Error(), `"9" of queue "q", and 90 more: `)
}

// An operator looks the tasks up by what the error says.
func TestHandlersThatDoNotReturnAreNamedInFull(t *testing.T) {
	t.Parallel()
	stuck := &queue.StuckError{Queue: "mail",
		IDs: []string{"order-2026-000017", "order-2026-000018"}}
	require.Contains(t, stuck.Error(), `tasks "order-2026-000017", "order-2026-000018" are left`)
	for i := range 98 {
		stuck.IDs = append(stuck.IDs, fmt.Sprint(i))
	}
	require.Contains(t, stuck.Error(), `tasks "order-2026-000017", `)
	require.Contains(t, stuck.Error(), `"7", and 90 more are left`)
}

// What is left of a task is counted from before it was asked for, and on the
// safe side.
func TestATaskKnowsWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueues(t, queue.WithTimeout(10*time.Second))
		add(t, q, "q", 9, "a", "b")
		both := capture(t, q, "q", 2)
		a, b := both[0], both[1]
		require.Equal(t, 9*time.Second, a.Left())
		time.Sleep(5 * time.Second)
		require.Equal(t, 4*time.Second, a.Left())
		require.NoError(t, q.Extend(ctx, a))
		require.Equal(t, 9*time.Second, a.Left())
		time.Sleep(4 * time.Second)
		require.Zero(t, b.Left())
		require.NoError(t, q.Done(ctx, b), "late, but not too late")
		require.Zero(t, b.Left())
		time.Sleep(6 * time.Second)
		require.ErrorIs(t, q.Done(ctx, a), schedlock.ErrLost)
		require.Zero(t, a.Left())
		again := capture(t, q, "q", 1)[0]
		require.Equal(t, taskqueue.LostWorker, again.LastError)
		require.Equal(t, 8, again.RetriesLeft)
		require.NoError(t, q.Fail(ctx, again, nil, 0))
		require.Zero(t, again.Left())
		again = capture(t, q, "q", 1)[0]
		require.Positive(t, again.Left())
		require.NoError(t, q.Release(ctx, again))
		require.Zero(t, again.Left())
	})
}

// A store whose answers to Extend come late.
type lateAnswers struct{ taskqueue.Store }

func (s lateAnswers) Extend(ctx context.Context, name string, token driver.Token,
	hold time.Duration, ids []string) ([]string, error) {
	extended, err := s.Store.Extend(ctx, name, token, hold, ids)
	time.Sleep(time.Second)
	return extended, err
}

func TestNothingIsLeftOfATaskThatHasEndedWhileItWasExtended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, err := queue.New(lateAnswers{memory.New().Queue()})
		require.NoError(t, err)
		add(t, q, "q", 0, "a")
		task := capture(t, q, "q", 1)[0]
		extended := make(chan error, 1)
		go func() { extended <- q.Extend(ctx, task) }()
		synctest.Wait()
		require.NoError(t, q.Done(ctx, task))
		require.NoError(t, <-extended)
		require.Zero(t, task.Left())
	})
}

func TestAnErrorsTextIsCutAndCleaned(t *testing.T) {
	t.Parallel()
	q := newQueues(t)
	for text, want := range map[string]string{
		strings.Repeat("ü", 1000): strings.Repeat("ü", 1000),
		strings.Repeat("ü", 1001): strings.Repeat("ü", 1000-len(" . (cut: it had 2002 bytes)")) +
			" … (cut: it had 2002 bytes)",
		"a\x00b\xffc": "a\uFFFDb\uFFFDc",
		// a row of invalid bytes becomes one character
		strings.Repeat("\xff", 4100) + "why": "\uFFFD … (cut: it had 4103 bytes)",
		"":                                   "",
	} {
		id := fmt.Sprintf("%.20q %d", text, len(text))
		add(t, q, "q", 0, id)
		task := capture(t, q, "q", 1)[0]
		require.NoError(t, q.Fail(ctx, task, errors.New(text), 0))
		info, _, err := q.Get(ctx, "q", id)
		require.NoError(t, err)
		require.Equal(t, want, info.LastError)
	}
}

// A store whose database fails after a while.
type failing struct {
	taskqueue.Store
	err error
}

func (f *failing) Done(ctx context.Context, name string, token driver.Token,
	ids []string) ([]string, error) {
	if name == "two" {
		return nil, f.err
	}
	return f.Store.Done(ctx, name, token, ids)
}

func (f *failing) Fail(context.Context, string, driver.Token, string, string,
	time.Duration) (bool, error) {
	return false, f.err
}

func (f *failing) Get(context.Context, string, string) (queue.Info, bool, error) {
	return queue.Info{}, false, f.err
}

func (f *failing) List(context.Context, string, queue.State, int) ([]queue.Info, error) {
	return nil, f.err
}

func (f *failing) Count(context.Context) ([]queue.Count, error) { return nil, f.err }

func (f *failing) Prune(context.Context, string, time.Duration, int) (int64, error) {
	return 0, f.err
}

// A failure of the database is not a loss, and hides none.
func TestAFailureIsToldApartFromALoss(t *testing.T) {
	t.Parallel()
	down := errors.New("the database is down")
	q, err := queue.New(&failing{memory.New().Queue(), down})
	require.NoError(t, err)
	add(t, q, "one", 1, "a")
	add(t, q, "two", 1, "b")
	tasks := append(capture(t, q, "one", 1), capture(t, q, "two", 1)...)
	require.NoError(t, q.Release(ctx, tasks[0]))
	err = q.Done(ctx, tasks...)
	var lost *queue.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, tasks[:1], lost.Tasks)
	require.ErrorIs(t, err, down)
	require.Positive(t, tasks[1].Left(), "it may be tried again")
	err = q.Done(ctx, tasks[1])
	require.ErrorIs(t, err, down)
	assert.NotErrorIs(t, err, schedlock.ErrLost)
	err = q.Fail(ctx, tasks[1], nil, 0)
	require.ErrorIs(t, err, down)
	assert.NotErrorIs(t, err, schedlock.ErrLost)
	require.Positive(t, tasks[1].Left(), "it may be tried again")

	_, _, noAnswer := q.Get(ctx, "two", "b")
	require.ErrorIs(t, noAnswer, down, "nor is it an answer")
	require.ErrorIs(t, second(q.List(ctx, "two", queue.Pending, 1)), down)
	require.ErrorIs(t, second(q.Count(ctx)), down)
	require.ErrorIs(t, second(q.Prune(ctx, "two", 0, 1)), down)
}
