//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOfTwentyReplicasThatStartInTheSameInstantExactlyOneLeads(t *testing.T) {
	for round := range sized(1, 2, 20) {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			f := newFleet(t)
			for range 20 {
				f.prepare()
			}
			require.Empty(t, f.files(), "the database must not exist yet")
			for _, r := range f.replicas {
				r.begin()
			}
			for _, r := range f.replicas {
				r.awaitServing()
			}
			leader, term := awaitOneLeader(t, f.replicas, 0)
			for _, r := range f.replicas {
				require.Equal(t, http.StatusOK, r.get("/readyz").status)
				lock := r.lock()
				require.True(t, lock.Held)
				require.Equal(t, leader.pid(), lock.Lock.PID)
				require.Equal(t, term, lock.Lock.Term)
				require.Equal(t, r == leader, lock.Self.Leader)
			}
			require.Len(t, leader.terms(), 1, "nobody else has led")

			// They leave as they came: all at once.
			for _, r := range f.replicas {
				r.signal(syscall.SIGTERM)
			}
			for _, r := range f.replicas {
				require.Equal(t, 0, r.wait())
				require.Empty(t, r.errorLines())
			}
			f.requireNoRow()
		})
	}
}

func TestFreshStartLeadsAndShowsBansWithinThreeSeconds(t *testing.T) {
	limit := 3 * time.Second
	if raceEnabled { // then it is several times as slow
		limit = patience
	}
	requireWithin(t, limit, func() (took time.Duration) {
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

func TestKilledLeaderIsReplacedSoon(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second // where no death can be proven, it must pass
	f := newFleet(t, "LOCK_TTL=10s", "LOCK_HEARTBEAT=300ms", "TICK=200ms")
	leader, term := f.startLeader("JOB_DURATION=1h")
	standby := f.start()
	cut := leader.awaitRun("a run is under way", func(r runRow) bool {
		return r.Status == "in_progress"
	})

	killed := time.Now()
	leader.kill()
	next := standby.awaitLeading()
	require.Greater(t, next, term)

	terms := standby.terms()
	require.Len(t, terms, 2)
	took := terms[0].AcquiredAt.Sub(killed)
	t.Logf("taken over after %v: %s", took, terms[1].EndReason)
	assert.Less(t, took, ttl+soon(2*time.Second))
	assert.Contains(t, []string{"expired", "proven dead"}, terms[1].EndReason)
	standby.awaitLine("run abandoned by its leader", "job=tick")
	standby.awaitRun("what the dead leader left is abandoned, then repeated", func(r runRow) bool {
		return r.ScheduledAt.Equal(cut.ScheduledAt) && !r.FinishedAt.IsZero() &&
			(r.Status == "abandoned" && r.Term == term || r.Attempt == 2 && r.Term == next)
	})
	standby.awaitRun("the new leader's runs appear", func(r runRow) bool {
		return r.Term == next && r.Status == "done"
	})

	// The log names the old holder, and how its end was known.
	standby.awaitLine("msg=leading", fmt.Sprintf("term=%d", next),
		fmt.Sprintf("holder_pid=%d", leader.pid()),
		"holder_host=", fmt.Sprintf("holder_term=%d", term), "previous_end=")
	require.Empty(t, standby.errorLines())
}

func TestStoppedLeaderIsNotReplacedBeforeItsTTLHasPassed(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	f := newFleet(t, "LOCK_TTL=6s", "LOCK_HEARTBEAT=300ms", "TICK=200ms")
	old, term := f.startLeader("JOB_DURATION=1h")
	old.awaitRun("a run is under way", func(r runRow) bool { return r.Status == "in_progress" })
	standby := f.start()

	f.freeze(old)
	last := standby.lock().Lock.HeartbeatAt // it is stopped: this does not move any more
	next := standby.awaitLeading()
	stood := standby.terms()[0].AcquiredAt.Sub(last)
	assert.GreaterOrEqual(t, stood, ttl, "from the last heartbeat to the take-over")
	assert.Less(t, stood, ttl+soon(2*time.Second), "from the last heartbeat to the take-over")

	// It wakes up as a standby: its job is cancelled and it starts nothing.
	old.signal(syscall.SIGCONT)
	eventually(t, "the old leader stands by", func() error {
		if self := old.lock().Self; self.State != "standby" || self.Leader {
			return fmt.Errorf("%+v", self)
		}
		return nil
	})
	old.awaitLine("lost the lock", fmt.Sprintf("term=%d", term))
	require.Greater(t, next, term)
	require.Equal(t, standby.pid(), old.lock().Lock.PID, "its row is not touched")
	standby.awaitRun("the new leader's runs appear", func(r runRow) bool {
		return r.Term == next && r.Status == "done"
	})
	acquired := standby.terms()[0].AcquiredAt
	for _, r := range standby.runs("tick") {
		if r.Term == term {
			assert.False(t, r.StartedAt.After(acquired),
				"a run of the old term began after its end: %+v", r)
			assert.NotEqual(t, "done", r.Status)
		}
	}
	old.stop() // which shows that its job has returned
}

func TestHandoversLoseNoTickAndRepeatNone(t *testing.T) {
	t.Parallel()
	ticks := 3
	if *soak {
		ticks = 40
	}
	const interval = 2 * time.Second // an hour, scaled down
	// On a busy machine a hand-over may take longer than the interval, and so may a run.
	f := newFleet(t, "TICK=2s", "LOCK_HEARTBEAT=200ms", "TICK_CATCHUP=1000", "TICK_OVERLAP=queue")
	fleet := []*replica{f.start(), f.start()}
	leader, term := awaitOneLeader(t, fleet, 0)
	started := time.Now()
	handovers := 0
	// The leader changes several times per interval.
	for len(leader.runs("tick")) < ticks || handovers <= ticks {
		require.Less(t, time.Since(started), interval*time.Duration(ticks)+patience)
		next := time.Now().Add(500 * time.Millisecond)
		leader.stop()
		fleet = append(slices.DeleteFunc(fleet, func(r *replica) bool {
			return r == leader
		}), f.start())
		leader, term = awaitOneLeader(t, fleet, term)
		handovers++
		time.Sleep(time.Until(next)) // the pace of the hand-overs is the fault
	}
	t.Logf("%d hand-overs in %v", handovers, time.Since(started))

	// Nobody is there at all when the next tick is due: the next leader runs
	// it, late.
	for _, r := range fleet {
		r.stop()
	}
	newest := f.sql(`SELECT max(scheduled_at) FROM scheduler_runs WHERE job = 'tick'`)
	last, err := time.Parse(time.RFC3339Nano, newest)
	require.NoError(t, err)
	due := last.Add(interval)
	time.Sleep(time.Until(due.Add(100 * time.Millisecond))) // by the clock: nobody can be asked
	leader, _ = f.startLeader()
	leader.awaitRun("the tick that was missed has run", func(r runRow) bool {
		return !r.ScheduledAt.Before(due) && r.Status == "done"
	})

	runs := leader.runs("tick")
	slices.Reverse(runs)
	late := time.Duration(0)
	for i, r := range runs {
		if i < len(runs)-1 { // the newest may be under way
			require.Equal(t, "done", r.Status, "%+v", r)
		}
		require.Equal(t, 1, r.Attempt, "%+v", r)
		require.Equal(t, r.ScheduledAt, runs[0].ScheduledAt.Add(time.Duration(i)*interval),
			"every tick is there, once")
		late = max(late, r.StartedAt.Sub(r.ScheduledAt))
	}
	t.Logf("the latest of %d ticks started %v after it was due", len(runs), late)
	if *soak {
		require.Less(t, late, interval)
	}
	for _, r := range f.replicas {
		require.Empty(t, r.errorLines())
	}
}
