//go:build linux

package faults

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/mytest"
)

// GaleraFaults are those of the nodes of a cluster.
var GaleraFaults = []Fault{
	{Name: "node killed, and it joins again", Inject: onNode(false, killNode, rejoin), Alone: true},
	{Name: "the leader's node killed, and it joins again",
		Inject: onNode(true, killNode, rejoin), Alone: true},
	{Name: "the leader's node stopped past the TTL, SIGCONT",
		Inject: onNode(true, signalNode(unix.SIGSTOP), signalNode(unix.SIGCONT)), Alone: true},
	{Name: "the leader's node cut off from the others",
		Inject: onNode(true, isolate(1), isolate(0)), Alone: true},
	{Name: "nodes restarted one after the other", Inject: onDB(RollNodes), Alone: true},
}

// newGalera starts a node for each slot.
func newGalera(t testing.TB, slots int) (*mysqlServer, error) {
	s := &mysqlServer{t: t, nodes: mytest.Galera(t, slots, mytest.Quick...)}
	return s, s.prepare(slots)
}

// suspicion is how long nobody can write after a node has gone, until the others are sure;
// and for a joining node there are two more changes.
const suspicion = 5 * time.Second

// others are the nodes but one.
func (s *mysqlServer) others(slot int) (nodes []*mytest.Server) {
	for n, node := range s.nodes {
		if n != slot {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// onNode hurts one node for more than a TTL, the leader's or any. A leader there steps
// down at its renew deadline. Another leads after the TTL, which counts anew with each change
// of the cluster. Bound: TTL + 2 s, and what the nodes need to be sure, once it is back.
func onNode(ofLeader bool, hurt, heal func(*mysqlServer, int) error) inject {
	return onBoth(func(ctx context.Context, c *Cluster, in *Injection, s *mysqlServer,
		p *process, _ Belief) error {
		if !s.galera() {
			return errOneServer
		}
		slot := p.slot
		if !ofLeader {
			slot = c.random.IntN(len(s.nodes))
		}
		in.Bound = c.boundTTL() + suspicion
		s.gone.Store(int32(slot + 1))
		defer s.gone.Store(0)
		if err := hurt(s, slot); err != nil {
			return err
		}
		sleep(ctx, c.outage())
		if _, leads := p.leads(); leads && slot == p.slot {
			in.note("%s leads, although its node can have committed nothing for more than a TTL",
				p.name)
		}
		if err := heal(s, slot); err != nil {
			return err
		}
		if !await(ctx, 30*time.Second, func() bool { return s.answers(ctx, slot) }) {
			in.note("the node is not back")
		}
		return nil
	})
}

var errOneServer = fmt.Errorf("%w: there is one server", errCannotInject)

// answers reports whether a node takes part in the cluster.
func (s *mysqlServer) answers(ctx context.Context, slot int) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return execOn(ctx, s.dbs[slot], `SELECT count(*) FROM `+myDatabase+`.faults_writes`) == nil
}

func killNode(s *mysqlServer, slot int) error {
	s.nodes[slot].Kill(s.t)
	return nil
}

func rejoin(s *mysqlServer, slot int) error {
	s.nodes[slot].Rejoin(s.t, s.others(slot)...)
	return nil
}

// signalNode returns what sends a node a signal.
func signalNode(signal syscall.Signal) func(*mysqlServer, int) error {
	return func(s *mysqlServer, slot int) error {
		s.nodes[slot].Signal(s.t, signal)
		return nil
	}
}

// isolate cuts a node off from the others, but not from its clients.
func isolate(on int) func(*mysqlServer, int) error {
	return func(s *mysqlServer, slot int) error {
		_, err := s.dbs[slot].ExecContext(s.t.Context(), fmt.Sprintf(
			`SET GLOBAL wsrep_provider_options = 'gmcast.isolate=%d'`, on))
		return err
	}
}

// RollNodes: each node is stopped in good order and joins again, one after the other.
// Bound: as of one node, after the last.
func RollNodes(ctx context.Context, c *Cluster, in *Injection, s *mysqlServer) error {
	if !s.galera() {
		return errOneServer
	}
	for slot, node := range s.nodes {
		s.gone.Store(int32(slot + 1))
		node.Stop(s.t)
		node.Rejoin(s.t, s.others(slot)...)
		s.gone.Store(0)
		sleep(ctx, c.Heartbeat)
	}
	in.Bound = c.boundTTL() + suspicion
	return nil
}
