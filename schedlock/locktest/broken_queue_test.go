package locktest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Stores of queues that break a rule: each rule at least once.
var brokenQueues = []broken{
	{1, "it adds nothing", "is not there", func(c *addCall) { c.out = c.ids }},
	{1, "it forgets the retries", "", before(func(c *addCall) { c.retries = 0 })},
	{1, "it finds the tasks of all queues", "Get of", before(func(c *getCall) { c.name = "q" })},
	{2, "it says that all were added", "", after(func(c *addCall) { c.out = c.ids })},
	{2, "what has ended begins anew", "",
		before(func(c *addCall) { _, _ = c.s.Prune(c.ctx, c.name, 0, 10) })},
	{3, "it looks, and then adds", "", func(c *addCall) {
		_, found, _ := c.s.Get(c.ctx, c.name, c.ids[0])
		time.Sleep(time.Millisecond)
		if found {
			return
		}
		c.do()
		c.out = c.ids
	}},
	{4, "it keeps 100 bytes", "", func(c *addCall) {
		all := c.ids
		c.ids = slices.Clone(all)
		for i, id := range all {
			c.ids[i] = id[:min(100, len(id))]
		}
		c.do()
		c.out = all
	}},
	{4, "it trims names", "", before(func(c *addCall) { c.name = strings.TrimSpace(c.name) })},
	{5, "it adds beside the transaction", "",
		func(c *addTxCall) { c.out, c.err = c.s.Add(c.ctx, c.name, c.retries, c.ids) }},
	{5, "it never adds", "is not there", func(c *addTxCall) { c.out = c.ids }},
	{6, "it adds without a transaction", "",
		func(c *addTxCall) { c.out, c.err = c.s.Add(c.ctx, c.name, c.retries, c.ids) }},
	{7, "the newest come first", "Capture", before(func(c *addCall) {
		c.ids = slices.Clone(c.ids)
		slices.Reverse(c.ids)
	})},
	{7, "it takes more than the limit", "Capture",
		before(func(c *captureCall) { c.limit++ })},
	{7, "it returns what was before", "",
		eachTask(func(t *taskqueue.Info) { t.State = taskqueue.Pending })},
	{8, "it looks, and then takes", "", func() any {
		// The naive way: SELECT the oldest, then UPDATE it by its id.
		given := make(chan []taskqueue.Info, 1)
		given <- nil
		return func(c *captureCall) {
			before := <-given
			given <- before
			c.do()
			time.Sleep(time.Millisecond)
			<-given
			given <- c.tasks
			if len(before) > 0 && before[0].ID == "task 000" && c.err == nil {
				c.tasks = append(c.tasks, before[0])
			}
		}
	}},
	{9, "it takes what is held", "", before(func(c *captureCall) { c.hold = time.Millisecond })},
	{9, "what is lost stays so", "still", before(func(c *captureCall) { c.hold = time.Hour })},
	{9, "a loss costs nothing", "", eachTask(func(t *taskqueue.Info) { t.RetriesLeft = 2 })},
	{10, "it gives it out once more", "Capture",
		before(func(c *addCall) { c.retries++ })},
	{10, "it does not say why", "", after(func(c *getCall) { c.info.LastError = "" })},
	{11, "what is held is none", "held", after(func(c *captureCall) {
		if errors.Is(c.err, taskqueue.ErrAllHeld) {
			c.err = taskqueue.ErrEmpty
		}
	})},
	{11, "what has failed is exhausted for ever", "long ago", after(func(c *captureCall) {
		if info, _, _ := c.s.Get(c.ctx, c.name, "failed"); info.State == taskqueue.Failed &&
			errors.Is(c.err, taskqueue.ErrEmpty) {
			c.err = taskqueue.ErrExhausted
		}
	})},
	{11, "what is done is exhausted", "done", after(func(c *captureCall) {
		_, found, _ := c.s.Get(c.ctx, c.name, "a")
		if found && errors.Is(c.err, taskqueue.ErrEmpty) {
			c.err = taskqueue.ErrExhausted
		}
	})},
	{12, "it stops at the first that cannot be taken", "Capture", func() any {
		n := 0
		return before(func(c *captureCall) {
			if n++; n == 2 {
				c.name = "none"
			}
		})
	}},
	{13, "what is done is given out again", "",
		func(c *doneCall) { c.out, c.err = c.s.Release(c.ctx, c.name, c.token, c.ids) }},
	{13, "Done cannot be repeated", "Done", func() any {
		said := map[string]bool{}
		return after(func(c *doneCall) {
			if len(c.out) > 0 && said[c.out[0]] {
				c.out = nil
			}
			for _, id := range c.out {
				said[id] = true
			}
		})
	}},
	{14, "it does all or nothing", "",
		refuse(nil, func(c *doneCall) bool { return len(c.ids) > 2 })},
	{14, "it says that it did all", "", after(func(c *releaseTasksCall) { c.out = c.ids })},
	{15, "anybody may end it", "", before(func(c *doneCall) { c.token = c.s.owner(c.ids[0]) })},
	{15, "anybody may fail it", "", before(func(c *failCall) { c.token = c.s.owner(c.id) })},
	{15, "the queue does not matter", "", before(func(c *releaseTasksCall) { c.name = "q" })},
	{16, "it holds on to what was lost", "", before(func(c *captureCall) { c.hold = time.Hour })},
	{17, "whoever calls has it", "", before(func(c *extendCall) { c.token = c.s.owner(c.ids[0]) })},
	{18, "an extension does nothing", "", func(c *extendCall) { c.out = c.ids }},
	{18, "an extension never shortens", "", before(func(c *extendCall) { c.hold = time.Hour })},
	{19, "a release costs a retry", "", func(c *releaseTasksCall) {
		for _, id := range c.ids {
			info, _, _ := c.s.Get(c.ctx, c.name, id)
			if ended, _ := c.s.Fail(c.ctx, c.name, c.token, id, info.LastError, 0); ended {
				c.out = append(c.out, id)
			}
		}
	}},
	{19, "a release sends it to the end", "", func(c *releaseTasksCall) {
		for _, id := range c.ids {
			info, _, _ := c.s.Get(c.ctx, c.name, id)
			if done, _ := c.s.Done(c.ctx, c.name, c.token, []string{id}); len(done) > 0 {
				again(c.s, c.name, id, info.RetriesLeft)
			}
		}
		c.out = c.ids
	}},
	{20, "a failure is a release", "", failByRelease},
	{20, "a failure sends it to the end", "",
		before(func(c *failCall) { c.delay = time.Millisecond })},
	{21, "it knows no delay", "", before(func(c *failCall) { c.delay = 0 })},
	{21, "a delay never ends", "still", before(func(c *failCall) { c.delay = time.Hour })},
	{22, "it is never the end", "", failByRelease},
	{23, "a release sends it to the end", "Capture", func(c *releaseTasksCall) {
		c.out, c.err = c.s.Done(c.ctx, c.name, c.token, c.ids)
		for _, id := range c.out {
			again(c.s, c.name, id, 9)
		}
	}},
	{24, "it keeps 255 bytes", "",
		before(func(c *failCall) { c.text = c.text[:min(255, len(c.text))] })},
	{25, "it deletes all that it may", "", before(func(c *pruneTasksCall) { c.limit = 1000 })},
	{25, "the age does not matter", "", before(func(c *pruneTasksCall) { c.olderThan = 0 })},
	{26, "it does not heed its context", "no error", deaf[*captureCall]},
	{26, "it says so, but has done it", "something was written", func(c *doneCall) {
		heard := c.ctx.Err()
		c.ctx = context.WithoutCancel(c.ctx)
		c.do()
		c.err = errors.Join(c.err, heard)
	}},
	{27, "each Capture begins the time-outs anew", "still",
		before(func(c *captureCall) { c.s.db.AgeTasks(-time.Hour) })},
	{27, "it takes the last step of its clock for the true one", "",
		after(func(c *captureCall) { c.s.db.AgeTasks(c.hold) })},
	{28, "it ends the task beside the transaction", "",
		func(c *doneTxCall) { c.out, c.err = c.s.Done(c.ctx, c.name, c.token, c.ids) }},
	{28, "it never ends it", "", func(c *doneTxCall) { c.out = c.ids }},
	{29, "whoever calls has it", "", before(func(c *doneTxCall) { c.token = c.s.owner(c.ids[0]) })},
	{29, "it says that it ended all", "", after(func(c *doneTxCall) { c.out = c.ids })},
	{30, "it only looks, and ends the task at the commit", "Capture",
		func(c *doneTxCall) { c.out = c.ids }},
	{31, "it needs no transaction", "",
		func(c *doneTxCall) { c.out, c.err = c.s.Done(c.ctx, c.name, c.token, c.ids) }},
	{32, "it knows no delay", "", before(func(c *addAfterCall) { c.delay = 0 })},
	{32, "a delay never ends", "still", before(func(c *addAfterCall) {
		if c.delay > 0 {
			c.delay = time.Hour
		}
	})},
	{33, "it lists tasks of all states", "List", func(c *listCall) {
		for _, state := range taskqueue.States {
			tasks, err := c.s.List(c.ctx, c.name, state, c.limit)
			if c.tasks = append(c.tasks, tasks...); err != nil {
				c.err = err
				return
			}
		}
	}},
	{33, "it lists in the order of the ids", "List", func(c *listCall) {
		limit := c.limit
		c.limit = 1000
		c.do()
		slices.SortFunc(c.tasks, func(a, b taskqueue.Info) int {
			return strings.Compare(a.ID, b.ID)
		})
		c.tasks = c.tasks[:min(limit, len(c.tasks))]
	}},
	{34, "what is delayed is pending", "", after(func(c *countCall) {
		for i := range c.counts {
			c.counts[i].Pending += c.counts[i].Delayed
			c.counts[i].Delayed = 0
		}
	})},
	{35, "it adds them anew", "", func(c *requeueCall) {
		for _, id := range c.ids {
			if info, found, _ := c.s.Get(c.ctx, c.name, id); found &&
				(info.State == taskqueue.Done || info.State == taskqueue.Failed) {
				again(c.s, c.name, id, c.retries)
			}
		}
		c.out = []string{"done", "failed"}[:2*min(1, len(c.ids)-1)]
	}},
	{35, "the worker before ends them still", "", after(func(c *doneCall) { c.out = c.ids })},
	{36, "it does not heed its context", "no error", deaf[*requeueCall]},
}
