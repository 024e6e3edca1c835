//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// PartitionLeader: nothing passes between the leader and the server for more
// than a TTL. It steps down at its renew deadline, a standby leads only after
// that, a TTL after the last heartbeat at the earliest, and stays the leader when
// what was sent meanwhile arrives. Bound: TTL + 2 s from the partition.
func PartitionLeader(ctx context.Context, c *Cluster, in *Injection, s server) error {
	return c.cutOff(ctx, in, s, func(*proxy) {})
}

// cutOff does more once nothing passes.
func (c *Cluster) cutOff(ctx context.Context, in *Injection, s server, more func(*proxy)) error {
	p, beat, err := c.nextBeat(ctx)
	if err != nil {
		return err
	}
	sleep(ctx, time.Duration(c.random.Int64N(int64(c.Heartbeat))))
	in.From = bootTime()
	in.To, in.Bound = in.From, c.boundTTL()
	s.become(network{Hole: true}, p.slot)
	defer s.become(network{}, p.slot)
	more(s.proxy(p.slot))
	next, b, err := c.other(ctx, p)
	if err != nil {
		return err
	}
	if _, leads := p.leads(); leads {
		in.note("%s leads while it can reach no server, and %s too", p.name, next.name)
	}
	if early := b.First.After - beat; early < c.TTL {
		in.early("%s led only %v after a heartbeat of its predecessor, which was cut off; "+
			"the TTL is %v", next.name, early, c.TTL)
	}
	sleep(ctx, c.TTL/4)
	s.become(network{}, p.slot)
	sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, in, next, b)
	return nil
}

// nextBeat waits for the next heartbeat of whoever leads, and returns who that
// is, and a moment shortly before the heartbeat.
func (c *Cluster) nextBeat(ctx context.Context) (p *process, before time.Duration, err error) {
	var last Row
	if !await(ctx, c.settleLimit(), func() bool {
		asked := bootTime()
		row, held, err := c.db.Row(ctx)
		if err != nil || !held {
			return false
		}
		leader, b := c.leader()
		if leader != nil && b.Term == row.Term && row.Term == last.Term && row.Beat != last.Beat {
			p = leader
			return true
		}
		last, before = row, asked
		return false
	}) {
		return nil, 0, errors.New("nobody leads and sends heartbeats")
	}
	return p, before, nil
}

// idleTimeouts are of what an administrator may have set idle_session_timeout.
var idleTimeouts = []string{`ROLE ` + pgRole, `DATABASE ` + pgDatabase, `SYSTEM`}

// IdleTimeout is PartitionLeader on a server that ends idle sessions after two
// heartbeats: that of the role, the database or the server, set before the
// leader's session began or, the server's, after that.
func IdleTimeout(ctx context.Context, c *Cluster, in *Injection, s *postgresServer, p *process,
	_ Belief) error {
	if err := c.sessions(ctx); err != nil {
		return err
	}
	way := c.random.IntN(len(idleTimeouts) + 1)
	of := `ALTER ` + idleTimeouts[min(way, len(idleTimeouts)-1)]
	if err := s.exec(ctx, fmt.Sprintf(`%s SET idle_session_timeout = '%d ms'`, of,
		(2*c.Heartbeat).Milliseconds()), `SELECT pg_reload_conf()`); err != nil {
		return err
	}
	defer func() {
		if err := s.exec(context.WithoutCancel(ctx), of+` RESET idle_session_timeout`,
			`SELECT pg_reload_conf()`); err != nil {
			in.note("%v", err)
		}
	}()
	if way < len(idleTimeouts) { // else the session is older than the time-out
		if err := s.terminate(ctx, p); err != nil {
			return err
		}
	}
	return PartitionLeader(ctx, c, in, s) // once it is back
}

// become lets the network of some slots, or of all, be like that for a while.
func (c *Cluster) become(ctx context.Context, in *Injection, s server, n network,
	d time.Duration, slots ...int) {
	in.Muted = true
	s.become(n, slots...)
	sleep(ctx, d)
	s.become(network{}, slots...)
}

// PartitionStandby: the same for a standby. Bound: the leader stays.
func PartitionStandby(ctx context.Context, c *Cluster, in *Injection, s server, p *process,
	b Belief) error {
	slot := (p.slot + 1 + c.random.IntN(c.Processes-1)) % c.Processes
	c.become(ctx, in, s, network{Hole: true}, c.outage(), slot)
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// PartitionAll: nobody reaches the server for more than a TTL. Bound: TTL + 2 s
// after it is healed.
func PartitionAll(ctx context.Context, c *Cluster, in *Injection, s server) error {
	in.Muted = true
	s.become(network{Hole: true})
	sleep(ctx, c.outage())
	c.mustBeNobody(in)
	s.become(network{})
	in.Bound = c.boundTTL()
	return nil
}

// PartitionShort: the leader does not reach the server for a quarter of the
// TTL. Bound: it stays the leader.
func PartitionShort(ctx context.Context, c *Cluster, in *Injection, s server, p *process,
	b Belief) error {
	c.become(ctx, in, s, network{Hole: true}, c.TTL/4, p.slot)
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// StopInHeartbeat: SIGSTOP of the leader while the answer to a heartbeat is on its way, which has
// arrived when it is resumed, after a third of the TTL. Bound: it stays the leader, unless a
// starved machine has made the heartbeat so late that the renew deadline may have passed.
func StopInHeartbeat(ctx context.Context, c *Cluster, in *Injection, s server, _ *process,
	_ Belief) error {
	p, beat, err := c.nextBeat(ctx)
	if err != nil {
		return err
	}
	_, b := c.leader()
	passed := make(chan struct{})
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
	sleep(ctx, c.TTL/3)
	p.resume()
	in.Bound = c.TTL / 4
	c.keeps(in, b, beat)
	return nil
}

// Delay: every answer comes 2 s after its request, for more than a TTL. Nobody
// need lead meanwhile. Bound: TTL + 2 s after it is healed, and 2 s for what
// was on its way.
func Delay(ctx context.Context, c *Cluster, in *Injection, s server) error {
	c.become(ctx, in, s, network{Delay: time.Second}, c.outage()+2*time.Second)
	in.Bound = c.boundTTL() + 2*time.Second
	return nil
}

// LoseAnswers: for a TTL some requests arrive, but their answers do not, and
// the connection is cut. Nobody need lead meanwhile. Bound: TTL + 2 s.
func LoseAnswers(ctx context.Context, c *Cluster, in *Injection, s server) error {
	c.become(ctx, in, s, network{Lossy: true}, c.TTL)
	in.Bound = c.boundTTL()
	return nil
}
