//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rounds is how often a case is repeated: at least twice, and as often as it
// takes to believe it under -soak.
func rounds(often int) int {
	if *soak {
		return often
	}
	return 2
}

func TestKilledLeadersAreReplacedAtOnceWithDefaultTTL(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	var replicas []*replica
	for range sized(3, 5, 5) {
		replicas = append(replicas, f.start())
	}
	leader, term := awaitOneLeader(t, replicas, 0)
	var took []time.Duration
	for range rounds(50) {
		killed := time.Now()
		leader.kill()
		gone := slices.Index(replicas, leader)
		replicas[gone] = f.start() // at once, so that as many campaign again
		before := term
		leader, term = awaitOneLeader(t, replicas, before)
		terms := leader.terms()
		require.Equal(t, term, terms[0].Term)
		require.Equal(t, before, terms[1].Term)
		require.Equal(t, "proven dead", terms[1].EndReason)
		took = append(took, terms[0].AcquiredAt.Sub(killed))
		// The promise is 250 ms, which is logged; the TTL is 60 s.
		assert.Less(t, took[len(took)-1], soon(time.Second))
	}
	slices.Sort(took)
	t.Logf("%d kills, from the signal to the next acquisition: p50 %v, max %v", len(took),
		took[len(took)/2], took[len(took)-1])
	seen := map[time.Time]bool{}
	for _, r := range leader.runs("tick") {
		require.False(t, seen[r.ScheduledAt], "two runs of the tick at %v", r.ScheduledAt)
		seen[r.ScheduledAt] = true
	}
}

func TestKilledReplicaThatIsAloneLeadsAgainAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	_, term := f.startLeader()
	var took []time.Duration
	for range rounds(50) {
		last := f.replicas[len(f.replicas)-1]
		last.kill()
		started := time.Now()
		next := f.start()
		before := term
		term = next.awaitLeading()
		require.Greater(t, term, before)
		terms := next.terms()
		require.Equal(t, "proven dead", terms[1].EndReason)
		took = append(took, terms[0].AcquiredAt.Sub(started))
	}
	slices.Sort(took)
	t.Logf("%d kills, from the start of the process to its acquisition: p50 %v, max %v", len(took),
		took[len(took)/2], took[len(took)-1])
	assert.Less(t, took[len(took)-1], soon(5*time.Second))
}

// A leader is stopped past its TTL, another leads; the first resumes and starts
// nothing, or is killed while it is stopped, which must not depose the second.
func TestStoppedLeadersComeBackAsStandbys(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	f := newFleet(t, "LOCK_TTL=4s", "LOCK_HEARTBEAT=300ms", "TICK=200ms")
	replicas := []*replica{f.start(), f.start(), f.start()}
	leader, term := awaitOneLeader(t, replicas, 0)
	for round := range rounds(30) {
		old, oldTerm := leader, term
		at := slices.Index(replicas, old)
		others := slices.Delete(slices.Clone(replicas), at, at+1)
		f.freeze(old)
		last := others[0].lock().Lock.HeartbeatAt
		leader, term = awaitOneLeader(t, others, oldTerm)
		terms := leader.terms()
		require.GreaterOrEqual(t, terms[0].AcquiredAt.Sub(last), ttl,
			"not before the TTL has passed")
		require.Equal(t, "expired", terms[1].EndReason)

		if round%2 == 0 {
			old.signal(syscall.SIGCONT)
			eventually(t, "the resumed replica stands by", func() error {
				if self := old.lock().Self; self.State != "standby" {
					return fmt.Errorf("%+v", self)
				}
				return nil
			})
			old.awaitLine("lost the lock", fmt.Sprintf("term=%d", oldTerm))
		} else {
			old.kill() // still stopped
			replicas[at] = f.start()
		}
		again, sameTerm := awaitOneLeader(t, replicas, 0)
		require.Equal(t, leader.pid(), again.pid())
		require.Equal(t, term, sameTerm)
		for _, r := range leader.runs("tick") {
			if r.Term == oldTerm {
				require.False(t, r.StartedAt.After(terms[0].AcquiredAt),
					"a run of the old term began after its end: %+v", r)
			}
		}
	}
}
