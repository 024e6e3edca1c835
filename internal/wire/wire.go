// Package wire is for tests: it is between a replica and its database in memory, where a
// statement may be refused, delayed or lost.
package wire

import (
	"context"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
)

// A Store makes a call of On for each statement that a replica sends.
type Store struct {
	*memory.Store
	On func(Statement) (answer any, err error)
}

// A Statement is on its way to the database.
type Statement struct {
	Ctx    context.Context
	Op     string // such as "heartbeat"
	Detail string // of some: the state of a heartbeat, the reason of a release, …
	// Do carries it out, and returns its answer: that of the method, or a Started.
	Do func(context.Context) (any, error)
}

// Started is what a statement answers that may start a run, or looks for one.
type Started struct {
	Run ledger.Run
	OK  bool
}

// Send makes the call for a statement that wants an answer of its own.
func Send[T any](s *Store, ctx context.Context, op, detail string,
	do func(context.Context) (T, error)) (T, error) {
	answer, err := s.On(Statement{ctx, op, detail, func(ctx context.Context) (any, error) {
		return do(ctx)
	}})
	t, _ := answer.(T)
	return t, err
}

func sendRun(s *Store, ctx context.Context, op string,
	do func(context.Context) (ledger.Run, bool, error)) (ledger.Run, bool, error) {
	answer, err := Send(s, ctx, op, "", func(ctx context.Context) (a Started, err error) {
		a.Run, a.OK, err = do(ctx)
		return a, err
	})
	return answer.Run, answer.OK, err
}

func sendOnly(s *Store, ctx context.Context, op, detail string,
	do func(context.Context) error) error {
	_, err := Send(s, ctx, op, detail, func(ctx context.Context) (any, error) {
		return nil, do(ctx)
	})
	return err
}

func (s *Store) Look(ctx context.Context) (driver.Snapshot, error) {
	return Send(s, ctx, "look", "", s.Store.Look)
}

func (s *Store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return Send(s, ctx, "acquire", "", func(ctx context.Context) (driver.Grant, error) {
		return s.Store.Acquire(ctx, c)
	})
}

func (s *Store) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	return Send(s, ctx, "heartbeat", string(state),
		func(ctx context.Context) (driver.Renewal, error) {
			return s.Store.Heartbeat(ctx, ref, state)
		})
}

func (s *Store) Release(ctx context.Context, ref driver.Ref, why driver.EndReason) (bool, error) {
	return Send(s, ctx, "release", string(why), func(ctx context.Context) (bool, error) {
		return s.Store.Release(ctx, ref, why)
	})
}

func (s *Store) Revoke(ctx context.Context, term int64, by,
	reason string) (driver.Revocation, error) {
	return Send(s, ctx, "revoke", by, func(ctx context.Context) (driver.Revocation, error) {
		return s.Store.Revoke(ctx, term, by, reason)
	})
}

func (s *Store) Fence(ctx context.Context, tx any, ref driver.Ref) error {
	return sendOnly(s, ctx, "fence", "", func(ctx context.Context) error {
		return s.Store.Fence(ctx, tx, ref)
	})
}

func (s *Store) Jobs(ctx context.Context) ([]ledger.Job, error) {
	return Send(s, ctx, "jobs", "", s.Store.Jobs)
}

func (s *Store) Retries(ctx context.Context) ([]ledger.Run, error) {
	return Send(s, ctx, "retries", "", s.Store.Retries)
}

func (s *Store) Pending(ctx context.Context) (ledger.Pending, error) {
	return Send(s, ctx, "pending", "", s.Store.Pending)
}

func (s *Store) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	return Send(s, ctx, "runs", "", func(ctx context.Context) ([]ledger.Run, error) {
		return s.Store.Runs(ctx, job, limit)
	})
}

func (s *Store) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	return Send(s, ctx, "abandon", "", func(ctx context.Context) ([]ledger.Run, error) {
		return s.Store.Abandon(ctx, ref, retryAt)
	})
}

func (s *Store) Run(ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
	return sendRun(s, ctx, "run", func(ctx context.Context) (ledger.Run, bool, error) {
		return s.Store.Run(ctx, job, tick)
	})
}

func (s *Store) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (ledger.Run, bool, error) {
	return sendRun(s, ctx, "decide", func(ctx context.Context) (ledger.Run, bool, error) {
		return s.Store.Decide(ctx, ref, d)
	})
}

func (s *Store) Retry(ctx context.Context, ref driver.Ref, r ledger.Run) (ledger.Run, bool, error) {
	return sendRun(s, ctx, "retry", func(ctx context.Context) (ledger.Run, bool, error) {
		return s.Store.Retry(ctx, ref, r)
	})
}

func (s *Store) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (ledger.Run, bool, error) {
	return sendRun(s, ctx, "answer", func(ctx context.Context) (ledger.Run, bool, error) {
		return s.Store.Answer(ctx, ref, r, skip)
	})
}

func (s *Store) GiveUp(ctx context.Context, ref driver.Ref, r ledger.Run) (bool, error) {
	return Send(s, ctx, "give up", "", func(ctx context.Context) (bool, error) {
		return s.Store.GiveUp(ctx, ref, r)
	})
}

func (s *Store) Finish(ctx context.Context, r ledger.Run, end ledger.End) (bool, error) {
	return Send(s, ctx, "finish", string(end.Status), func(ctx context.Context) (bool, error) {
		return s.Store.Finish(ctx, r, end)
	})
}

func (s *Store) Prune(ctx context.Context, job string, keep, limit int) (int64, error) {
	return Send(s, ctx, "prune", "", func(ctx context.Context) (int64, error) {
		return s.Store.Prune(ctx, job, keep, limit)
	})
}

func (s *Store) Trigger(ctx context.Context, a ledger.Action) (ledger.Request, error) {
	return Send(s, ctx, "trigger", "", func(ctx context.Context) (ledger.Request, error) {
		return s.Store.Trigger(ctx, a)
	})
}

func (s *Store) Pause(ctx context.Context, a ledger.Action) (ledger.Pause, error) {
	return Send(s, ctx, "pause", "", func(ctx context.Context) (ledger.Pause, error) {
		return s.Store.Pause(ctx, a)
	})
}

func (s *Store) Present(ctx context.Context, r ledger.Replica, forget bool) error {
	return sendOnly(s, ctx, "present", r.State, func(ctx context.Context) error {
		return s.Store.Present(ctx, r, forget)
	})
}

func (s *Store) Absent(ctx context.Context, instance string) error {
	return sendOnly(s, ctx, "absent", "", func(ctx context.Context) error {
		return s.Store.Absent(ctx, instance)
	})
}
