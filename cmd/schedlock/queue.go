package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/internal/message"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/tasks/queue"
)

const queueHelp = `  queue [count]                 how many tasks each queue has, by state
  queue list QUEUE              its tasks, of all states or one
  queue requeue QUEUE ID...     make tasks pending again that are done or failed
  queue prune QUEUE             delete tasks that are done or failed

  --state S          list: pending, in_progress, done or failed only
  -n N               list: how many of each state (default 20)
  --retries N        requeue: how many retries they get (default 0)
  --older-than 168h  prune: only what ended so long ago (required)

Examples:
  schedlock queue list mail --state failed
  schedlock queue requeue mail order-17 order-18 --retries 3
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

// queueOptions are the flags of queue.
type queueOptions struct {
	state      string
	n, retries int
	olderThan  time.Duration
}

// queueFlags says which part of queue reads a flag.
var queueFlags = map[string]string{"state": "list", "n": "list", "retries": "requeue",
	"older-than": "prune"}

// check returns what package queue would refuse: args are a queue and tasks.
func (o queueOptions) check(args []string) error {
	switch {
	case o.state != "" && !slices.Contains(allStates, o.state):
		return wrong("--state %s is none of pending, in_progress, done and failed%s",
			message.Shown(o.state), didYouMean(o.state, "", allStates))
	case o.n > queue.MaxLimit:
		return wrong("-n %d is above %d", o.n, queue.MaxLimit)
	case o.retries < 0 || o.retries > queue.MaxRetries:
		return wrong("--retries %d is not from 0 to %d", o.retries, queue.MaxRetries)
	}
	what := "the name of the queue"
	for _, name := range args {
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

func queues(t *tool, flags *flag.FlagSet) func(context.Context) (int, error) {
	var o queueOptions
	flags.StringVar(&o.state, "state", "", "")
	flags.IntVar(&o.n, "n", 20, "")
	flags.IntVar(&o.retries, "retries", 0, "")
	flags.DurationVar(&o.olderThan, "older-than", -1, "")
	return func(ctx context.Context) (int, error) {
		what, args := "count", t.args
		if len(args) > 0 {
			what, args = args[0], args[1:]
		}
		switch {
		case what == "count" && len(args) > 0:
			return 0, wrong("queue count takes no arguments")
		case what == "count": // needs no name
		case what != "list" && what != "requeue" && what != "prune":
			return 0, wrong("queue does not take %s: only count, list, requeue and prune",
				t.shown(what))
		case len(args) == 0 || args[0] == "":
			return 0, wrong("queue %s needs the name of a queue", what)
		case what != "requeue" && len(args) > 1:
			return 0, wrong("queue %s does not take %s", what, t.shown(args[1]))
		case what == "requeue" && len(args) < 2:
			return 0, wrong("queue requeue needs the ids of tasks")
		case what == "prune" && o.olderThan < 0:
			return 0, wrong("queue prune needs --older-than, not below 0")
		}
		if err := cmp.Or(checkPart(flags, what, queueFlags), o.check(args)); err != nil {
			return 0, err
		}
		switch what {
		case "count":
			return t.countTasks(ctx)
		case "list":
			return t.listTasks(ctx, args[0], o)
		case "requeue":
			return t.requeue(ctx, args[0], o.retries, args[1:])
		}
		return exitDone, t.prune(ctx, args[0], o.olderThan)
	}
}

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

func (t *tool) listTasks(ctx context.Context, name string, o queueOptions) (int, error) {
	states := queue.States
	if o.state != "" {
		states = []queue.State{queue.State(o.state)}
	}
	return list(ctx, t, func(ctx context.Context, s store) (all []queue.Info, err error) {
		q, err := queue.New(s.Queue())
		for _, state := range states {
			if err == nil {
				var some []queue.Info
				some, err = q.List(ctx, name, state, o.n)
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
