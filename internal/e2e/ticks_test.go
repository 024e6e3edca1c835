//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireEveryTickOnce checks that every tick of the job tick, from the first
// in the ledger to the last, is there exactly once: as a run, or in one range
// of skipped ones. Its times are those of the spec that /jobs shows.
func (f *fleet) requireEveryTickOnce(r *replica, interval time.Duration) (ran, skipped int64) {
	f.t.Helper()
	rest, ok := strings.CutPrefix(r.job("tick").Spec, fmt.Sprintf("every %v offset ", interval))
	require.True(f.t, ok, "%+v", r.job("tick"))
	offset, err := time.ParseDuration(rest)
	require.NoError(f.t, err)

	runs := slices.DeleteFunc(r.runs("tick"), func(r runRow) bool { return r.RequestedBy != "" })
	require.NotEmpty(f.t, runs)
	slices.Reverse(runs)
	first := runs[0].ScheduledAt
	require.Equal(f.t, int64(offset), first.UnixNano()%int64(interval), "the first is no tick: %+v",
		runs[0])
	due := first
	for i, run := range runs {
		require.Equal(f.t, due, run.ScheduledAt,
			"a gap, or a tick that is there twice, between %+v and %+v", runs[max(i-1, 0)], run)
		last, count := run.ScheduledAt, int64(1)
		if run.Count > 0 {
			last, count = run.Until, run.Count
		}
		require.Equal(f.t, last, run.ScheduledAt.Add(time.Duration(count-1)*interval),
			"its end and its count: %+v", run)
		if run.Status == "skipped" {
			require.Contains(f.t, []string{"missed", "overlap", "paused"}, run.Error, "%+v", run)
			require.Zero(f.t, run.Attempt)
			skipped += count
		} else {
			require.Zero(f.t, run.Count, "%+v", run)
			require.Positive(f.t, run.Attempt, "%+v", run)
			ran++
		}
		due = last.Add(interval)
	}
	require.Equal(f.t, int64(due.Sub(first)/interval), ran+skipped)
	return ran, skipped
}

var startedLine = regexp.MustCompile(
	`msg="run started" job=tick tick=(\S+) term=(\d+) attempt=(\d+)`)

// requireTold waits until what was cut short has ended and the newest leader runs ticks. Then each
// tick must be in the ledger once, and none have started twice. It says how many there are.
func (f *fleet) requireTold(replicas []*replica, interval time.Duration) string {
	f.t.Helper()
	var leader *replica
	eventually(f.t, "what was cut short has ended, and the newest leader runs ticks", func() error {
		var term int64
		leader, term = awaitAnyLeader(f.t, replicas, 0) // it may change by itself
		done := fmt.Errorf("term %d has no run that is done", term)
		for _, r := range leader.runs("tick") {
			if !r.RetryAt.IsZero() || r.Status == "in_progress" && r.Term != term {
				return fmt.Errorf("term %d: %+v", term, r)
			}
			if r.Term == term && r.Status == "done" {
				done = nil
			}
		}
		return done
	})
	ran, skipped := f.requireEveryTickOnce(leader, interval)
	starts := f.requireStartedOnce(leader)
	again := 0
	for _, r := range leader.runs("tick") {
		again += max(r.Attempt-1, 0)
	}
	return fmt.Sprintf("%d ticks ran, %d further attempts, %d skipped; %d starts, none twice; "+
		"%d terms", ran, again, skipped, starts, len(leader.terms()))
}

// requireStartedOnce checks that no attempt of a run was started twice, by
// what the processes themselves say (everyRun), and that the ledger, which is
// written before and read after that, has each.
func (f *fleet) requireStartedOnce(leader *replica) (starts int) {
	f.t.Helper()
	type attempt struct {
		tick   time.Time
		number int
	}
	seen := map[attempt]string{}
	for _, r := range f.replicas {
		for _, line := range r.log.with("run started", "job=tick") {
			found := startedLine.FindStringSubmatch(line)
			require.NotNil(f.t, found, line)
			tick, err := time.Parse(time.RFC3339Nano, found[1])
			require.NoError(f.t, err)
			number, err := strconv.Atoi(found[3])
			require.NoError(f.t, err)
			a := attempt{tick, number}
			require.Empty(f.t, seen[a], "started twice: %s", line)
			seen[a] = line
		}
	}
	require.NotEmpty(f.t, seen)
	attempts := map[time.Time]int{}
	for _, r := range leader.runs("tick") {
		attempts[r.ScheduledAt.Truncate(time.Millisecond)] = r.Attempt // as the log has it
	}
	for a, line := range seen {
		require.LessOrEqual(f.t, a.number, attempts[a.tick], "not in the ledger: %s", line)
	}
	return len(seen)
}

// awaitAnyLeader is awaitOneLeader on a machine that may be so busy that the
// database does not answer, or that the leader changes by itself.
func awaitAnyLeader(t *testing.T, replicas []*replica, after int64) (leader *replica, term int64) {
	t.Helper()
	eventually(t, "one of the replicas leads", func() error {
		for _, r := range replicas {
			a, err := r.try(http.MethodGet, "/lock")
			if err != nil {
				return err
			}
			var said lockAnswer
			decode(t, a.body, &said)
			if said.Self.Leader && said.Self.Term > after {
				leader, term = r, said.Self.Term
				return nil
			}
		}
		return errors.New("nobody says so")
	})
	return leader, term
}

// Leaders are killed, told to stop, and stopped past their TTL, again and
// again: every tick is in the ledger exactly once, and nothing starts twice.
func TestWhateverHappensToItsLeadersEveryTickIsInTheLedgerOnce(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		interval, rounds := 200*time.Millisecond, sized(6, 6, 30) // each fault twice
		if *soak {
			interval = time.Second
		}
		f := newFleet(t, "LOCK_TTL=2s", "LOCK_HEARTBEAT=200ms", "TICK="+interval.String(),
			"JOB_DURATION="+(interval/3).String(), everyRun)
		var replicas []*replica
		for range sized(3, 5, 5) {
			replicas = append(replicas, f.start())
		}
		begun := time.Now()
		done := map[string]int{}
		for round := range rounds {
			old, term := awaitAnyLeader(t, replicas, 0)
			at := slices.Index(replicas, old)
			others := slices.Delete(slices.Clone(replicas), at, at+1)
			what := []string{"SIGKILL", "SIGTERM", "SIGSTOP"}[round%3]
			done[what]++
			switch what {
			case "SIGKILL":
				old.kill()
			case "SIGTERM":
				old.stop()
			case "SIGSTOP":
				f.freeze(old)
			}
			next, term := awaitAnyLeader(t, others, term)
			if what == "SIGSTOP" {
				old.signal(syscall.SIGCONT)
			} else {
				replicas[at] = f.start()
			}
			next.awaitRun("the next leader's runs appear", func(r runRow) bool {
				return r.Term >= term && r.Status == "done"
			})
		}
		t.Logf("%v in %v: %s", done, time.Since(begun).Round(time.Second),
			f.requireTold(replicas, interval))
		for _, r := range replicas {
			r.signal(syscall.SIGTERM)
		}
		for _, r := range replicas {
			require.Equal(t, 0, r.wait())
		}
		f.requireNoRow()
	})
}
