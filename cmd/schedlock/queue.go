package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/message"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/tasks/queue"
)

const queueHelp = `How many tasks each queue has, by state.

Examples:
  schedlock queue
  schedlock queue list mail --state failed
`

const listHelp = `The tasks of a queue, of all states or one.

Examples:
  schedlock queue list mail --state failed
`

const requeueHelp = `Makes tasks pending again that are done or failed.

Examples:
  schedlock queue requeue mail order-17 order-18 --retries 3
`

const pruneHelp = `Deletes tasks that are done or failed.

Examples:
  schedlock queue prune mail --older-than 720h
`

type countJSON struct {
	Queue      string `json:"queue"`
	Pending    int64  `json:"pending"`
	Delayed    int64  `json:"delayed"`
	InProgress int64  `json:"in_progress"`
	Done       int64  `json:"done"`
	Failed     int64  `json:"failed"`
}

type taskJSON struct {
	Queue       string    `json:"queue"`
	ID          string    `json:"id"`
	State       string    `json:"state"`
	Attempts    int       `json:"attempts"`
	RetriesLeft int       `json:"retries_left"`
	VisibleAt   timestamp `json:"visible_at"`
	Error       string    `json:"error"`
	AddedAt     timestamp `json:"added_at"`
	UpdatedAt   timestamp `json:"updated_at"`
}

func newTaskJSON(i queue.Info) taskJSON {
	return taskJSON{i.Queue, i.ID, string(i.State), i.Attempts, i.RetriesLeft,
		timestamp(i.VisibleAt), i.LastError,
		timestamp(i.AddedAt), timestamp(i.UpdatedAt)}
}

// checkTasks returns what package queue would refuse of the arguments: a queue and tasks.
func (t *tool) checkTasks() error {
	what := "the name of the queue"
	if len(t.args) == 0 {
		return wrong("%s is missing", what)
	}
	for _, name := range t.args {
		if name == "" {
			return wrong("%s is empty", what)
		}
		if err := names.Check(what, name); err != nil {
			return wrong("%v", err)
		}
		what = "the id of the task"
	}
	return nil
}

var allStates = convert(queue.States, func(s queue.State) string { return string(s) })

func tasksOf(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	var state string
	choice(flags, &state, "state", "", "tasks of this state only", allStates...)
	n := limitFlag(flags, "how many of each state")
	return func(ctx context.Context) (int, error) {
		switch {
		case state != "" && !slices.Contains(allStates, state):
			return 0, wrong("--state %s is none of pending, in_progress, done and failed%s",
				message.Shown(state), didYouMean(state, "", allStates))
		case *n > queue.MaxLimit:
			return 0, wrong("-n %d is above %d", *n, queue.MaxLimit)
		}
		if err := t.checkTasks(); err != nil {
			return 0, err
		}
		return t.listTasks(ctx, t.args[0], state, *n)
	}
}

func requeue(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	retries := flags.Int("retries", 0, "how many retries they get")
	return func(ctx context.Context) (int, error) {
		if err := t.checkTasks(); err != nil {
			return 0, err
		}
		switch {
		case len(t.args) == 1:
			return 0, wrong("the ids of tasks are missing")
		case *retries < 0 || *retries > queue.MaxRetries:
			return 0, wrong("--retries %d is not from 0 to %d", *retries, queue.MaxRetries)
		}
		return t.requeue(ctx, t.args[0], *retries, t.args[1:])
	}
}

func prune(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	olderThan := flags.Duration("older-than", 0, "only what ended so long ago (required)")
	return func(ctx context.Context) (int, error) {
		if err := t.checkTasks(); err != nil {
			return 0, err
		}
		if !flags.Changed("older-than") || *olderThan < 0 {
			return 0, wrong("queue prune needs --older-than, not below 0")
		}
		return exitDone, t.prune(ctx, t.args[0], *olderThan)
	}
}

func queues(t *tool, _ *pflag.FlagSet) func(context.Context) (int, error) { return t.countTasks }

func (t *tool) countTasks(ctx context.Context) (int, error) {
	return list(ctx, t, func(ctx context.Context, s store) ([]queue.Count, error) {
		q, err := queue.New(s.Queue())
		if err != nil {
			return nil, err
		}
		return q.Count(ctx)
	}, func(c queue.Count) countJSON { return countJSON(c) }, "there are no tasks", t.showCounts)
}

func (t *tool) showCounts(counts []queue.Count) {
	b := newTable(cutting("queue"), fixed("pending"), fixed("delayed"), fixed("in progress"),
		fixed("done"), fixed("failed"))
	for _, c := range counts {
		paint := colour("")
		if c.Failed > 0 {
			paint = yellow
		}
		b.add(paint, c.Queue, c.Pending, c.Delayed, c.InProgress, c.Done, c.Failed)
	}
	t.table(b)
}

func (t *tool) listTasks(ctx context.Context, name, state string, n int) (int, error) {
	states := queue.States
	if state != "" {
		states = []queue.State{queue.State(state)}
	}
	return list(ctx, t, func(ctx context.Context, s store) (all []queue.Info, err error) {
		q, err := queue.New(s.Queue())
		for _, state := range states {
			if err == nil {
				var some []queue.Info
				some, err = q.List(ctx, name, state, n)
				all = append(all, some...)
			}
		}
		return all, err
	}, newTaskJSON, "there are no such tasks", t.showTasks)
}

func (t *tool) showTasks(list []queue.Info) {
	b := newTable(cutting("id"), fixed("state"), wideOnly("attempts"), wideOnly("retries left"),
		wideOnly("visible at"), wideOnly("added"), fixed("updated"), cutting("error"))
	for _, i := range list {
		paint := colour("")
		if i.State == queue.Failed {
			paint = red
		}
		b.add(paint, i.ID, i.State, i.Attempts, i.RetriesLeft,
			t.cell(i.VisibleAt), t.cell(i.AddedAt), t.cell(i.UpdatedAt), i.LastError)
	}
	t.table(b)
}

type requeuedJSON struct {
	Queue    string   `json:"queue"`
	Requeued []string `json:"requeued"`
}

func (t *tool) requeue(ctx context.Context, name string, retries int, ids []string) (int, error) {
	done := requeuedJSON{Queue: name, Requeued: []string{}}
	err := t.actOnce(ctx, "", func(ctx context.Context, s store) error {
		q, err := queue.New(s.Queue())
		if err != nil {
			return err
		}
		requeued, err := q.Requeue(ctx, name, retries, ids...)
		done.Requeued = append(done.Requeued, requeued...)
		return err
	})
	if err != nil {
		return 0, err
	}
	t.say(done, "%d of %d tasks of queue %q are pending again", len(done.Requeued), len(ids), name)
	if len(done.Requeued) == 0 {
		return exitNothing, nil
	}
	return exitDone, nil
}

// pruneBatch is how many rows one transaction deletes.
const pruneBatch = 1000

type prunedJSON struct {
	Queue   string `json:"queue"`
	Deleted int64  `json:"deleted"`
}

func (t *tool) prune(ctx context.Context, name string, olderThan time.Duration) error {
	done := prunedJSON{Queue: name}
	err := t.act(ctx, func(ctx context.Context, s store) error {
		q, err := queue.New(s.Queue())
		for deleted := int64(pruneBatch); err == nil && deleted == pruneBatch; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err = t.bounded(ctx, func(ctx context.Context) (err error) {
				deleted, err = q.Prune(ctx, name, olderThan, pruneBatch)
				return err
			})
			done.Deleted += deleted
			time.Sleep(10 * time.Millisecond) // others write, too
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w (%d tasks were deleted before)", err, done.Deleted)
	}
	t.say(done, "%d tasks of queue %q are deleted", done.Deleted, name)
	return nil
}
