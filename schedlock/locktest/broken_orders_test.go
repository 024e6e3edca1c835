package locktest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// Stores that break a rule of requests, pauses and pruning.
var brokenOrders = []broken{
	{71, "a request's time is local", "",
		after(func(c *triggerCall) { c.request.At = c.request.At.In(time.FixedZone("", 3600)) })},
	{71, "it is forgotten why", "", after(func(c *pendingCall) {
		for i := range c.in.Requests {
			c.in.Requests[i].Reason = ""
		}
	})},
	{72, "requests of one second have one time", "different times",
		after(func(c *triggerCall) { c.request.At = c.request.At.Truncate(time.Second) })},
	{72, "one request a job is kept", "the times in Pending", after(func(c *pendingCall) {
		c.in.Requests = slices.CompactFunc(c.in.Requests, func(a, b ledger.Request) bool {
			return a.Job == b.Job
		})
	})},
	{73, "it does not matter who asks", "Trigger",
		before(func(c *triggerCall) { c.action.By = "somebody" })},
	{73, "a job that is not there is asked for", "Trigger of job",
		forgive[*triggerCall](ledger.ErrNoJob)},
	{73, "a job that is not there is paused", "Pause of job", forgive[*pauseCall](ledger.ErrNoJob)},
	{74, "what is paused may be asked for", "Trigger",
		func(c *triggerCall) { unpaused(c.s, c.do) }},
	{74, "it is not told who paused", "Trigger", after(func(c *triggerCall) {
		if errors.Is(c.err, ledger.ErrPaused) {
			c.err = ledger.ErrPaused
		}
	})},
	{75, "a request starts twice", "one ", after(func(c *answerCall) { c.started = c.err == nil })},
	{75, "it is forgotten who asked", "",
		after(func(c *answerCall) { c.run.RequestedBy, c.run.RequestReason = "", "" })},
	{75, "a request stays", "", after(func(c *pendingCall) {
		runs, _ := c.s.Runs(c.ctx, "", 100)
		for _, r := range runs {
			c.in.Requests = append(c.in.Requests,
				ledger.Request{Action: ledger.Action{Job: r.Job, By: r.RequestedBy},
					At: r.ScheduledAt})
		}
	})},
	{76, "what is skipped starts", "", before(func(c *answerCall) { c.skip = "" })},
	{76, "a NUL is refused", "invalid byte sequence",
		refuse(errNUL, func(c *answerCall) bool { return strings.Contains(c.skip, "\x00") })},
	{77, "all start", "how many", after(func(c *answerCall) { c.started = c.err == nil })},
	{78, "anybody answers", "", before(func(c *answerCall) { c.ref = theirs(c.s, c.ref) })},
	{78, "anybody skips", "", before(func(c *answerCall) {
		if c.skip != "" {
			c.ref = theirs(c.s, c.ref)
		}
	})},
	{79, "a pause stops no tick", "Decide", func(c *decideCall) { unpaused(c.s, c.do) }},
	{79, "a pause stops no attempt", "Retry", func(c *retryCall) { unpaused(c.s, c.do) }},
	{79, "a pause stops no answer", "Answer", func(c *answerCall) { unpaused(c.s, c.do) }},
	{79, "a refusal moves the cursor", "something was written", after(func(c *decideCall) {
		if errors.Is(c.err, ledger.ErrPaused) {
			c.d.Start = time.Time{}
			_, _, _ = c.s.Decide(c.ctx, c.ref, c.d)
		}
	})},
	{80, "a pause stops every decision", "a decision that starts nothing", func(c *decideCall) {
		if in, _ := c.s.Pending(c.ctx); in.Paused(c.d.Job) != nil {
			c.err = &ledger.PausedError{Pause: *in.Paused(c.d.Job)}
			return
		}
		c.do()
	}},
	{80, "a pause of one job stops them all", "Retry",
		refuse(ledger.ErrPaused, func(c *retryCall) bool {
			in, _ := c.s.Pending(c.ctx)
			return len(in.Pauses) > 0
		})},
	{80, "a pause stops every answer", "Answer, to skip",
		refuse(ledger.ErrPaused, func(c *answerCall) bool {
			in, _ := c.s.Pending(c.ctx)
			return in.Paused(c.request.Job) != nil
		})},
	{81, "the pause is looked at before the transaction", "once Pause has returned",
		func(c *decideCall) {
			if in, _ := c.s.Pending(c.ctx); in.Paused(c.d.Job) != nil {
				c.err = ledger.ErrPaused
				return
			}
			time.Sleep(time.Millisecond)
			unpaused(c.s, c.do)
		}},
	{82, "the last to pause is its author", "Pause again",
		before(func(c *pauseCall) { _, _ = c.s.Resume(c.ctx, c.action.Job, "me") })},
	{82, "a pause has no reason", "", after(func(c *pendingCall) {
		for i := range c.in.Pauses {
			c.in.Pauses[i].Reason = ""
		}
	})},
	{83, "all pauses end at once", "after Resume", func(c *resumeCall) {
		in, err := c.s.Pending(c.ctx)
		for _, p := range in.Pauses {
			if p.Job != c.job {
				_, _ = c.s.Resume(c.ctx, p.Job, c.by)
			}
		}
		if c.err = err; err == nil {
			c.do()
		}
	}},
	{83, "a pause that has ended is forgotten", "", after(func(c *pendingCall) {
		c.in.Pauses = slices.DeleteFunc(c.in.Pauses, func(p ledger.Pause) bool {
			return !p.InForce()
		})
	})},
	{83, "there always was a pause", "that is not paused",
		after(func(c *resumeCall) { c.resumed = c.err == nil })},
	{84, "the newest come first", "oldest first",
		after(func(c *pendingCall) { slices.Reverse(c.in.Requests) })},
	{84, "the inbox has no bound", "300", after(func(c *pendingCall) {
		if len(c.in.Requests) == 300 {
			c.in.Requests = append(c.in.Requests, c.in.Requests[299])
		}
	})},
	{84, "the limit is for all jobs together", "300", after(func(c *pendingCall) {
		c.in.Requests = c.in.Requests[:min(len(c.in.Requests), 100)]
	})},
	{85, "the limit is no limit", "keep 2, limit",
		before(func(c *pruneCall) { c.limit = 1 << 30 })},
	{85, "one more stays", "keep 2, limit", before(func(c *pruneCall) { c.keep++ })},
	{85, "all jobs are pruned", "",
		before(func(c *pruneCall) { _, _ = c.s.Prune(c.ctx, "b", c.keep, c.limit) })},
	{85, "it counts what it might have deleted", "deleted",
		after(func(c *pruneCall) { c.deleted = int64(c.limit) })},
	{85, "stats shrink", "Jobs", after(func(c *jobsCall) {
		for i := range c.jobs {
			runs, _ := c.s.Runs(c.ctx, c.jobs[i].Name, 100)
			c.jobs[i].Done = int64(len(runs))
		}
	})},
	{86, "what is owed goes", "the ticks that stay", before(func(c *pruneCall) {
		owed, _ := c.s.Retries(c.ctx)
		for _, r := range owed {
			_, _ = c.s.GiveUp(c.ctx, holder(c.s), r)
		}
	})},
	{86, "what is in progress goes", "the ticks that stay", before(func(c *pruneCall) {
		runs, _ := c.s.Runs(c.ctx, c.job, 100)
		for _, r := range runs {
			_, _ = c.s.Finish(c.ctx, r, ledger.End{Status: ledger.Done})
		}
	})},
	{86, "what has not ended is not counted", "keep 2", before(func(c *pruneCall) {
		runs, _ := c.s.Runs(c.ctx, c.job, 100)
		for _, r := range runs {
			if !r.Final() && c.keep > 0 {
				c.keep++
			}
		}
	})},
	{87, "Retry has no context", "Retry with", deaf[*retryCall]},
	{87, "GiveUp has no context", "GiveUp with", deaf[*giveUpCall]},
	{87, "Retries has no context", "Retries with", deaf[*retriesCall]},
	{87, "Run has no context", "Run with", deaf[*runCall]},
	{87, "Trigger has no context", "Trigger with", deaf[*triggerCall]},
	{87, "Answer has no context", "Answer with", deaf[*answerCall]},
	{87, "Pause has no context", "Pause with", deaf[*pauseCall]},
	{87, "Resume has no context", "Resume with", deaf[*resumeCall]},
	{87, "Pending has no context", "Pending with", deaf[*pendingCall]},
	{87, "Prune has no context", "Prune with", deaf[*pruneCall]},
	{96, "there is always room for one more", "", forgive[*triggerCall](ledger.ErrBacklog)},
	{96, "it does not count", "Pending", after(func(c *pendingCall) { c.in.Backlog = nil })},
	{96, "a pause hides nothing", "paused", func(c *pendingCall) {
		unpaused(c.s, c.do)
		now, _ := c.s.Pending(c.ctx)
		c.in.Pauses = now.Pauses
	}},
	{101, "it is not kept who", "Audit", eachOrder(func(a *ledger.AuditEntry) { a.By = "" })},
	{101, "it is not kept why", "Audit", eachOrder(func(a *ledger.AuditEntry) { a.Reason = "" })},
	{101, "it is not kept when", "the time of",
		eachOrder(func(a *ledger.AuditEntry) { a.At = a.At.Add(-time.Hour) })},
	{101, "what changes nothing is told", "something was written", tells},
	{101, "nobody resets a cursor", "by nobody", before(func(c *resetCall) {
		if c.action.By == "" {
			c.action.By = "somebody"
		}
	})},
	{102, "a hand-over is not told", "Audit after hand-over", after(func(c *auditCall) {
		c.list = slices.DeleteFunc(c.list, func(a ledger.AuditEntry) bool {
			return a.What == ledger.OrderHandOver
		})
	})},
	{102, "a hand-over is of the leader's job", "Audit", eachOrder(func(a *ledger.AuditEntry) {
		a.Job = "a"
	})},
	{102, "a hand-over again is told", "something was written", tells},
	{103, "it grows for ever", "as many as stay", after(func(c *auditCall) {
		if n := len(c.list); n == ledger.KeepAudit {
			c.list = append(c.list, c.list[n-1])
		}
	})},
	{103, "the oldest come first", "newest first", after(func(c *auditCall) {
		slices.Reverse(c.list)
	})},
	{103, "all jobs are one", "of one job", before(func(c *auditCall) { c.job = "" })},
	{103, "the limit is no limit", "at most limit", before(func(c *auditCall) { c.limit = 2000 })},
	{103, "it does not heed its context", "Audit with", deaf[*auditCall]},
	{104, "what was told first stays", "told again", before(func(c *presentCall) {
		for _, r := range told(c.s) {
			if r.Instance == c.replica.Instance {
				c.replica = r
			}
		}
	})},
	{104, "one replica a host", "by host name", after(func(c *presentCall) {
		for _, r := range told(c.s) {
			if r.Hostname == c.replica.Hostname && r.Instance != c.replica.Instance {
				_ = c.s.Absent(bg, r.Instance)
			}
		}
	})},
	{104, "who has told forgets the others", "by host name", after(func(c *presentCall) {
		for _, r := range told(c.s) {
			if c.forget && r.Instance != c.replica.Instance {
				_ = c.s.Absent(bg, r.Instance)
			}
		}
	})},
	{104, "they come as they have told", "by host name", after(func(c *replicasCall) {
		slices.SortFunc(c.list, func(a, b ledger.Replica) int { return a.SeenAt.Compare(b.SeenAt) })
		slices.Reverse(c.list)
	})},
	{104, "nobody knows when", "SeenAt", after(func(c *replicasCall) {
		for i := range c.list {
			c.list[i].SeenAt = time.Time{}
		}
	})},
	{104, "nobody is ever silent", "is not silent", after(func(c *replicasCall) {
		for i := range c.list {
			c.list[i].Silent = 0
		}
	})},
	{105, "all leave at once", "Absent", after(func(c *absentCall) {
		if c.instance == "a" {
			_ = c.s.Absent(bg, "b")
		}
	})},
	{105, "nobody leaves", "Absent", func(*absentCall) {}},
	{105, "Present has no context", "Present with", deaf[*presentCall]},
	{105, "Absent has no context", "Absent with", deaf[*absentCall]},
	{105, "Replicas has no context", "Replicas with", deaf[*replicasCall]},
	{110, "a request that a tick has answered stays", "requests, after the answer",
		func(c *answerCall) {
			if _, had, _ := c.s.Run(c.ctx, c.request.Job, c.request.At); !had {
				c.do()
			}
		}},
	{110, "a tick that has run starts again", "of a tick that has run",
		after(func(c *answerCall) { c.started = true })},
	{111, "nobody is forgotten", "with forget", before(func(c *presentCall) { c.forget = false })},
	{111, "a standby forgets", "without forget", before(func(c *presentCall) { c.forget = true })},
	{111, "each has told lately", "Silent", after(func(c *replicasCall) {
		for i := range c.list {
			c.list[i].Silent = 0
		}
	})},
}

func told(s *sound) []ledger.Replica {
	list, _ := s.Replicas(bg)
	return list
}

// tells is the fault of a store with an entry for what changes nothing: the second
// look at all that is written finds one more.
func tells() any {
	looks := 0
	return after(func(c *auditCall) {
		if c.limit < 100 {
			return
		}
		if looks++; looks > 1 {
			c.list = append(c.list, ledger.AuditEntry{What: ledger.OrderPause})
		}
	})
}
