//go:build linux

package faults

import (
	"context"
	"database/sql"
	"fmt"
	"syscall"
	"testing"
	"time"

	"example.com/schedlock/internal/mytest"
)

// GaleraFaults are those of the nodes of a cluster.
var GaleraFaults = []Fault{
	{Name: "node killed, and it joins again", Inject: KillNode, Alone: true},
	{Name: "the leader's node killed, and it joins again", Inject: KillNodeOfLeader, Alone: true},
	{Name: "the leader's node stopped past the TTL, SIGCONT", Inject: StopNodeOfLeader,
		Alone: true},
	{Name: "the leader's node cut off from the others", Inject: IsolateNodeOfLeader, Alone: true},
	{Name: "nodes restarted one after the other", Inject: RollNodes, Alone: true},
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
func onNode(ofLeader bool, hurt, heal func(*Cluster, *mysqlServer, int) error) func(context.Context,
	*Cluster, *Injection) error {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		s, err := c.mysql()
		if err != nil {
			return err
		}
		if !s.galera() {
			return fmt.Errorf("%w: there is one server", errCannotInject)
		}
		p, _, err := c.target(ctx)
		if err != nil {
			return err
		}
		slot := p.slot
		if !ofLeader {
			slot = c.random.IntN(len(s.nodes))
		}
		in.Bound = c.boundTTL() + suspicion
		s.gone.Store(int32(slot + 1))
		defer s.gone.Store(0)
		if err := hurt(c, s, slot); err != nil {
			return err
		}
		c.sleep(ctx, c.outage())
		if _, leads := p.leads(); leads && slot == p.slot {
			in.note("%s leads, although its node can have committed nothing for more than a TTL",
				p.name)
		}
		if err := heal(c, s, slot); err != nil {
			return err
		}
		if !c.await(ctx, 30*time.Second, func() bool { return s.answers(ctx, slot) }) {
			in.note("the node is not back")
		}
		return nil
	}
}

// answers reports whether a node takes part in the cluster.
func (s *mysqlServer) answers(ctx context.Context, slot int) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return on(ctx, s.dbs[slot], func(ctx context.Context, conn *sql.Conn) error {
		return execEach(ctx, conn, `SELECT count(*) FROM faults_writes`)
	}) == nil
}

func killNode(_ *Cluster, s *mysqlServer, slot int) error {
	s.nodes[slot].Kill(s.t)
	return nil
}

func rejoin(_ *Cluster, s *mysqlServer, slot int) error {
	s.nodes[slot].Rejoin(s.t, s.others(slot)...)
	return nil
}

// signalNode returns what sends a node a signal.
func signalNode(signal syscall.Signal) func(*Cluster, *mysqlServer, int) error {
	return func(_ *Cluster, s *mysqlServer, slot int) error {
		s.nodes[slot].Signal(s.t, signal)
		return nil
	}
}

// isolate cuts a node off from the others, but not from its clients.
func isolate(on int) func(*Cluster, *mysqlServer, int) error {
	return func(c *Cluster, s *mysqlServer, slot int) error {
		_, err := s.dbs[slot].ExecContext(s.t.Context(), fmt.Sprintf(
			`SET GLOBAL wsrep_provider_options = 'gmcast.isolate=%d'`, on))
		return err
	}
}

// The faults of one node.
var (
	KillNode         = onNode(false, killNode, rejoin)
	KillNodeOfLeader = onNode(true, killNode, rejoin)
	StopNodeOfLeader = onNode(true, signalNode(syscall.SIGSTOP),
		signalNode(syscall.SIGCONT))
	IsolateNodeOfLeader = onNode(true, isolate(1), isolate(0))
)

// RollNodes: each node is stopped in good order and joins again, one after the other.
// Bound: as of one node, after the last.
func RollNodes(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.mysql()
	if err != nil {
		return err
	}
	if !s.galera() {
		return fmt.Errorf("%w: there is one server", errCannotInject)
	}
	for slot, node := range s.nodes {
		s.gone.Store(int32(slot + 1))
		node.Stop(s.t)
		node.Rejoin(s.t, s.others(slot)...)
		s.gone.Store(0)
		c.sleep(ctx, c.Heartbeat)
	}
	in.Bound = c.boundTTL() + suspicion
	return nil
}
