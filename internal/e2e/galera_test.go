//go:build unix

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

// Each replica is on a node of its own, and one node after the other is stopped and started
// again. Whoever leads there can't reach its database meanwhile, and another takes over.
func TestARollingRestartOfThreeNodesLosesNoTickAndRunsNoneTwice(t *testing.T) {
	onlyFull(t, "restarts three nodes of Galera")
	const interval = 200 * time.Millisecond
	nodes := mytest.Galera(t, 3)
	nodes[0].Exec(t, "CREATE DATABASE app")
	f := newFleet(t, "LOCK_TTL=3s", "LOCK_HEARTBEAT=300ms", "TICK="+interval.String(),
		"JOB_DURATION="+(interval/3).String(), everyRun)
	var replicas []*replica
	for _, node := range nodes {
		replicas = append(replicas, f.start("DATABASE_URL="+node.URL("app")))
	}
	begun := time.Now()
	for round := range sized(1, 2, 5) * len(nodes) {
		leader, term := awaitAnyLeader(t, replicas, 0)
		at := slices.Index(replicas, leader)
		if round%len(nodes) == 0 { // each round begins with the node of the leader
			nodes = slices.Concat(nodes[at:], nodes[:at])
			replicas = slices.Concat(replicas[at:], replicas[:at])
			at = 0
		}
		i := round % len(nodes)
		others := slices.Delete(slices.Clone(nodes), i, i+1)
		nodes[i].Stop(t)
		beside := slices.Delete(slices.Clone(replicas), i, i+1)
		next, newest := awaitAnyLeader(t, beside, 0)
		if i == at {
			require.Greater(t, newest, term)
		}
		last := time.Now()
		next.awaitRun("ticks run although a node is away", func(r runRow) bool {
			return r.Term >= newest && r.Status == "done" && r.ScheduledAt.After(last)
		})
		nodes[i].Rejoin(t, others...)
		eventually(t, "the replica of the node is back", func() error {
			if a := replicas[i].get("/readyz"); a.status != 200 {
				return fmt.Errorf("%d: %s", a.status, a.body)
			}
			return nil
		})
	}
	t.Logf("%v: %s", time.Since(begun).Round(time.Second), f.requireTold(replicas, interval))
	for _, r := range replicas {
		r.stop()
	}
}
