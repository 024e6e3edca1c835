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

// restart is a restart of the server, fast or, if hard, immediate. Where it is shorter than
// what the renew deadline leaves, the leader stays. Bound: that, or TTL + 2 s.
func restart(hard bool) inject {
	return onBoth(func(_ context.Context, c *Cluster, in *Injection, s server, _ *process,
		b Belief) error {
		from := bootTime()
		s.halt(hard)
		s.start()
		in.Bound = c.boundTTL()
		// A pooler itself waits for a second before it logs in again.
		if most := c.TTL / 4; !s.pooled() && bootTime()-from < c.sightOr(most) {
			in.Keeps = b.Term
		}
		return nil
	})
}

// sightOr is for how long a leader may not see its session, with a margin; d
// where it does not watch one.
func (c *Cluster) sightOr(d time.Duration) time.Duration {
	if c.Grace == 0 {
		return d
	}
	return min(d, c.Grace/4)
}

// StopServer: the server is away for more than a TTL. At the end nobody leads.
// Bound: TTL + 2 s after it is back.
func StopServer(ctx context.Context, c *Cluster, in *Injection, s server) error {
	s.halt(c.random.IntN(2) == 0)
	sleep(ctx, c.outage())
	c.mustBeNobody(in)
	s.start()
	in.Bound = c.boundTTL()
	return nil
}

// terminateBackends: the server ends all sessions, or the leader's. Bound: the leader
// stays; behind a pooler, which waits before it logs in again, TTL + 2 s.
func terminateBackends(times int, ofLeader bool) inject {
	return onBoth(func(ctx context.Context, c *Cluster, in *Injection, s server, p *process,
		b Belief) error {
		if !ofLeader {
			p = nil
		}
		for n := range times {
			if n > 0 {
				sleep(ctx, c.TTL/20)
			}
			if err := s.terminate(ctx, p); err != nil {
				return err
			}
		}
		if in.Bound = c.boundTTL(); !s.pooled() {
			in.Keeps, in.Bound = b.Term, c.TTL/4
		}
		return nil
	})
}

// sessions returns errCannotInject unless the end of the leader's session is a sign.
func (c *Cluster) sessions(ctx context.Context) error {
	row, _, err := c.db.Row(ctx)
	if err == nil && !row.Session {
		err = fmt.Errorf("%w: the end of the leader's session is no sign", errCannotInject)
	}
	return err
}

// TerminateAlways: the leader's session is ended every 200 ms, for two graces; on a starved machine
// not before the leader has had the time for a heartbeat. Answers are lost with the sessions: the
// leader asks on the next one what was committed. The leader stays.
func TerminateAlways(ctx context.Context, c *Cluster, in *Injection, s server, p *process,
	b Belief) error {
	if err := c.sessions(ctx); err != nil {
		return err
	}
	in.Muted = true
	for end := bootTime() + 2*c.Grace; bootTime() < end; {
		row, _, err := s.Row(ctx)
		if err == nil {
			err = s.terminate(ctx, p)
		}
		if err != nil {
			return err
		}
		sleep(ctx, 200*time.Millisecond)
		await(ctx, c.TTL/4, func() bool {
			now, _, err := s.Row(ctx)
			return err == nil && now.Beat != row.Beat
		})
	}
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// StopSessionEnded: SIGSTOP of the leader, whose session is ended meanwhile,
// until another leads and a while longer; then SIGCONT. The other must not lead
// before the grace has passed, and stay the leader. Bound: grace + 2 s.
func StopSessionEnded(ctx context.Context, c *Cluster, in *Injection, s server, p *process,
	_ Belief) error {
	if err := c.sessions(ctx); err != nil {
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
	next, b, err := c.other(ctx, p)
	if err != nil {
		return err
	}
	if early := b.First.After - in.From; early < c.Grace {
		in.early("%s led only %v after the session of its predecessor had ended; the grace is %v",
			next.name, early, c.Grace)
	}
	sleep(ctx, time.Duration(c.random.Int64N(int64(c.Grace))))
	p.resume()
	sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, in, next, b)
	return nil
}

// ExhaustServer: foreign sessions take all connections that the server allows,
// and the leader's are terminated, for more than a TTL. Who has a connection
// may lead. Bound: TTL + 2 s after they are gone.
func ExhaustServer(ctx context.Context, c *Cluster, in *Injection, s server, p *process,
	_ Belief) error {
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
				sleep(ctx, 50*time.Millisecond)
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
func ClockOfServer(ctx context.Context, c *Cluster, in *Injection, s server, _ *process,
	b Belief) error {
	for _, ahead := range []time.Duration{c.hour(), 0} {
		if err := s.setClock(ctx, ahead); err != nil {
			return err
		}
		sleep(ctx, 3*c.Heartbeat)
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
func FillServerDisk(ctx context.Context, c *Cluster, in *Injection, s server, p *process,
	_ Belief) error {
	disk, sees := s.smallDisk()
	if disk == "" {
		return fmt.Errorf("%w: needs a small file system, which only root can mount",
			errCannotInject)
	}
	if _, ok := s.(*mysqlServer); ok {
		p.expect() // a job of it may wait in a COMMIT, and then OnStuck ends the process
	}
	ballast := filepath.Join(disk, "ballast")
	if err := fill(ballast); err != nil {
		return err
	}
	for until := bootTime() + c.outage(); bootTime() < until; sleep(ctx, 100*time.Millisecond) {
		_ = s.write(ctx)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	written := false
	await(ctx, sees, func() bool {
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
