//go:build linux

package faults

import (
	"context"
	"fmt"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// PartitionLeader: nothing passes between the leader and the server for more
// than a TTL. It steps down at its renew deadline, a standby leads only after
// that, and stays the leader when what was sent meanwhile arrives. Bound: TTL +
// 2 s from the partition.
func PartitionLeader(ctx context.Context, c *Cluster, in *Injection) error {
	return c.cutOff(ctx, in, func(*proxy) {})
}

// cutOff does more once nothing passes.
func (c *Cluster) cutOff(ctx context.Context, in *Injection, more func(*proxy)) error {
	s, p, _, err := c.led(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	in.To, in.Bound = in.From, c.boundTTL()
	s.become(network{Hole: true}, p.slot)
	defer s.become(network{}, p.slot)
	more(s.proxy(p.slot))
	next, b, err := c.other(ctx, p, c.settleLimit())
	if err != nil {
		return err
	}
	if _, leads := p.leads(); leads {
		in.note("%s leads while it can reach no server, and %s too", p.name, next.name)
	}
	// The last heartbeat may be as old as the interval.
	if early := b.First.After - in.From; early < c.TTL-c.Heartbeat-100*time.Millisecond {
		in.early("%s led only %v after its predecessor was cut off; the TTL is %v", next.name,
			early, c.TTL)
	}
	c.sleep(ctx, c.TTL/4)
	s.become(network{}, p.slot)
	c.sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, next, b, in)
	return nil
}

// idleTimeouts are how an administrator may have set idle_session_timeout.
var idleTimeouts = []struct{ set, reset string }{
	{`ALTER ROLE ` + pgRole + ` SET idle_session_timeout = '%dms'`,
		`ALTER ROLE ` + pgRole + ` RESET idle_session_timeout`},
	{`ALTER DATABASE ` + pgDatabase + ` SET idle_session_timeout = '%dms'`,
		`ALTER DATABASE ` + pgDatabase + ` RESET idle_session_timeout`},
	{`ALTER SYSTEM SET idle_session_timeout = '%dms'`, `ALTER SYSTEM RESET idle_session_timeout`},
}

// IdleTimeout is PartitionLeader on a server that ends idle sessions after two
// heartbeats: that of the role, the database or the server, set before the
// leader's session began or, the server's, after that.
func IdleTimeout(ctx context.Context, c *Cluster, in *Injection) error {
	if _, err := c.sessions(ctx); err != nil {
		return err
	}
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
	s, err := c.postgres()
	if err != nil {
		return err
	}
	way := c.random.IntN(len(idleTimeouts) + 1)
	idle := idleTimeouts[min(way, len(idleTimeouts)-1)]
	if err := s.exec(ctx, fmt.Sprintf(idle.set, (2*c.Heartbeat).Milliseconds()),
		`SELECT pg_reload_conf()`); err != nil {
		return err
	}
	defer func() {
		if err := s.exec(context.WithoutCancel(ctx), idle.reset,
			`SELECT pg_reload_conf()`); err != nil {
			in.note("%v", err)
		}
	}()
	if way < len(idleTimeouts) { // else the session is older than the time-out
		if err := s.terminate(ctx, p); err != nil {
			return err
		}
		c.sleep(ctx, 2*c.Heartbeat) // until it is back
	}
	return PartitionLeader(ctx, c, in)
}

// PartitionStandby: the same for a standby. Bound: the leader stays.
func PartitionStandby(ctx context.Context, c *Cluster, in *Injection) error {
	s, p, b, err := c.led(ctx)
	if err != nil {
		return err
	}
	slot := (p.slot + 1 + c.random.IntN(c.Processes-1)) % c.Processes
	in.Muted = true
	s.become(network{Hole: true}, slot)
	c.sleep(ctx, c.outage())
	s.become(network{}, slot)
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// PartitionAll: nobody reaches the server for more than a TTL. Bound: TTL + 2 s
// after it is healed.
func PartitionAll(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.server()
	if err != nil {
		return err
	}
	in.Muted = true
	s.become(network{Hole: true})
	c.sleep(ctx, c.outage())
	c.mustBeNobody(in)
	s.become(network{})
	in.Bound = c.boundTTL()
	return nil
}

// PartitionShort: the leader does not reach the server for a quarter of the
// TTL. Bound: it stays the leader.
func PartitionShort(ctx context.Context, c *Cluster, in *Injection) error {
	s, p, b, err := c.led(ctx)
	if err != nil {
		return err
	}
	in.Muted = true
	s.become(network{Hole: true}, p.slot)
	c.sleep(ctx, c.TTL/4)
	s.become(network{}, p.slot)
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// StopInHeartbeat: SIGSTOP of the leader while the answer to a heartbeat is on its way, which has
// arrived when it is resumed, after a third of the TTL. Bound: it stays the leader, unless a
// starved machine has made the heartbeat so late that the renew deadline may have passed.
func StopInHeartbeat(ctx context.Context, c *Cluster, in *Injection) error {
	s, p, b, err := c.led(ctx)
	if err != nil {
		return err
	}
	// The last success is older than this by a heartbeat at most.
	began, passed := time.Now(), make(chan struct{})
	s.become(network{HoldAfter: []byte(driver.StateLeading), Passed: passed}, p.slot)
	defer s.become(network{}, p.slot)
	select {
	case <-passed:
	case <-time.After(c.TTL): // it lost the lock meanwhile
		return nil
	}
	if err := c.freeze(ctx, p); err != nil {
		return err
	}
	defer p.resume()
	s.become(network{}, p.slot)
	c.sleep(ctx, c.TTL/3)
	p.resume()
	in.Bound = c.TTL / 4
	if time.Since(began)+c.Heartbeat < c.TTL*3/4 {
		in.Keeps = b.Term
	}
	return nil
}

// Delay: every answer comes 2 s after its request, for more than a TTL. Nobody
// need lead meanwhile. Bound: TTL + 2 s after it is healed, and 2 s for what
// was on its way.
func Delay(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.server()
	if err != nil {
		return err
	}
	in.Muted = true
	s.become(network{Delay: time.Second})
	c.sleep(ctx, c.outage()+2*time.Second)
	s.become(network{})
	in.Bound = c.boundTTL() + 2*time.Second
	return nil
}

// LoseAnswers: for a TTL some requests arrive, but their answers do not, and
// the connection is cut. Nobody need lead meanwhile. Bound: TTL + 2 s.
func LoseAnswers(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.server()
	if err != nil {
		return err
	}
	in.Muted = true
	s.become(network{Lossy: true})
	c.sleep(ctx, c.TTL)
	s.become(network{})
	in.Bound = c.boundTTL()
	return nil
}
