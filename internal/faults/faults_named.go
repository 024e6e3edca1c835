//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// LockFaults are those of the holders of named locks.
var LockFaults = []Fault{
	{Name: "kill -9 of the holder of a lock", Inject: onLeader(KillHolder)},
	{Name: "SIGSTOP of the holder of a lock past its TTL, SIGCONT",
		Inject: onLeader(StopHolder), Alone: true},
	{Name: "SIGSTOP of the holder of a lock for a part of its TTL",
		Inject: onLeader(StopHolderShort), Alone: true},
	{Name: "kill -9 of the holder of a lock, clock of the server set back",
		Inject: onBoth(ClockBackKillHolder), Clock: true, Alone: true},
}

// KillHolder: kill -9 of the process that holds the first named lock. Another
// takes it when its TTL has passed. Bound, should it have led: that of
// KillLeader.
func KillHolder(ctx context.Context, c *Cluster, in *Injection, _ *process, _ Belief) error {
	p, err := c.holder(ctx)
	if p == nil {
		return err
	}
	c.kill(ctx, in, p)
	c.mustBeTaken(ctx, p, in, KindTook)
	return nil
}

// ClockBackKillHolder: the clock of the server is an hour ahead when the process
// that holds the first named lock is killed, and then it is set right. Another
// takes the lock within a TTL, not an hour. Bound: that of KillHolder.
func ClockBackKillHolder(ctx context.Context, c *Cluster, in *Injection, s server, _ *process,
	_ Belief) error {
	from := bootTime()
	if err := s.setClock(ctx, time.Hour); err != nil {
		return err
	}
	sleep(ctx, c.lockTTL()) // whoever holds it then has said so since
	p, err := c.holder(ctx)
	if p == nil {
		return errors.Join(err, s.setClock(ctx, 0))
	}
	in.idle = true
	c.kill(ctx, in, p)
	if err := s.setClock(ctx, 0); err != nil {
		return err
	}
	c.step(Span{from, bootTime()})
	in.after = c.forgetCursors
	c.mustBeTaken(ctx, p, in, KindTook)
	return nil
}

// StopHolder: SIGSTOP of the process that holds the first named lock, until
// another has written under it, and a while longer; then SIGCONT. The first must not think
// any more that it holds it, nor write under it (the rules see to that). Bound,
// should it have led: TTL + 2 s after it was resumed.
func StopHolder(ctx context.Context, c *Cluster, in *Injection, _ *process, _ Belief) error {
	return c.stopHolder(ctx, in, func(p *process) {
		c.mustBeTaken(ctx, p, in, KindWrote)
		sleep(ctx, time.Duration(c.random.Int64N(int64(c.TTL)))/4)
	})
}

// StopHolderShort: SIGSTOP of the process that holds the first named lock for
// so short a time that it may still hold it, or for a little longer. Bound: that
// of StopHolder.
func StopHolderShort(ctx context.Context, c *Cluster, in *Injection, _ *process, _ Belief) error {
	return c.stopHolder(ctx, in, func(*process) {
		ttl := c.lockTTL()
		sleep(ctx, ttl/4+time.Duration(c.random.Int64N(int64(ttl/2))))
	})
}

func (c *Cluster) stopHolder(ctx context.Context, in *Injection, while func(*process)) error {
	p, err := c.holder(ctx)
	if p == nil {
		return err
	}
	defer p.resume()
	if err := c.freeze(ctx, p); err != nil {
		return err
	}
	in.From, in.Bound = bootTime(), c.boundTTL()
	while(p)
	p.resume()
	return nil
}

// holder waits for a process that holds the first named lock.
func (c *Cluster) holder(ctx context.Context) (holder *process, err error) {
	if !c.Locks {
		return nil, fmt.Errorf("%w: there are no named locks", errCannotInject)
	}
	if !await(ctx, c.settleLimit(), func() bool {
		holder = c.holderNow()
		return holder != nil
	}) {
		return nil, fmt.Errorf("nobody holds lock %q", lockNames[0])
	}
	return holder, nil
}

// mustBeTaken waits until another process has taken the first named lock since
// the fault, or has written under it, and notes a problem if none does for long.
func (c *Cluster) mustBeTaken(ctx context.Context, p *process, in *Injection, kind Kind) {
	taken := func() bool {
		return slices.ContainsFunc(c.running(), func(q *process) bool {
			return q != p && slices.ContainsFunc(lastRecords(q.file("locks")), func(r Record) bool {
				return r.Kind == kind && r.Job == lockNames[0] && r.At > in.From
			})
		})
	}
	if !await(ctx, c.settleLimit(), taken) {
		in.note("nobody has taken lock %q after %s", lockNames[0], p.name)
	}
}

func (c *Cluster) holderNow() *process {
	for _, p := range c.running() {
		if p.holds(lockNames[0]) {
			return p
		}
	}
	return nil
}

// holds reports whether the process has just written down that it holds a lock.
func (p *process) holds(name string) bool {
	for _, r := range lastRecords(p.file("locks")) {
		if r.Job == name {
			return (r.Kind == KindTook || r.Kind == KindHolds) && bootTime()-r.At < freshBelief
		}
	}
	return false
}

// step notes that a clock was set that named locks and queues are judged by.
func (c *Cluster) step(s Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stepped = append(c.stepped, s)
}
