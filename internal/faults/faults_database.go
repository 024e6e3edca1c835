//go:build linux

package faults

import (
	"context"
	"time"
)

// BlockPart: a foreign process holds the write lock for 0.4 TTL. Bound: the
// leader stays, in the same term. (Half a TTL is survived at the default
// settings; at a TTL of two seconds the fixed busy time-out weighs too much.) It holds some
// tables already while it waits for others, a second if that is a deadlock: such a wait counts.
func BlockPart(ctx context.Context, c *Cluster, in *Injection, _ *process, b Belief) error {
	since := bootTime()
	unblock, err := c.db.Block(ctx)
	if err != nil {
		return err
	}
	left := since + c.TTL*2/5 - bootTime()
	sleep(ctx, left)
	unblock()
	if left < 0 {
		in.To, in.Bound = bootTime(), c.boundTTL()
		return nil
	}
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// BlockBeyond: a foreign process holds the write lock for more than a TTL. At
// the renew deadline the leader must step down. Bound: TTL + 2 s after the
// lock is free.
func BlockBeyond(ctx context.Context, c *Cluster, in *Injection, _ *process, _ Belief) error {
	unblock, err := c.db.Block(ctx)
	if err != nil {
		return err
	}
	defer func() {
		unblock()
		in.To, in.Bound = bootTime(), c.boundTTL()
	}()
	sleep(ctx, c.outage())
	c.mustBeNobody(in)
	return nil
}

// edit returns the fault of an edit that takes the row from its holder, while
// that is stopped for a moment and cannot notice. Nobody may lead before it
// has; it must step down at its next heartbeat. Bound: TTL + 2 s.
func edit(e Edit) inject {
	return onLeader(func(ctx context.Context, c *Cluster, in *Injection, p *process,
		b Belief) error {
		return c.whileStopped(ctx, in, p, b, func() error { return c.db.Edit(ctx, e) })
	})
}

func (c *Cluster) whileStopped(ctx context.Context, in *Injection, p *process, b Belief,
	do func() error) error {
	if err := c.freeze(ctx, p); err != nil {
		return err
	}
	defer p.resume()
	if err := do(); err != nil {
		return err
	}
	sleep(ctx, c.TTL/4)
	if next, b := c.leader(); next != nil && next != p {
		in.note("%s leads in term %d, although the leader before may still do so", next.name,
			b.Term)
	}
	p.resume()
	in.To, in.Bound = bootTime(), c.boundTTL()
	c.mustStepDown(ctx, in, p, b, "its row was taken away")
	return nil
}

// harmless returns the fault of an edit that leaves the row to its holder: ownership is token
// and term, stamps decide nothing, the TTL is in the history too. Then the leader is stopped
// for a part of its TTL: whatever stands in the row now, nobody may take it for dead. Bound:
// the leader stays.
func harmless(e Edit) inject {
	return onLeader(func(ctx context.Context, c *Cluster, in *Injection, p *process,
		b Belief) error {
		if err := c.db.Edit(ctx, e); err != nil {
			return err
		}
		return StopShort(ctx, c, in, p, b)
	})
}

// ClockOfLeader: the wall clock of the leader is set an hour ahead, or back,
// and after a while right again. Bound: it stays the leader, in the same term,
// and no run starts twice. (While the clock is behind what the ledger has seen
// jobs wait, by design; so afterwards the cursors are deleted.)
func ClockOfLeader(ctx context.Context, c *Cluster, in *Injection, p *process, b Belief) error {
	return c.stepClocks(ctx, in, b, []int{p.slot})
}

// ClockOfAll is ClockOfLeader for all processes, one after the other.
func ClockOfAll(ctx context.Context, c *Cluster, in *Injection, _ *process, b Belief) error {
	return c.stepClocks(ctx, in, b, c.random.Perm(c.Processes))
}

func (c *Cluster) stepClocks(ctx context.Context, in *Injection, b Belief, slots []int) error {
	for _, offset := range []time.Duration{c.hour(), 0} {
		for _, slot := range slots {
			c.steer(slot, func(s *Control) { s.Clock = offset })
			sleep(ctx, heed)
		}
		sleep(ctx, 3*c.Heartbeat)
	}
	in.Keeps, in.Bound, in.idle = b.Term, c.Heartbeat, true
	in.after = c.forgetCursors
	return nil
}

// hour is one, forward or back.
func (c *Cluster) hour() time.Duration {
	if c.random.IntN(2) == 0 {
		return -time.Hour
	}
	return time.Hour
}

// forgetCursors makes jobs that wait for a time in the future run again.
func (c *Cluster) forgetCursors(ctx context.Context) error {
	since := bootTime()
	if err := c.db.Edit(ctx, editJobs); err != nil {
		return err
	}
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
	p.terminate() // it keeps its cursors in memory
	_, err = c.settle(ctx, since, false)
	return err
}

// ExhaustPool: all connections of the pool that the lock shares with the app
// are in use, in every process, for a TTL. Bound: the leader stays, and works.
func ExhaustPool(ctx context.Context, c *Cluster, in *Injection, _ *process, b Belief) error {
	c.exhaustAll(true)
	defer c.exhaustAll(false)
	sleep(ctx, c.TTL)
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// ExhaustPoolKill is ExhaustPool with a kill -9 of the leader meanwhile; the
// next one finds the pool exhausted. Bound: that of KillLeader, and it works.
func ExhaustPoolKill(ctx context.Context, c *Cluster, in *Injection) error {
	c.exhaustAll(true)
	in.after = func(context.Context) error { c.exhaustAll(false); return nil }
	sleep(ctx, 100*time.Millisecond)
	return onLeader(KillLeader)(ctx, c, in)
}

func (c *Cluster) exhaustAll(on bool) {
	for slot := range c.Processes {
		c.steer(slot, func(s *Control) { s.Exhaust = on })
	}
}
