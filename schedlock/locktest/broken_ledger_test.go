package locktest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// Stores that break a rule of the run ledger.
var brokenLedgers = []broken{
	{44, "a job begins anew", "the job has", before(func(c *decideCall) {
		if c.d.From.IsZero() {
			c.d.From = cursor(c.s, c.d.Job)
		}
	})},
	{44, "a job is moved that is not there", "the job has no row", before(func(c *decideCall) {
		if cursor(c.s, c.d.Job).IsZero() {
			c.d.From = time.Time{}
		}
	})},
	{45, "anybody decides", "the lease before",
		before(func(c *decideCall) { c.ref = theirs(c.s, c.ref) })},
	{46, "the cursor is not compared", "", before(func(c *decideCall) {
		if !c.d.From.IsZero() {
			c.d.From = cursor(c.s, c.d.Job)
		}
	})},
	{46, "the cursor is compared to the millisecond", "1 µs", before(func(c *decideCall) {
		if at := cursor(c.s, c.d.Job); at.Sub(c.d.From).Abs() < time.Millisecond {
			c.d.From = at
		}
	})},
	{47, "a tick starts twice", "a tick that has run",
		after(func(c *decideCall) { c.started = c.err == nil })},
	{47, "a tick that has run is an error", "", after(func(c *decideCall) {
		if c.err == nil && !c.started {
			c.err = driver.ErrConflict
		}
	})},
	{48, "all start", "how many", after(func(c *decideCall) {
		if errors.Is(c.err, driver.ErrConflict) {
			c.started, c.err = true, nil
		}
	})},
	{49, "a run has no owner", "", after(func(c *decideCall) { c.run.PID = 0 })},
	{50, "skipped ticks are forgotten", "5 item",
		before(func(c *decideCall) { c.d.Skipped = nil })},
	{50, "a range has no end", "", eachRun(func(r *ledger.Run) { r.Until = time.Time{} })},
	{51, "the spec stays", "", eachJob(func(j *ledger.Job) { j.Spec = "old" })},
	{52, "the term is not compared", "another term",
		before(func(c *finishCall) { c.run.Term = holder(c.s).Term })},
	{52, "the attempt is not compared", "another attempt",
		before(func(c *finishCall) { c.run.Attempt = 1 })},
	{52, "all is done", "", before(func(c *finishCall) { c.end.Status = ledger.Done })},
	{53, "the end of a run needs the lock", "",
		refuse(driver.ErrLost, func(c *finishCall) bool { return holder(c.s).Term != c.run.Term })},
	{54, "a NUL is refused", "invalid byte sequence",
		refuse(errNUL, func(c *finishCall) bool { return strings.Contains(c.end.Error, "\x00") })},
	{54, "a text is cut", "",
		before(func(c *finishCall) { c.end.Error = c.end.Error[:min(len(c.end.Error), 255)] })},
	{55, "its own runs are abandoned", "", after(func(c *abandonCall) {
		own, _ := c.s.Runs(c.ctx, "d", 1)
		for _, r := range own {
			_, _ = c.s.Finish(c.ctx, r, ledger.End{Status: ledger.Abandoned})
		}
	})},
	{56, "anybody abandons", "the lease before",
		before(func(c *abandonCall) { c.ref = theirs(c.s, c.ref) })},
	{56, "anybody abandons nothing", "when nothing was left", before(func(c *abandonCall) {
		if runs, _ := c.s.Runs(c.ctx, "", 1); len(runs) == 0 {
			c.ref = theirs(c.s, c.ref)
		}
	})},
	{57, "runs come in the order of their ids", "", after(func(c *runsCall) {
		slices.SortFunc(c.runs, func(a, b ledger.Run) int { return int(b.ID - a.ID) })
	})},
	{57, "a negative limit is none", "limit -1", before(func(c *runsCall) {
		if c.limit < 0 {
			c.limit = 1000
		}
	})},
	{58, "ticks are kept to the millisecond", "", before(func(c *decideCall) {
		if !c.d.From.IsZero() {
			c.d.From = c.d.From.Truncate(time.Millisecond)
		}
		c.d.To, c.d.Start = c.d.To.Truncate(time.Millisecond), c.d.Start.Truncate(time.Millisecond)
	})},
	{59, "Decide has no context", "Decide", deaf[*decideCall]},
	{59, "Finish has no context", "Finish", deaf[*finishCall]},
	{60, "what is owed nothing is tried again", "a run that is",
		after(func(c *retryCall) { c.started = c.started || c.err == nil })},
	{60, "the attempt is not compared", "an attempt to come",
		before(func(c *retryCall) { c.run.Attempt = stored(c.s, c.run.ID).Attempt })},
	{61, "an attempt keeps its first owner", "Retry",
		after(func(c *retryCall) { c.next.PID, c.next.Hostname = c.run.PID, c.run.Hostname })},
	{61, "the error is cleared", "Runs", eachRun(func(r *ledger.Run) {
		if r.Status == ledger.InProgress {
			r.Error = ""
		}
	})},
	{62, "all start", "how many", after(func(c *retryCall) { c.started = c.err == nil })},
	{63, "anybody retries", "Retry, ", before(func(c *retryCall) { c.ref = theirs(c.s, c.ref) })},
	{63, "anybody gives up", "GiveUp, ",
		before(func(c *giveUpCall) { c.ref = theirs(c.s, c.ref) })},
	{64, "nothing is given up", "", func(c *giveUpCall) { c.changed = true }},
	{64, "whatever is given up was owed", "a run",
		after(func(c *giveUpCall) { c.changed = c.err == nil })},
	{65, "no attempt is owed after a failure", "",
		before(func(c *finishCall) { c.end.RetryAt = time.Time{} })},
	{65, "attempts are due to the second", "",
		before(func(c *finishCall) { c.end.RetryAt = c.end.RetryAt.Truncate(time.Second) })},
	{65, "retryAt is not asked", "job ", before(func(c *abandonCall) { c.retryAt = nil })},
	{65, "without retryAt it fails", "retryAt is nil",
		refuse(errors.New("retryAt is nil"),
			func(c *abandonCall) bool { return c.retryAt == nil })},
	{66, "what is owed comes in the order of the ids", "", after(func(c *retriesCall) {
		slices.SortFunc(c.runs, func(a, b ledger.Run) int { return int(a.ID - b.ID) })
	})},
	{66, "all that failed is owed", "", func(c *retriesCall) {
		all, err := c.s.Runs(c.ctx, "", 100)
		c.runs, c.err = slices.DeleteFunc(all, func(r ledger.Run) bool {
			return r.Status != ledger.Failed
		}), err
	}},
	{67, "a streak has no end", "an end", eachJob(func(j *ledger.Job) { j.Streak = j.Failed })},
	{67, "whole seconds are counted", "an end",
		eachJob(func(j *ledger.Job) { j.Total = j.Total.Truncate(time.Second) })},
	{67, "an end that is written twice counts twice", "a second end", after(func(c *finishCall) {
		if !c.written && c.err == nil {
			at := cursor(c.s, c.run.Job)
			again, _, _ := c.s.Decide(c.ctx, holder(c.s),
				ledger.Decision{Job: c.run.Job, From: at, To: at, Start: at.Add(time.Second)})
			_, _ = c.s.Finish(c.ctx, again, c.end)
		}
	})},
	{67, "runs are counted, not attempts", "two attempts", after(func(c *jobsCall) {
		runs, _ := c.s.Runs(c.ctx, "", 100)
		for i := range c.jobs {
			c.jobs[i].Failed = 0
			for _, r := range runs {
				if r.Job == c.jobs[i].Name && r.Status == ledger.Failed {
					c.jobs[i].Failed++
				}
			}
		}
	})},
	{68, "an error is not cut", "", after(func(c *jobsCall) {
		for i := range c.jobs {
			if runs, _ := c.s.Runs(c.ctx, c.jobs[i].Name, 1); len(runs) > 0 {
				c.jobs[i].LastError = runs[0].Error
			}
		}
	})},
	{68, "an error is cut to 1,000 bytes", "",
		eachJob(func(j *ledger.Job) { j.LastError = j.LastError[:min(len(j.LastError), 1000)] })},
	{68, "a NUL is refused", "invalid byte sequence",
		refuse(errNUL, func(c *finishCall) bool { return strings.Contains(c.end.Error, "\x00") })},
	{69, "what is abandoned is not counted", "Failed of job",
		eachJob(func(j *ledger.Job) { j.Failed = 0 })},
	{69, "two that are abandoned count as one", "Failed of job",
		eachJob(func(j *ledger.Job) { j.Failed = min(j.Failed, 1) })},
	{70, "a tick inside a range is found", "a tick inside a skipped range", after(func(c *runCall) {
		runs, _ := c.s.Runs(c.ctx, c.job, 100)
		for _, r := range runs {
			if !c.found && c.tick.After(r.ScheduledAt) && c.tick.Before(r.Until) {
				c.run, c.found = r, true
			}
		}
	})},
	{70, "the newest run is found", "", func(c *runCall) {
		runs, err := c.s.Runs(c.ctx, c.job, 1)
		if c.err = err; len(runs) > 0 {
			c.run, c.found = runs[0], true
		}
	}},
	{92, "it reads all or nothing", "Jobs", after(func(c *jobsCall) {
		if slices.ContainsFunc(c.jobs, unread) {
			c.jobs, c.err = nil, errors.New("the cursor is no time")
		}
	})},
	{92, "it leaves out what it cannot read", "Jobs",
		after(func(c *jobsCall) { c.jobs = slices.DeleteFunc(c.jobs, unread) })},
	{92, "what it cannot read is not compared", "", before(func(c *decideCall) {
		if j := jobOf(c.s, c.d.Job); j.RawCursor != "" {
			c.d.From, c.d.RawFrom = time.Time{}, j.RawCursor
		}
	})},
	{93, "it is compared as it would be written", "as it was read",
		before(func(c *decideCall) { c.d.RawFrom = "" })},
	{93, "an edit does not count", "before", before(func(c *decideCall) {
		if j := jobOf(c.s, c.d.Job); j.RawCursor != "" {
			c.d.From, c.d.RawFrom = j.Cursor, j.RawCursor
		}
	})},
	{94, "it never goes back", "with Back", before(func(c *decideCall) { c.d.Back = false })},
	{94, "it always goes back", "without Back", before(func(c *decideCall) { c.d.Back = true })},
	{94, "going back is not compared", "does not stand", before(func(c *decideCall) {
		if c.d.Back {
			c.d.From = cursor(c.s, c.d.Job)
		}
	})},
	{95, "it resets nothing", "the cursor", func(c *resetCall) {
		c.row, c.err = jobOf(c.s, c.action.Job), c.ctx.Err()
		c.row.Stats = ledger.Stats{}
		if c.row.Name == "" {
			c.err = ledger.ErrNoJob
		}
	}},
	{95, "an unknown job is no error", "no such job", forgive[*resetCall](ledger.ErrNoJob)},
	{95, "it does not heed its context", "ended context", deaf[*resetCall]},
	{97, "it keeps every byte", "",
		eachRun(func(r *ledger.Run) { r.Error += strings.Repeat(" ", 20_000) })},
	{97, "it does not say so", "cut",
		eachRun(func(r *ledger.Run) { r.Error, _, _ = strings.Cut(r.Error, " … (cut") })},
	{97, "it cuts letters", "whole letters", eachRun(func(r *ledger.Run) {
		r.Error = strings.Replace(r.Error, " … (cut", "\xf0… (cut", 1)
	})},
	{99, "an id is free with its row", "an id again", after(func(c *decideCall) {
		if runs, _ := c.s.Runs(c.ctx, c.d.Job, 2); len(runs) == 1 {
			c.run.ID = 1
		}
	})},
	{100, "a range goes with its first tick", "1 item", before(func(c *decideCall) {
		c.d.Skipped = slices.DeleteFunc(c.d.Skipped, func(k ledger.Skip) bool {
			_, had, _ := c.s.Run(c.ctx, c.d.Job, k.First)
			return had
		})
	})},
	{100, "the tick that is taken is counted again", "Count", before(func(c *decideCall) {
		for i, k := range c.d.Skipped {
			if _, had, _ := c.s.Run(c.ctx, c.d.Job, k.First); had && k.Count > 2 {
				k.First, k.Count = k.First.Add(time.Microsecond), k.Count+1
				c.d.Skipped[i] = k
			}
		}
	})},
	{106, "a retry keeps nothing", "after a failed attempt", func(*attemptsCall) {}},
	{106, "an attempt keeps the last owner", "after a failed attempt",
		eachAttempt(func(r ledger.Run, a *ledger.Attempt) { a.Term = r.Term + 1 })},
	{106, "an abandoned attempt keeps the error in the row", "after an abandoned attempt",
		after(func(c *attemptsCall) {
			for i := len(c.list) - 2; i >= 0; i-- {
				if c.list[i].Error == "" {
					c.list[i].Error = c.list[i+1].Error
				}
			}
		})},
	{106, "the oldest comes first", "after an abandoned attempt",
		after(func(c *attemptsCall) { slices.Reverse(c.list) })},
	{106, "the end of an attempt keeps it", "before the next attempt starts",
		after(func(c *attemptsCall) {
			if latest, ok := stored(c.s, c.runID).Latest(); ok && latest.Number > 1 &&
				!latest.FinishedAt.IsZero() {
				c.list = append([]ledger.Attempt{latest}, c.list...)
			}
		})},
	{107, "all stay", "100 item", after(func(c *attemptsCall) {
		for len(c.list) > 0 && c.list[len(c.list)-1].Number > 1 {
			a := c.list[len(c.list)-1]
			a.Number--
			c.list = append(c.list, a)
		}
	})},
	{107, "the oldest stay", "Not equal", eachAttempt(func(_ ledger.Run, a *ledger.Attempt) {
		a.Number = max(a.Number-2, 1)
	})},
	{108, "attempts outlive their run", "of a run that is gone", after(func(c *attemptsCall) {
		if stored(c.s, c.runID).ID == 0 {
			c.list = append(c.list, ledger.Attempt{Number: 1})
		}
	})},
	{108, "the attempts of all runs go", "of a run that stays", func() any {
		pruned := false
		return after(func(c *attemptsCall) {
			if pruned = pruned || stored(c.s, c.runID).ID == 0; pruned {
				c.list = nil
			}
		})
	}},
	{108, "Attempts has no context", "Attempts", deaf[*attemptsCall]},
}
