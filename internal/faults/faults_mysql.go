//go:build linux

package faults

import (
	"context"
	"fmt"
	"os"
)

// ChangeBehindReader: somebody alters the table of the lock row for more than a TTL, as a
// transaction that has read it stays open. All others wait behind that. At the end nobody
// leads. Bound: TTL + 2 s after the transaction has ended.
func ChangeBehindReader(ctx context.Context, c *Cluster, in *Injection, s *mysqlServer,
	_ *process, _ Belief) error {
	if s.galera() {
		return fmt.Errorf("%w: Galera ends the reader", errCannotInject)
	}
	end, err := block(ctx, s.dbs[0], `USE `+myDatabase, `START TRANSACTION`,
		`SELECT count(*) FROM scheduler_lock`)
	if err != nil {
		return err
	}
	changed := make(chan error, 1)
	go func() {
		changed <- execOn(ctx, s.dbs[0], `USE `+myDatabase,
			`ALTER TABLE scheduler_lock COMMENT = 'altered'`)
	}()
	sleep(ctx, c.outage())
	c.mustBeNobody(in)
	select {
	case err := <-changed:
		in.note("the table was altered although it was read, or was not: %v", err)
		end()
	default:
		end()
		err = <-changed
	}
	in.Bound = c.boundTTL()
	return err
}

// SwitchOver: somebody makes the server read-only, and promotes its replica, while the leader still
// comes to the old one, where its user may write. It must step down before another leads at the
// promoted one. Bound: TTL + 2 s.
func SwitchOver(ctx context.Context, c *Cluster, in *Injection, s *mysqlServer, r myReplica,
	p *process, b Belief) error {
	if err := s.exec(ctx, `SET GLOBAL read_only = 1`); err != nil {
		return err
	}
	if err := r.caughtUp(ctx); err != nil {
		return err
	}
	old := s.nodes[0]
	s.promote(r, s.proxies[p.slot])
	_, _, err := c.other(ctx, p)
	c.mustStepDown(ctx, in, p, b, "another leads at the promoted server")
	c.promoted(Span{in.From, bootTime() + late})
	s.proxies[p.slot].LeadTo(r.now.Address())
	s.proxies[p.slot].End()
	old.Kill(s.t)
	_ = os.RemoveAll(old.Data())
	in.Bound = c.boundTTL()
	return err
}
