//go:build linux

package faults

import (
	"context"
	"fmt"
	"time"
)

// A replicated server can be followed by a replica, which takes its place at a fail-over.
type replicated interface {
	server

	// follow makes a replica, and waits until it has all that the server has.
	follow(ctx context.Context, c *Cluster) (replica, error)

	// failOver kills the server, promotes the replica, and leads everybody to it.
	failOver(replica)
}

// A replica follows a server.
type replica interface {
	// caughtUp waits until the replica has all that the server has now.
	caughtUp(ctx context.Context, c *Cluster) error

	// detach ends the stream to the replica. What is committed from now on is lost.
	detach(ctx context.Context, c *Cluster) error
}

// followed returns the server under test and a replica of it; errCannotInject if it can have
// none.
func (c *Cluster) followed(ctx context.Context) (replicated, replica, error) {
	s, ok := c.db.(replicated)
	if !ok {
		return nil, nil, fmt.Errorf("%w: the database has no replica", errCannotInject)
	}
	r, err := s.follow(ctx, c)
	return s, r, err
}

// PromoteLosingBeats: the primary dies, and a replica that misses its last
// heartbeats and runs is promoted. The leader may stay. Bound: TTL + 2 s.
func PromoteLosingBeats(ctx context.Context, c *Cluster, in *Injection) error {
	s, replica, err := c.followed(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	if err := replica.detach(ctx, c); err != nil {
		return err
	}
	c.sleep(ctx, 3*c.Heartbeat)
	s.failOver(replica)
	// a run may start a moment after its decision
	c.promoted(Span{in.From, bootTime() + 500*time.Millisecond})
	in.Bound = c.boundTTL()
	return nil
}

// PromoteLosingTerm: the leader is killed after the replica has lost the
// stream; another leads, of whom the replica knows nothing when it is
// promoted. That one must step down, and the next term be higher. Bound: TTL +
// 2 s.
func PromoteLosingTerm(ctx context.Context, c *Cluster, in *Injection) error {
	s, replica, err := c.followed(ctx)
	if err != nil {
		return err
	}
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	if err := replica.detach(ctx, c); err != nil {
		return err
	}
	p.kill()
	next, lost, err := c.other(ctx, p, c.settleLimit())
	if err != nil {
		return err
	}
	c.sleep(ctx, 2*c.Heartbeat)
	s.failOver(replica)
	c.promoted(Span{in.From, bootTime() + 500*time.Millisecond})
	in.Bound = c.boundTTL()
	if !c.await(ctx, c.TTL, func() bool {
		b, leads := next.leads()
		return !leads || b.Term != lost.Term
	}) {
		in.note("%s still leads a TTL after its acquisition was lost", next.name)
	}
	return nil
}
