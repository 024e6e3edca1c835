package simulate

import (
	"cmp"
	"context"
	"errors"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
)

var (
	errRefused = errors.New("connection refused")
	errReset   = errors.New("connection reset by peer")
	errCrashed = errors.New("this replica has crashed")
)

// statementLimit bounds a wait in vain, as the stores bound each statement.
const statementLimit = 10 * time.Second

// A link is one incarnation's way to the database, through the faults of the plan.
type link struct {
	*memory.Store
	p *process
}

// call sends a statement. It is done when it arrives, whether its caller waits or not, and also
// if the replica has crashed meanwhile.
func call[T any](l *link, ctx context.Context, op string,
	do func(context.Context) (T, error)) (none T, err error) {
	p := l.p
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	p.standStill()
	if p.crashed() {
		return none, errCrashed
	}
	there, back := p.latency, p.latency
	f, _ := p.w.network(p.replica, op)
	switch f.Kind {
	case refuse:
		return none, errRefused
	case loseRequest:
		return none, p.inVain(ctx)
	case slowRequest:
		there += f.Delay
	case slowAnswer:
		back += f.Delay
	}
	if there > 0 {
		sent := time.Now()
		if err := p.await(ctx, there); err != nil {
			left := there - time.Since(sent)
			p.w.land(left)
			time.AfterFunc(left, func() {
				answer, _ := do(context.Background())
				p.w.unheard(answer)
			})
			return none, err
		}
	}
	answer, err := do(context.Background())
	switch f.Kind {
	case failAfter:
		p.w.unheard(answer)
		return none, errReset
	case loseAnswer:
		p.w.unheard(answer)
		return none, p.inVain(ctx)
	}
	if back > 0 {
		if err := p.await(ctx, back); err != nil {
			p.w.unheard(answer)
			return none, err
		}
	}
	p.standStill()
	if p.crashed() {
		return none, errCrashed
	}
	return answer, err
}

// network is the fault that a statement meets.
func (w *world) network(replica int, op string) (fault, bool) {
	at := w.planned()
	for i, f := range w.plan.Faults {
		switch f.Kind {
		case refuse, loseRequest, loseAnswer, failAfter, slowRequest, slowAnswer:
			if f.active(at) && w.hits(i, replica) && f.concernsOp(op) {
				return f, true
			}
		}
	}
	return fault{}, false
}

// land remembers that a statement arrives although nobody waits for it.
func (w *world) land(in time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.landed = max(w.landed, w.planned()+in)
}

// unheard remembers the start of a run whose caller did not hear of it.
func (w *world) unheard(answer any) {
	if s, ok := answer.(started); ok && s.ok {
		w.committed(attemptOf(s.run) + " unheard")
	}
}

// await lasts for d. It returns an error if its caller does not wait for so long.
func (p *process) await(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	case <-ctx.Done():
		p.standStill()
		return context.Cause(ctx)
	case <-p.dead:
		return errCrashed
	}
}

// inVain waits for an answer that does not come.
func (p *process) inVain(ctx context.Context) error {
	return cmp.Or(p.await(ctx, statementLimit), context.DeadlineExceeded)
}

func (l *link) Look(ctx context.Context) (driver.Snapshot, error) {
	return call(l, ctx, "look", l.Store.Look)
}

func (l *link) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return call(l, ctx, "acquire", func(ctx context.Context) (driver.Grant, error) {
		return l.Store.Acquire(ctx, c)
	})
}

func (l *link) Heartbeat(ctx context.Context, ref driver.Ref,
	s driver.State) (driver.Renewal, error) {
	return call(l, ctx, "heartbeat", func(ctx context.Context) (driver.Renewal, error) {
		return l.Store.Heartbeat(ctx, ref, s)
	})
}

func (l *link) Release(ctx context.Context, ref driver.Ref, why driver.EndReason) (bool, error) {
	return call(l, ctx, "release", func(ctx context.Context) (bool, error) {
		return l.Store.Release(ctx, ref, why)
	})
}

func (l *link) Fence(ctx context.Context, tx any, ref driver.Ref) error {
	_, err := call(l, ctx, "fence", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.Store.Fence(ctx, tx, ref)
	})
	return err
}

func (l *link) Jobs(ctx context.Context) ([]ledger.Job, error) {
	return call(l, ctx, "jobs", l.Store.Jobs)
}

func (l *link) Retries(ctx context.Context) ([]ledger.Run, error) {
	return call(l, ctx, "retries", l.Store.Retries)
}

func (l *link) Pending(ctx context.Context) (ledger.Pending, error) {
	return call(l, ctx, "pending", l.Store.Pending)
}

func (l *link) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	return call(l, ctx, "runs", func(ctx context.Context) ([]ledger.Run, error) {
		return l.Store.Runs(ctx, job, limit)
	})
}

func (l *link) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	return call(l, ctx, "abandon", func(ctx context.Context) ([]ledger.Run, error) {
		return l.Store.Abandon(ctx, ref, retryAt)
	})
}

// started is what the start of a run answers.
type started struct {
	run ledger.Run
	ok  bool
}

func (l *link) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (ledger.Run, bool, error) {
	s, err := call(l, ctx, "decide", func(ctx context.Context) (s started, err error) {
		s.run, s.ok, err = l.Store.Decide(ctx, ref, d)
		l.p.w.started(s)
		return s, err
	})
	return s.run, s.ok, err
}

func (l *link) Retry(ctx context.Context, ref driver.Ref, r ledger.Run) (ledger.Run, bool, error) {
	s, err := call(l, ctx, "retry", func(ctx context.Context) (s started, err error) {
		s.run, s.ok, err = l.Store.Retry(ctx, ref, r)
		l.p.w.started(s)
		return s, err
	})
	return s.run, s.ok, err
}

func (l *link) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (ledger.Run, bool, error) {
	s, err := call(l, ctx, "answer", func(ctx context.Context) (s started, err error) {
		s.run, s.ok, err = l.Store.Answer(ctx, ref, r, skip)
		l.p.w.started(s)
		return s, err
	})
	return s.run, s.ok, err
}

func (l *link) Run(ctx context.Context, job string, at time.Time) (ledger.Run, bool, error) {
	s, err := call(l, ctx, "run", func(ctx context.Context) (s started, err error) {
		s.run, s.ok, err = l.Store.Run(ctx, job, at)
		return s, err
	})
	return s.run, s.ok, err
}

func (l *link) GiveUp(ctx context.Context, ref driver.Ref, r ledger.Run) (bool, error) {
	return call(l, ctx, "give up", func(ctx context.Context) (bool, error) {
		return l.Store.GiveUp(ctx, ref, r)
	})
}

func (l *link) Finish(ctx context.Context, r ledger.Run, end ledger.End) (bool, error) {
	return call(l, ctx, "finish", func(ctx context.Context) (bool, error) {
		return l.Store.Finish(ctx, r, end)
	})
}

func (l *link) Prune(ctx context.Context, job string, keep, limit int) (int64, error) {
	return call(l, ctx, "prune", func(ctx context.Context) (int64, error) {
		return l.Store.Prune(ctx, job, keep, limit)
	})
}

func (l *link) Trigger(ctx context.Context, a ledger.Action) (ledger.Request, error) {
	return call(l, ctx, "trigger", func(ctx context.Context) (ledger.Request, error) {
		time.Sleep(137 * time.Microsecond) // a tick at just that time would be the outcome
		return l.Store.Trigger(ctx, a)
	})
}

func (l *link) Pause(ctx context.Context, a ledger.Action) (ledger.Pause, error) {
	return call(l, ctx, "pause", func(ctx context.Context) (ledger.Pause, error) {
		p, err := l.Store.Pause(ctx, a)
		if err == nil {
			l.p.w.committed("pause " + p.Reason) // of the order that is in force
		}
		return p, err
	})
}

func (l *link) Present(ctx context.Context, r ledger.Replica, forget bool) error {
	_, err := call(l, ctx, "present", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.Store.Present(ctx, r, forget)
	})
	return err
}

func (l *link) Absent(ctx context.Context, instance string) error {
	_, err := call(l, ctx, "absent", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.Store.Absent(ctx, instance)
	})
	return err
}
