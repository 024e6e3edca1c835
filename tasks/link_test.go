package tasks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
)

// A link is one replica's connection to the database.
type link struct {
	*memory.Store

	mu      sync.Mutex
	session *session // nil: none that is a sign
	fault   func(op string) fault
	calls   []string
	called  time.Time // when the last of them was
	thawed  chan struct{}
	answer  error // of say
}

// A fault is what a statement meets. The zero fault is none.
type fault int

const (
	none   fault = iota
	refuse       // an error at once; not applied
	hang         // not applied; returns when its context ends
	freeze       // applied, but answered only when the link is set anew, whatever the context says
	lose         // applied, but the answer is an error
	delay        // applied when the link is set anew; returns when its context ends
	usurp        // not applied; the answer is that the lock is lost
	ruin         // not applied; the answer is that the database is damaged
	say          // not applied; the answer is the link's
)

// set says what the statements of the replica meet from now on; nil: nothing.
func (l *link) set(f func(op string) fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
	close(l.thawed)
	l.thawed = make(chan struct{})
}

// on is a fault of some statements.
func on(f fault, ops ...string) func(string) fault {
	return func(op string) fault {
		if len(ops) == 0 || slices.Contains(ops, op) {
			return f
		}
		return none
	}
}

// log are the statements since the last call, without the looks of any kind.
func (l *link) log() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := l.calls
	l.calls = nil
	return calls
}

func call[T any](l *link, ctx context.Context, op, detail string,
	apply func() (T, error)) (answer T, err error) {
	l.mu.Lock()
	// Where time stands still while things happen, gocron may ring twice at one
	// instant: a heartbeat too many does no harm.
	line, now := strings.TrimSpace(op+" "+detail), time.Now()
	twice := op == "heartbeat" && len(l.calls) > 0 && l.calls[len(l.calls)-1] == line &&
		l.called.Equal(now)
	if op != "look" && op != "inbox" && !twice {
		l.calls, l.called = append(l.calls, line), now
	}
	var f fault
	if l.fault != nil {
		f = l.fault(op)
	}
	thawed, said := l.thawed, l.answer
	l.mu.Unlock()
	switch f {
	case say:
		return answer, said
	case refuse:
		return answer, errRefused
	case hang:
		<-ctx.Done()
		return answer, context.Cause(ctx)
	case freeze:
		answer, err = apply()
		<-thawed
		return answer, err
	case lose:
		_, _ = apply()
		return answer, errRefused
	case delay:
		go func() {
			<-thawed
			_, _ = apply()
		}()
		<-ctx.Done()
		return answer, context.Cause(ctx)
	case usurp:
		return answer, fmt.Errorf("%w: says the test", schedlock.ErrLost)
	case ruin:
		return answer, fmt.Errorf("%w: says the test", schedlock.ErrCorrupt)
	}
	return apply()
}

func (l *link) Look(ctx context.Context) (driver.Snapshot, error) {
	return call(l, ctx, "look", "", func() (driver.Snapshot, error) { return l.Store.Look(ctx) })
}

func (l *link) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return call(l, ctx, "acquire", "", func() (driver.Grant, error) {
		grant, err := l.Store.Acquire(ctx, c)
		if x := l.connected(); x != nil {
			grant.Session = x
		}
		return grant, err
	})
}

func (l *link) Heartbeat(ctx context.Context, ref driver.Ref,
	s driver.State) (driver.Renewal, error) {
	return call(l, ctx, "heartbeat", string(s), func() (driver.Renewal, error) {
		beat, err := l.Store.Heartbeat(ctx, ref, s)
		if x := l.connected(); x != nil {
			beat.Session = x
		}
		return beat, err
	})
}

func (l *link) Release(ctx context.Context, ref driver.Ref, reason driver.EndReason) (bool, error) {
	return call(l, ctx, "release", string(reason), func() (bool, error) {
		return l.Store.Release(ctx, ref, reason)
	})
}

func (l *link) Revoke(ctx context.Context, term int64, by,
	reason string) (schedlock.Revocation, error) {
	return call(l, ctx, "revoke", by, func() (schedlock.Revocation, error) {
		return l.Store.Revoke(ctx, term, by, reason)
	})
}

func (l *link) Jobs(ctx context.Context) ([]ledger.Job, error) {
	return call(l, ctx, "jobs", "", func() ([]ledger.Job, error) { return l.Store.Jobs(ctx) })
}

func (l *link) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	return call(l, ctx, "abandon", "", func() ([]ledger.Run, error) {
		return l.Store.Abandon(ctx, ref, retryAt)
	})
}

func (l *link) Retries(ctx context.Context) ([]ledger.Run, error) {
	return call(l, ctx, "retries", "", func() ([]ledger.Run, error) { return l.Store.Retries(ctx) })
}

func (l *link) Pending(ctx context.Context) (ledger.Pending, error) {
	return call(l, ctx, "inbox", "", func() (ledger.Pending, error) { return l.Store.Pending(ctx) })
}

func (l *link) Prune(ctx context.Context, job string, keep, limit int) (int64, error) {
	return call(l, ctx, "prune", "", func() (int64, error) {
		return l.Store.Prune(ctx, job, keep, limit)
	})
}

func (l *link) Run(ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
	return callRun(l, ctx, "run", func() (ledger.Run, bool, error) {
		return l.Store.Run(ctx, job, tick)
	})
}

func (l *link) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (ledger.Run, bool, error) {
	return callRun(l, ctx, "decide", func() (ledger.Run, bool, error) {
		return l.Store.Decide(context.WithoutCancel(ctx), ref, d) // it may come late
	})
}

func (l *link) Retry(ctx context.Context, ref driver.Ref, r ledger.Run) (ledger.Run, bool, error) {
	return callRun(l, ctx, "retry", func() (ledger.Run, bool, error) {
		return l.Store.Retry(ctx, ref, r)
	})
}

func (l *link) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (ledger.Run, bool, error) {
	return callRun(l, ctx, "answer", func() (ledger.Run, bool, error) {
		return l.Store.Answer(context.WithoutCancel(ctx), ref, r, skip)
	})
}

func (l *link) GiveUp(ctx context.Context, ref driver.Ref, r ledger.Run) (bool, error) {
	return call(l, ctx, "give up", "", func() (bool, error) { return l.Store.GiveUp(ctx, ref, r) })
}

func (l *link) Finish(ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
	return call(l, ctx, "finish", string(end.Status), func() (bool, error) {
		return l.Store.Finish(ctx, run, end)
	})
}

func callRun(l *link, ctx context.Context, op string, apply func() (ledger.Run,
	bool, error)) (ledger.Run, bool, error) {
	type answer struct {
		run ledger.Run
		ok  bool
	}
	got, err := call(l, ctx, op, "", func() (answer, error) {
		run, ok, err := apply()
		return answer{run, ok}, err
	})
	return got.run, got.ok, err
}
