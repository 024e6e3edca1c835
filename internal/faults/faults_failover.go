//go:build linux

package faults

import (
	"context"
	"time"
)

// A replicated server can be followed by a replica, which takes its place at a fail-over.
type replicated interface {
	server

	// follow makes a replica, and waits until it has all that the server has.
	follow(ctx context.Context) (replica, error)

	// failOver kills the server, promotes the replica, and leads everybody to it.
	failOver(replica)
}

// A replica follows a server.
type replica interface {
	// caughtUp waits until the replica has all that the server has now.
	caughtUp(ctx context.Context) error

	// detach ends the stream to the replica. What is committed from now on is lost.
	detach(ctx context.Context) error
}

// onReplica is a fault of the leader and of a server of which there is a replica.
func onReplica[S replicated, R replica](do func(ctx context.Context, c *Cluster, in *Injection,
	s S, r R, p *process, b Belief) error) inject {
	return onDB(func(ctx context.Context, c *Cluster, in *Injection, s S) error {
		r, err := s.follow(ctx)
		if err != nil {
			return err
		}
		in.From = bootTime()
		return onLeader(func(ctx context.Context, c *Cluster, in *Injection, p *process,
			b Belief) error {
			return do(ctx, c, in, s, r.(R), p, b)
		})(ctx, c, in)
	})
}

// late is how long after its decision a run may start.
const late = 500 * time.Millisecond

// PromoteLosingBeats: the primary dies, and a replica that misses its last
// heartbeats and runs is promoted. The leader may stay. Bound: TTL + 2 s.
func PromoteLosingBeats(ctx context.Context, c *Cluster, in *Injection, s replicated, r replica,
	_ *process, _ Belief) error {
	if err := r.detach(ctx); err != nil {
		return err
	}
	sleep(ctx, 3*c.Heartbeat)
	s.failOver(r)
	c.promoted(Span{in.From, bootTime() + late})
	in.Bound = c.boundTTL()
	return nil
}

// PromoteLosingTerm: the leader is killed after the replica has lost the
// stream; another leads, of whom the replica knows nothing when it is
// promoted. That one must step down, and the next term be higher. Bound: TTL +
// 2 s.
func PromoteLosingTerm(ctx context.Context, c *Cluster, in *Injection, s replicated, r replica,
	p *process, _ Belief) error {
	if err := r.detach(ctx); err != nil {
		return err
	}
	p.kill()
	next, lost, err := c.other(ctx, p)
	if err != nil {
		return err
	}
	sleep(ctx, 2*c.Heartbeat)
	s.failOver(r)
	c.promoted(Span{in.From, bootTime() + late})
	in.Bound = c.boundTTL()
	c.mustStepDown(ctx, in, next, lost, "its acquisition was lost")
	return nil
}
