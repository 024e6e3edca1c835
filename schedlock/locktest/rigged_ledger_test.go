package locktest

import (
	"context"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

type (
	jobsCall struct {
		call[*sound]
		jobs []ledger.Job
	}
	decideCall struct {
		call[*sound]
		ref     driver.Ref
		d       ledger.Decision
		run     ledger.Run
		started bool
	}
	finishCall struct {
		call[*sound]
		run     ledger.Run
		end     ledger.End
		written bool
	}
	abandonCall struct {
		call[*sound]
		ref     driver.Ref
		retryAt func(ledger.Run) time.Time
		runs    []ledger.Run
	}
	runsCall struct {
		call[*sound]
		job   string
		limit int
		runs  []ledger.Run
	}
	runCall struct {
		call[*sound]
		job   string
		tick  time.Time
		run   ledger.Run
		found bool
	}
	retryCall struct {
		call[*sound]
		ref     driver.Ref
		run     ledger.Run
		next    ledger.Run
		started bool
	}
	giveUpCall struct {
		call[*sound]
		ref     driver.Ref
		run     ledger.Run
		changed bool
	}
	retriesCall struct {
		call[*sound]
		runs []ledger.Run
	}
	resetCall struct {
		call[*sound]
		action ledger.Action
		row    ledger.Job
	}
	pruneCall struct {
		call[*sound]
		job     string
		keep    int
		limit   int
		deleted int64
	}
	triggerCall struct {
		call[*sound]
		action  ledger.Action
		request ledger.Request
	}
	answerCall struct {
		call[*sound]
		ref     driver.Ref
		request ledger.Request
		skip    string
		run     ledger.Run
		started bool
	}
	pauseCall struct {
		call[*sound]
		action ledger.Action
		pause  ledger.Pause
	}
	resumeCall struct {
		call[*sound]
		job     string
		by      string
		resumed bool
	}
	pendingCall struct {
		call[*sound]
		in ledger.Pending
	}
	presentCall struct {
		call[*sound]
		replica ledger.Replica
		forget  bool
	}
	absentCall struct {
		call[*sound]
		instance string
	}
	replicasCall struct {
		call[*sound]
		list []ledger.Replica
	}
	attemptsCall struct {
		call[*sound]
		runID int64
		list  []ledger.Attempt
	}
	auditCall struct {
		call[*sound]
		job   string
		limit int
		list  []ledger.AuditEntry
	}
)

func (r rigged) Jobs(ctx context.Context) ([]ledger.Job, error) {
	c := &jobsCall{call: start(ctx, r.sound)}
	play(r.fault, c, func() { c.jobs, c.err = c.s.Jobs(c.ctx) })
	return c.jobs, c.err
}

func (r rigged) Decide(ctx context.Context, ref driver.Ref, d ledger.Decision) (ledger.Run, bool,
	error) {
	c := &decideCall{call: start(ctx, r.sound), ref: ref, d: d}
	play(r.fault, c, func() { c.run, c.started, c.err = c.s.Decide(c.ctx, c.ref, c.d) })
	return c.run, c.started, c.err
}

func (r rigged) Finish(ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
	c := &finishCall{call: start(ctx, r.sound), run: run, end: end}
	play(r.fault, c, func() { c.written, c.err = c.s.Finish(c.ctx, c.run, c.end) })
	return c.written, c.err
}

func (r rigged) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	c := &abandonCall{call: start(ctx, r.sound), ref: ref, retryAt: retryAt}
	play(r.fault, c, func() { c.runs, c.err = c.s.Abandon(c.ctx, c.ref, c.retryAt) })
	return c.runs, c.err
}

func (r rigged) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	c := &runsCall{call: start(ctx, r.sound), job: job, limit: limit}
	play(r.fault, c, func() { c.runs, c.err = c.s.Runs(c.ctx, c.job, c.limit) })
	return c.runs, c.err
}

func (r rigged) Run(ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
	c := &runCall{call: start(ctx, r.sound), job: job, tick: tick}
	play(r.fault, c, func() { c.run, c.found, c.err = c.s.Run(c.ctx, c.job, c.tick) })
	return c.run, c.found, c.err
}

func (r rigged) Retry(ctx context.Context, ref driver.Ref, run ledger.Run) (ledger.Run, bool,
	error) {
	c := &retryCall{call: start(ctx, r.sound), ref: ref, run: run}
	play(r.fault, c, func() { c.next, c.started, c.err = c.s.Retry(c.ctx, c.ref, c.run) })
	return c.next, c.started, c.err
}

func (r rigged) GiveUp(ctx context.Context, ref driver.Ref, run ledger.Run) (bool, error) {
	c := &giveUpCall{call: start(ctx, r.sound), ref: ref, run: run}
	play(r.fault, c, func() { c.changed, c.err = c.s.GiveUp(c.ctx, c.ref, c.run) })
	return c.changed, c.err
}

func (r rigged) Retries(ctx context.Context) ([]ledger.Run, error) {
	c := &retriesCall{call: start(ctx, r.sound)}
	play(r.fault, c, func() { c.runs, c.err = c.s.Retries(c.ctx) })
	return c.runs, c.err
}

func (r rigged) Attempts(ctx context.Context, runID int64) ([]ledger.Attempt, error) {
	c := &attemptsCall{call: start(ctx, r.sound), runID: runID}
	play(r.fault, c, func() { c.list, c.err = c.s.Attempts(c.ctx, c.runID) })
	return c.list, c.err
}

func (r rigged) ResetCursor(ctx context.Context, action ledger.Action) (ledger.Job, error) {
	c := &resetCall{call: start(ctx, r.sound), action: action}
	play(r.fault, c, func() { c.row, c.err = c.s.ResetCursor(c.ctx, c.action) })
	return c.row, c.err
}

func (r rigged) Prune(ctx context.Context, job string, keep, limit int) (int64, error) {
	c := &pruneCall{call: start(ctx, r.sound), job: job, keep: keep, limit: limit}
	play(r.fault, c, func() { c.deleted, c.err = c.s.Prune(c.ctx, c.job, c.keep, c.limit) })
	return c.deleted, c.err
}

func (r rigged) Trigger(ctx context.Context, action ledger.Action) (ledger.Request, error) {
	c := &triggerCall{call: start(ctx, r.sound), action: action}
	play(r.fault, c, func() { c.request, c.err = c.s.Trigger(c.ctx, c.action) })
	return c.request, c.err
}

func (r rigged) Answer(ctx context.Context, ref driver.Ref, request ledger.Request,
	skip string) (ledger.Run, bool, error) {
	c := &answerCall{call: start(ctx, r.sound), ref: ref, request: request, skip: skip}
	play(r.fault, c, func() {
		c.run, c.started, c.err = c.s.Answer(c.ctx, c.ref, c.request, c.skip)
	})
	return c.run, c.started, c.err
}

func (r rigged) Pause(ctx context.Context, action ledger.Action) (ledger.Pause, error) {
	c := &pauseCall{call: start(ctx, r.sound), action: action}
	play(r.fault, c, func() { c.pause, c.err = c.s.Pause(c.ctx, c.action) })
	return c.pause, c.err
}

func (r rigged) Resume(ctx context.Context, job, by string) (bool, error) {
	c := &resumeCall{call: start(ctx, r.sound), job: job, by: by}
	play(r.fault, c, func() { c.resumed, c.err = c.s.Resume(c.ctx, c.job, c.by) })
	return c.resumed, c.err
}

func (r rigged) Pending(ctx context.Context) (ledger.Pending, error) {
	c := &pendingCall{call: start(ctx, r.sound)}
	play(r.fault, c, func() { c.in, c.err = c.s.Pending(c.ctx) })
	return c.in, c.err
}

func (r rigged) Audit(ctx context.Context, job string, limit int) ([]ledger.AuditEntry, error) {
	c := &auditCall{call: start(ctx, r.sound), job: job, limit: limit}
	play(r.fault, c, func() { c.list, c.err = c.s.Audit(c.ctx, c.job, c.limit) })
	return c.list, c.err
}

func (r rigged) Present(ctx context.Context, replica ledger.Replica, forget bool) error {
	c := &presentCall{call: start(ctx, r.sound), replica: replica, forget: forget}
	play(r.fault, c, func() { c.err = c.s.Present(c.ctx, c.replica, c.forget) })
	return c.err
}

func (r rigged) Absent(ctx context.Context, instance string) error {
	c := &absentCall{call: start(ctx, r.sound), instance: instance}
	play(r.fault, c, func() { c.err = c.s.Absent(c.ctx, c.instance) })
	return c.err
}

func (r rigged) Replicas(ctx context.Context) ([]ledger.Replica, error) {
	c := &replicasCall{call: start(ctx, r.sound)}
	play(r.fault, c, func() { c.list, c.err = c.s.Replicas(c.ctx) })
	return c.list, c.err
}

// eachAttempt changes what Attempts returns, given the row of the run.
func eachAttempt(change func(ledger.Run, *ledger.Attempt)) func(*attemptsCall) {
	return after(func(c *attemptsCall) {
		for i := range c.list {
			change(stored(c.s, c.runID), &c.list[i])
		}
	})
}

// eachOrder changes what Audit returns.
func eachOrder(change func(*ledger.AuditEntry)) func(*auditCall) {
	return after(func(c *auditCall) { each(c.list, change) })
}

// eachJob changes what Jobs returns.
func eachJob(change func(*ledger.Job)) func(*jobsCall) {
	return after(func(c *jobsCall) { each(c.jobs, change) })
}

// eachRun changes what Runs returns.
func eachRun(change func(*ledger.Run)) func(*runsCall) {
	return after(func(c *runsCall) { each(c.runs, change) })
}

// jobOf is the row of a job.
func jobOf(s *sound, name string) ledger.Job {
	jobs, _ := s.Jobs(bg)
	for _, j := range jobs {
		if j.Name == name {
			return j
		}
	}
	return ledger.Job{}
}

// cursor is where a job stands.
func cursor(s *sound, name string) time.Time { return jobOf(s, name).Cursor }

// unread is a job whose cursor cannot be read.
func unread(j ledger.Job) bool { return j.Cursor.IsZero() }

// stored is the row with an id.
func stored(s *sound, id int64) ledger.Run {
	runs, _ := s.Runs(bg, "", 100)
	for _, r := range runs {
		if r.ID == id {
			return r
		}
	}
	return ledger.Run{}
}

// unpaused calls f as if nothing were paused.
func unpaused(s *sound, f func()) {
	in, _ := s.Pending(bg)
	for _, p := range in.Pauses {
		if p.InForce() {
			_, _ = s.Resume(bg, p.Job, "nobody")
			defer s.Pause(bg, p.Action)
		}
	}
	f()
}
