//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// The faults of three servers under Patroni. What an asynchronous standby has not
// received yet is lost; a synchronous one loses nothing that was acknowledged.
var patroniFaults = []Fault{
	patroniFault("Patroni: switch-over", switchOver),
	patroniFault("Patroni: kill -9 of the primary", killPrimary(false)),
	patroniFault("Patroni: kill -9 of the primary and of Patroni", killPrimary(true)),
}

// asynchronousFaults need a standby that lags.
var asynchronousFaults = []Fault{
	patroniFault("Patroni: the last acquisition lost", loseAcquisition),
}

func patroniFault(name string, do func(context.Context, *Cluster, *Injection,
	*postgresServer) error) Fault {
	return Fault{Name: name, Restore: true, Alone: true, Inject: onDB(func(ctx context.Context,
		c *Cluster, in *Injection, s *postgresServer) error {
		s.patroni.AwaitWhole(s.synchronous)
		return do(ctx, c, in, s)
	})}
}

// TestPatroni lets Patroni make other servers the primary, again and again.
func TestPatroni(t *testing.T) {
	if *patroniFlag == 0 {
		t.Skip("-faults.patroni=10 does each of them ten times, in some 15 min")
	}
	run := newTestRun(t)
	var together together
	for n, synchronous := range []bool{false, true} {
		faults, name := patroniFaults, "synchronous"
		if !synchronous {
			faults, name = append(asynchronousFaults, faults...), "asynchronous"
		}
		g := group{name: name, on: onPatroni, synchronous: synchronous}
		together.run(t, name, func(t *testing.T) {
			run.with(t, g, 400+n, func(ctx context.Context, c *Cluster) (map[string]error, error) {
				for i := range *patroniFlag {
					for _, f := range faults {
						c.Logf("%d: %s", i+1, f.Name)
						if err := c.Inject(ctx, f); err != nil {
							return nil, fmt.Errorf("%s: %w", f.Name, err)
						}
					}
				}
				return nil, nil
			})
		})
	}
	together.Wait()
}

// A switch-over stops the old primary in order, so nothing is lost.
func switchOver(_ context.Context, c *Cluster, in *Injection, s *postgresServer) error {
	s.patroni.SwitchOver()
	in.To, in.Bound = bootTime(), c.boundTTL()
	return nil
}

func killPrimary(machine bool) func(context.Context, *Cluster, *Injection, *postgresServer) error {
	return func(_ context.Context, c *Cluster, in *Injection, s *postgresServer) error {
		from := bootTime()
		s.patroni.KillPrimary(machine)
		in.To, in.Bound = bootTime(), c.boundTTL()
		if !s.synchronous { // what was on its way at the kill is lost
			c.promoted(Span{from - late, bootTime() + late})
		}
		return nil
	}
}

// loseAcquisition kills the primary when a leader leads of whom no standby knows.
// That one must step down, and the next term be higher.
func loseAcquisition(ctx context.Context, c *Cluster, in *Injection, s *postgresServer) error {
	p, before, err := c.target(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	s.patroni.StopSending()
	p.kill()
	next, lost, err := c.other(ctx, p)
	if err != nil {
		return err
	}
	if lost.Term <= before.Term {
		return errors.New("no new term")
	}
	s.patroni.KillPrimary(false)
	in.To, in.Bound = bootTime(), c.boundTTL()
	c.promoted(Span{in.From, bootTime() + late})
	c.mustStepDown(ctx, in, next, lost, "its acquisition was lost")
	_, b, err := c.target(ctx)
	if err == nil && b.Term <= lost.Term {
		in.note("term %d after the lost term %d", b.Term, lost.Term)
	}
	return err
}
