package queue_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

// An agent is one store, with what its workers have captured: the nth capture
// of each store is of the same tasks.
type agent struct {
	name   string
	queues *queue.Queues
	held   []*queue.Task // all that were ever captured
}

// do does one step and tells what came of it, without times.
func (a *agent) do(name string, s modelStep) string {
	var task *queue.Task
	if len(a.held) > 0 {
		task = a.held[s.n%len(a.held)]
	}
	word := func(err error) string {
		for _, known := range []error{queue.ErrEmpty, queue.ErrAllHeld, queue.ErrExhausted,
			schedlock.ErrLost} {
			if errors.Is(err, known) {
				return known.Error()
			}
		}
		return fmt.Sprint(err)
	}
	switch {
	case s.what == "add":
		added, err := a.queues.Add(ctx, name, s.n%3, fmt.Sprint(s.n), fmt.Sprint(s.n/2))
		return fmt.Sprint(added, word(err))
	case s.what == "capture":
		tasks, err := a.queues.Capture(ctx, name, 1+s.n%4)
		a.held = append(a.held, tasks...)
		text := word(err)
		for _, t := range tasks {
			text += fmt.Sprintf(" %s %s %d %d %q", t.ID, t.State, t.Attempts, t.RetriesLeft,
				t.LastError)
		}
		return text
	case task == nil:
		return ""
	case s.what == "done":
		return word(a.queues.Done(ctx, task))
	case s.what == "done, with the next":
		return word(a.queues.Done(ctx, task, a.held[(s.n+1)%len(a.held)]))
	case s.what == "release":
		return word(a.queues.Release(ctx, task))
	case s.what == "extend":
		return word(a.queues.Extend(ctx, task))
	case s.what == "fail":
		return word(a.queues.Fail(ctx, task, fmt.Errorf("error %d", s.n), 0))
	case s.what == "fail for an hour":
		return word(a.queues.Fail(ctx, task, nil, time.Hour))
	}
	info, found, err := a.queues.Get(ctx, name, task.ID)
	return fmt.Sprint(found, err, info.State, info.Attempts, info.RetriesLeft, info.LastError,
		info.VisibleAt.IsZero())
}

type modelStep struct {
	what string
	n    int
}

// Whatever is called in whatever order, the stores on SQLite and PostgreSQL
// answer as the one in memory does, as long as no time passes.
func TestTheStoresAgree(t *testing.T) {
	t.Parallel()
	agents := []*agent{{name: "memory"}, {name: "SQLite"}, {name: "PostgreSQL"}}
	for i, url := range []string{"", "file:" + filepath.Join(pgtest.TempDir(t), "app.db"),
		pgtest.Shared(t).Database(t)} {
		q := memory.New().Queue()
		if url != "" {
			store, opened, err := openStore(ctx, url)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			require.NoError(t, migrate(store))
			q = opened
		}
		queues, err := queue.New(q, queue.WithTimeout(time.Hour))
		require.NoError(t, err)
		agents[i].queues = queues
	}
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) modelStep {
		return modelStep{
			what: rapid.SampledFrom([]string{"add", "capture", "capture", "done",
				"done, with the next", "release", "extend", "fail", "fail", "fail for an hour",
				"get"}).Draw(rt, "what"),
			n: rapid.IntRange(0, 30).Draw(rt, "n"),
		}
	}), 20, 40)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		name := fmt.Sprint("queue ", runs) // a new one
		for _, a := range agents {
			a.held = nil
		}
		for i, s := range steps.Draw(rt, "steps") {
			want := agents[0].do(name, s)
			for _, a := range agents[1:] {
				if got := a.do(name, s); got != want {
					rt.Fatalf("step %d, %s %d: %s says %q, memory %q", i, s.what, s.n, a.name,
						got, want)
				}
			}
		}
	})
}
