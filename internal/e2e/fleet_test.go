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

	"github.com/stretchr/testify/assert"
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
	leader.awaitBans("192.0.2.0/26")
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

// A leader is stopped past its TTL, another leads; the first resumes and starts
// nothing, or is killed while it is stopped, which must not depose the second.
func TestStoppedLeadersComeBackAsStandbys(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	f := newFleet(t, "LOCK_TTL=4s", "LOCK_HEARTBEAT=300ms", "TICK=200ms", "JOB_DURATION=1h")
	replicas := []*replica{f.start(), f.start(), f.start()}
	leader, term := awaitOneLeader(t, replicas, 0)
	for round := range soakRounds(30) {
		leader.awaitStatus("in_progress", term)
		old, oldTerm := leader, term
		at := slices.Index(replicas, old)
		others := slices.Delete(slices.Clone(replicas), at, at+1)
		f.freeze(old)
		last := others[0].lock().Lock.HeartbeatAt
		leader, term = awaitOneLeader(t, others, oldTerm)
		terms := leader.terms()
		stood := terms[0].AcquiredAt.Sub(last)
		require.GreaterOrEqual(t, stood, ttl, "not before the TTL has passed")
		assert.Less(t, stood, ttl+soon(2*time.Second))
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
				require.NotEqual(t, "done", r.Status)
			}
		}
		if !old.hasExited() {
			old.stop() // which shows that its job has returned
			replicas[at] = f.start()
		}
	}
}
