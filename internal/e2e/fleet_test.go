//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOfTwentyReplicasThatStartInTheSameInstantExactlyOneLeads(t *testing.T) {
	for name, newFleet := range map[string]maker{
		"sqlite": newFleet, "postgres": newPostgresFleet,
	} {
		for round := range sized(1, 2, 20) {
			t.Run(fmt.Sprint(name, round), func(t *testing.T) {
				if name == "postgres" {
					onlyFull(t, "starts as many as the tests of the migrations do")
				}
				f := newFleet(t)
				require.Empty(t, f.files(), "the database must not exist yet")
				atOnce(t, f, 20)
				requireStop(f.replicas) // they leave as they came
				f.requireNoRow()
				require.Subset(t, leftFiles("bans.db"), f.files())
			})
		}
	}
}

// atOnce starts replicas in the same instant. Its tests are not parallel: a stage that
// migrates for 25 s is given up.
func atOnce(t *testing.T, f *fleet, replicas int) {
	t.Helper()
	for range replicas {
		f.prepare()
	}
	for _, r := range f.replicas {
		r.begin()
	}
	for _, r := range f.replicas {
		r.awaitServing()
	}
	leader, term := awaitOneLeader(t, f.replicas, 0)
	require.Len(t, leader.terms(), 1, "nobody else has led")
	for _, r := range f.replicas {
		require.Equal(t, http.StatusOK, r.get("/readyz").status)
		lock := r.lock()
		require.True(t, lock.Held)
		require.Equal(t, leader.pid(), lock.Lock.PID)
		require.Equal(t, term, lock.Lock.Term)
		require.Equal(t, r == leader, lock.Self.Leader)
	}
	leader.awaitBans()
}

// requireStop ends replicas in the same instant, as an operator does.
func requireStop(replicas []*replica) {
	for _, r := range replicas {
		r.signal(syscall.SIGTERM)
	}
	for _, r := range replicas {
		require.Equal(r.t, 0, r.wait())
		require.Empty(r.t, r.errorLines())
	}
}

func TestFreshStartLeadsAndShowsBansWithinThreeSeconds(t *testing.T) {
	requireWithin(t, 3*time.Second, func() (took time.Duration) {
		f := newFleet(t)
		r := f.start()
		eventually(t, "it leads and shows bans", func() error {
			l, page := r.lock(), r.get("/")
			took = time.Since(r.begun)
			if !l.Self.Leader || page.status != http.StatusOK ||
				!slices.ContainsFunc([]string{"192.0.2.0/26", "2001:db8:"}, page.contains) {
				return fmt.Errorf("lock %+v, page %s", l, page.body)
			}
			host, err := os.Hostname()
			require.NoError(t, err)
			require.True(t, l.Held)
			require.Equal(t, r.pid(), l.Lock.PID)
			require.Equal(t, host, l.Lock.Hostname)
			require.Equal(t, selfState{Leader: true, State: "leading",
				Term: l.Lock.Term, Reason: l.Self.Reason}, l.Self)
			return nil
		})
		r.stop()
		return took
	})
}
