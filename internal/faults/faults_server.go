//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// restart is a restart of the server. Where it is shorter than what the renew
// deadline leaves, the leader stays. Bound: that, or TTL + 2 s.
func restart(do func(s server)) func(context.Context, *Cluster, *Injection) error {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		s, _, b, err := c.led(ctx)
		if err != nil {
			return err
		}
		from := bootTime()
		do(s)
		in.Bound = c.boundTTL()
		// A pooler itself waits for a second before it logs in again.
		if most := c.TTL / 4; !s.pooled() && bootTime()-from < c.sightOr(most) {
			in.Keeps = b.Term
		}
		return nil
	}
}

// sightOr is for how long a leader may not see its session, with a margin; d
// where it does not watch one.
func (c *Cluster) sightOr(d time.Duration) time.Duration {
	if c.Grace == 0 {
		return d
	}
	return min(d, c.Grace/4)
}

// The ways to restart a server.
var (
	RestartFast      = restart(func(s server) { s.halt(false); s.start() })
	RestartImmediate = restart(func(s server) { s.halt(true); s.start() })
)

// StopServer: the server is away for more than a TTL. At the end nobody leads.
// Bound: TTL + 2 s after it is back.
func StopServer(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.server()
	if err != nil {
		return err
	}
	s.halt(c.random.IntN(2) == 0)
	c.sleep(ctx, c.outage())
	c.mustBeNobody(in)
	s.start()
	in.Bound = c.boundTTL()
	return nil
}

func (c *Cluster) mustBeNobody(in *Injection) {
	if p, b := c.leader(); p != nil {
		in.note("%s leads in term %d, although no heartbeat can have succeeded for more than a TTL",
			p.name, b.Term)
	}
}

func terminateBackends(times int, ofLeader bool) func(context.Context, *Cluster, *Injection) error {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		s, p, b, err := c.led(ctx)
		if err != nil {
			return err
		}
		whose := p
		if !ofLeader {
			whose = nil
		}
		for n := range times {
			if n > 0 {
				c.sleep(ctx, c.TTL/20)
			}
			if err := s.terminate(ctx, whose); err != nil {
				return err
			}
		}
		if in.Bound = c.boundTTL(); !s.pooled() {
			in.Keeps, in.Bound = b.Term, c.TTL/4
		}
		return nil
	}
}

// The server ends all sessions, or the leader's. Bound: the leader
// stays; behind a pooler, which waits before it logs in again, TTL + 2 s.
var (
	TerminateAll     = terminateBackends(1, false)
	TerminateAgain   = terminateBackends(6, false)
	TerminateLeaders = terminateBackends(1, true)
)

// sessions returns the server if the end of the leader's session is a sign.
func (c *Cluster) sessions(ctx context.Context) (server, error) {
	s, err := c.server()
	if err != nil {
		return nil, err
	}
	row, ok, err := s.Row(ctx)
	if err == nil && (!ok || !row.Session) {
		err = fmt.Errorf("%w: the end of the leader's session is no sign", errCannotInject)
	}
	return s, err
}

// TerminateAlways: the leader's session is ended every 200 ms, for two graces.
// The leader stays.
func TerminateAlways(ctx context.Context, c *Cluster, in *Injection) error {
	return c.endSessions(ctx, 2*c.Grace, in)
}

// endSessions loses answers with the sessions: the leader asks on the next one what was committed.
func (c *Cluster) endSessions(ctx context.Context, d time.Duration, in *Injection) error {
	in.Muted = true
	p, b, err := c.target(ctx)
	if err != nil {
		return err
	}
	s, err := c.sessions(ctx)
	if err != nil {
		return err
	}
	for end := bootTime() + d; bootTime() < end; c.sleep(ctx, 200*time.Millisecond) {
		if err := s.terminate(ctx, p); err != nil {
			return err
		}
	}
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// StopSessionEnded: SIGSTOP of the leader, whose session is ended meanwhile,
// until another leads and a while longer; then SIGCONT. The other must not lead
// before the grace has passed, and stay the leader. Bound: grace + 2 s.
func StopSessionEnded(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	s, err := c.sessions(ctx)
	if err != nil {
		return err
	}
	if err := c.freeze(ctx, p); err != nil {
		return err
	}
	defer p.resume()
	in.From = bootTime()
	in.To, in.Bound = in.From, c.Grace+boundSession
	if err := s.terminate(ctx, p); err != nil {
		return err
	}
	next, b, err := c.other(ctx, p, c.settleLimit())
	if err != nil {
		return err
	}
	if early := b.First.After - in.From; early < c.Grace {
		in.early("%s led only %v after the session of its predecessor had ended; the grace is %v",
			next.name, early, c.Grace)
	}
	c.sleep(ctx, time.Duration(c.random.Int64N(int64(c.Grace))))
	p.resume()
	c.sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, next, b, in)
	return nil
}

// ExhaustServer: foreign sessions take all connections that the server allows,
// and the leader's are terminated, for more than a TTL. Who has a connection
// may lead. Bound: TTL + 2 s after they are gone.
func ExhaustServer(ctx context.Context, c *Cluster, in *Injection) error {
	s, p, _, err := c.led(ctx)
	if err != nil {
		return err
	}
	var idle []func()
	defer func() {
		for _, end := range idle {
			end()
		}
	}()
	refused := false
	hog := func(until time.Duration, enough func() bool) {
		for bootTime() < until && !enough() {
			end, err := s.foreign(ctx)
			if err != nil {
				refused = true
				c.sleep(ctx, 50*time.Millisecond)
				continue
			}
			idle = append(idle, end)
		}
	}
	hog(bootTime()+20*time.Second, func() bool { return refused })
	if !refused {
		return errors.New("the server refused no connection")
	}
	if err := s.terminate(ctx, p); err != nil {
		return err
	}
	hog(bootTime()+c.outage(), func() bool { return false })
	in.Bound = c.boundTTL()
	return nil
}

// ClockOfServer: the clock of the server is set an hour ahead, or back, and
// after a while right again. As ClockOfLeader.
func ClockOfServer(ctx context.Context, c *Cluster, in *Injection) error {
	s, _, b, err := c.led(ctx)
	if err != nil {
		return err
	}
	step := time.Hour
	if c.random.IntN(2) == 0 {
		step = -step
	}
	for _, ahead := range []time.Duration{step, 0} {
		if err := s.setClock(ctx, ahead); err != nil {
			return err
		}
		c.sleep(ctx, 3*c.Heartbeat)
	}
	c.step(Span{in.From, bootTime()})
	in.Keeps, in.Bound, in.idle = b.Term, c.Heartbeat, true
	in.after = c.forgetCursors
	return nil
}

// FillServerDisk: the file system of the server is full for more than a TTL,
// and its log has to grow: PostgreSQL crashes, and may not come up. MariaDB
// holds all transactions, and looks once a minute whether there is room; or it
// crashes too. Bound: TTL + 2 s after it runs and writes again.
func FillServerDisk(ctx context.Context, c *Cluster, in *Injection) error {
	s, p, _, err := c.led(ctx)
	if err != nil {
		return err
	}
	disk, sees := s.smallDisk()
	if disk == "" {
		return fmt.Errorf("%w: needs a small file system, which only root can mount",
			errCannotInject)
	}
	if _, err := c.mysql(); err == nil {
		p.expect() // a job of it may wait in a COMMIT, and then OnStuck ends the process
	}
	ballast := filepath.Join(disk, "ballast")
	if err := fill(ballast); err != nil {
		return err
	}
	for until := bootTime() + c.outage(); bootTime() < until; c.sleep(ctx, 100*time.Millisecond) {
		_ = s.write(ctx)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	written := false
	c.await(ctx, sees, func() bool {
		written = s.write(ctx) == nil
		return written || s.ended()
	})
	if !written {
		s.halt(true) // it may have given up
		s.start()
	}
	in.Bound = c.boundTTL()
	return nil
}
