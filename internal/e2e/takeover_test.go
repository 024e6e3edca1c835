//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKilledLeadersAreReplacedAtOnceWithDefaultTTL(t *testing.T) {
	t.Parallel()
	for replicas, promise := range map[int]time.Duration{
		1:              5 * time.Second, // it leads again itself
		sized(3, 5, 5): time.Second,
	} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			var all []*replica
			for range replicas {
				all = append(all, f.start())
			}
			leader, term := awaitOneLeader(t, all, 0)
			var took []time.Duration
			for range soakRounds(50) {
				from := time.Now()
				leader.kill()
				next := f.start() // at once, so that as many campaign again
				if all[slices.Index(all, leader)] = next; replicas == 1 {
					from = next.begun
				}
				before := term
				leader, term = awaitOneLeader(t, all, before)
				terms := leader.terms()
				require.Equal(t, term, terms[0].Term)
				require.Equal(t, before, terms[1].Term)
				require.Equal(t, "proven dead", terms[1].EndReason)
				took = append(took, terms[0].AcquiredAt.Sub(from))
			}
			logTimes(t, "from the signal, or the start of the only one, to the acquisition", took)
			assert.Less(t, took[len(took)-1], soon(promise), "the TTL is 60 s")
			requireNoTickTwice(t, leader)
		})
	}
}
