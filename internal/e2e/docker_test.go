//go:build linux

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests with containers take minutes and need a Docker engine:
//
//	go test ./internal/e2e -run TestDocker -containers
var containers = flag.Bool("containers", false,
	"run the tests with containers, which need a Docker engine")

// The stack of compose.yaml, in these tests, beats fast.
const (
	dockerTTL       = 3 * time.Second
	dockerHeartbeat = 500 * time.Millisecond
	dockerTick      = 200 * time.Millisecond
	dockerRun       = 100 * time.Millisecond // so that half of all faults hit a run
)

// takeOver is how soon another leads, see soon, when the end of the leader shows at once: well
// below the TTL. What it takes is in the test's output.
const takeOver = 2 * time.Second

// TestDockerCompose starts the stack as a user does, but with a binary that
// was built outside, since images may be out of reach. It is one sequence, as
// each step leaves a running stack to the next.
func TestDockerCompose(t *testing.T) {
	t.Parallel()
	s := newStack(t, "a", "b", "c")
	s.up()
	s.killLeader()
	s.crashLeader()
	s.pauseLeader(5)
	s.stopLeader()
	s.restartOneByOne()
	s.killTheOnlyOne()
	s.requireSoundHistory()
	s.requireHealthy()
	s.refuseTheFileAlone()
}

// up starts the stack and checks that it is what compose.yaml promises.
func (s *stack) up() {
	s.t.Helper()
	s.compose("up", "-d", "--build")
	for _, c := range s.replicas {
		c.id = s.compose("ps", "-q", c.service)
		require.NotEmpty(s.t, c.id)
	}
	s.leader = s.awaitLeader(0)
	require.Len(s.t, s.leader.terms(), 1, "nobody else has led")
	s.t.Logf("up: %s leads", s.leader.service)

	budget := stopBudget(s.t, nil)
	for _, c := range s.replicas {
		i := s.inspect(c)
		require.Equal(s.t, "65532:65532", i.Config.User)
		require.True(s.t, i.HostConfig.ReadonlyRootfs)
		require.Equal(s.t, "SIGTERM", i.Config.StopSignal)
		require.Greater(s.t, time.Duration(i.Config.StopTimeout)*time.Second, budget,
			"the grace period against what a shutdown may take")
		page := c.get("/")
		require.Equal(s.t, http.StatusOK, page.status)
		require.Contains(s.t, string(page.body), "pid 1 on <strong>"+c.service+"</strong>",
			"each is process 1 of its container")
		require.Contains(s.t, string(page.body), "192.0.2.", "bans of the built-in lists")
		s.docker("exec", c.id, "/demoapp", "healthcheck")
		require.Contains(s.t, s.docker("exec", c.id, "/schedlock", "--db", "/data/demoapp.db",
			"status"), "held: "+s.leader.service+" has led for ")
		_, err := s.run("docker", "exec", "-e", "DEMOAPP_ADDR=127.0.0.1:9", c.id, "/demoapp",
			"healthcheck")
		require.Equal(s.t, exitFailed, exitCode(err),
			"health of an app that does not answer: %v", err)
	}
}

// killLeader is docker kill, after which the engine restarts nothing: the
// operator starts the container again.
func (s *stack) killLeader() {
	s.t.Helper()
	old := s.leader
	begun := time.Now()
	s.docker("kill", "-s", "KILL", old.id)
	old.away = true
	s.taken("docker kill -s KILL", begun, "proven dead")
	s.startAgain(old.container)
}

// crashLeader is the crash of the process alone, after which the engine
// restarts the container.
func (s *stack) crashLeader() {
	s.t.Helper()
	old := s.leader
	before := s.inspect(old.container)
	if err := before.mayKill(); err != nil {
		s.t.Logf("kill -9 from outside the container: left out: %v", err)
		return
	}
	begun := time.Now()
	require.NoError(s.t, syscall.Kill(before.State.Pid, syscall.SIGKILL))
	old.away = true
	s.taken("kill -9", begun, "proven dead")
	old.away = false
	require.Equal(s.t, s.leader.term, s.awaitLeader(0).term,
		"the crashed one came back as a standby")
	old.restarts = before.RestartCount + 1
	require.Equal(s.t, old.restarts, s.inspect(old.container).RestartCount)
}

// pauseLeader freezes the leader past its TTL and lets it go on. It tries again
// if it hits the leader inside a transaction, which blocks every writer.
func (s *stack) pauseLeader(tries int) {
	s.t.Helper()
	old := s.leader
	begun := time.Now()
	s.docker("pause", old.id)
	old.away = true
	last := s.standby().lock().Lock // a paused holder beats no more
	require.Equal(s.t, old.term, last.Term)
	next, err := s.tryLeader(old.term, dockerTTL+soon(2*takeOver))
	if err != nil && tries > 1 &&
		strings.Contains(s.logs(s.standby(), begun), "database does not answer") {
		s.t.Log("docker pause: hit the leader inside a transaction; once more")
		s.docker("unpause", old.id)
		old.away = false
		if s.leader = s.awaitLeader(0); s.leader.term != old.term {
			s.ends = append(s.ends, anyEnd)
		}
		s.pauseLeader(tries - 1)
		return
	}
	require.NoError(s.t, err)
	s.leader, s.ends = next, append(s.ends, "expired")
	took := s.termOf(next.term).AcquiredAt.Sub(last.HeartbeatAt)
	s.t.Logf("docker pause: %s leads %v after the last heartbeat of %s (TTL %v)", next.service,
		took, old.service, dockerTTL)
	require.GreaterOrEqual(s.t, took, dockerTTL, "nothing proves that a paused holder is dead")
	require.LessOrEqual(s.t, took, dockerTTL+soon(takeOver))
	s.leader.awaitStatus("done", next.term)

	s.docker("unpause", old.id)
	old.away = false
	eventually(s.t, "the paused one stands by", func() error {
		self := old.lock().Self
		require.False(s.t, self.Leader, "after its pause: %+v", self)
		if self.State != "standby" {
			return fmt.Errorf("%+v", self)
		}
		return nil
	})
	require.Contains(s.t, s.logs(old.container, begun), "lost the lock")
	require.Equal(s.t, next.term, s.awaitLeader(0).term)
	// That it has started nothing more, requireSoundHistory checks at the end.
}

// stopLeader is docker stop: drain, release, exit 0.
func (s *stack) stopLeader() {
	s.t.Helper()
	old := s.leader
	begun := time.Now()
	s.docker("stop", old.id)
	old.away = true
	i := s.inspect(old.container)
	require.Equal(s.t, "exited", i.State.Status)
	require.Equal(s.t, 0, i.State.ExitCode)
	s.taken("docker stop", begun, "released")
	s.startAgain(old.container)
}

// restartOneByOne is a rolling restart.
func (s *stack) restartOneByOne() {
	s.t.Helper()
	var gap time.Duration
	for _, c := range s.replicas {
		s.docker("restart", c.id)
		c.restarts = 0 // the engine counts anew
		next := s.awaitLeader(0)
		if next.term == s.leader.term {
			require.NotEqual(s.t, s.leader.container, c,
				"a leader that was restarted has another term")
			continue
		}
		require.Equal(s.t, s.leader.container, c, "only the leader's restart changes the term")
		s.ends = append(s.ends, "released")
		s.leader = next
		gap = max(gap, s.termOf(next.term).AcquiredAt.Sub(s.termBefore(next.term).EndedAt))
	}
	s.t.Logf("rolling restart: nobody led for %v at most", gap)
	require.Less(s.t, gap, soon(takeOver))
}

// killTheOnlyOne leaves nobody who could take over: the crashed one must not
// wait for its own old row.
func (s *stack) killTheOnlyOne() {
	s.t.Helper()
	only := s.leader
	for _, c := range s.replicas {
		if c != only.container {
			s.docker("stop", c.id)
			c.away = true
		}
	}
	s.docker("kill", "-s", "KILL", only.id)
	s.docker("start", only.id)
	only.restarts = 0
	started := s.inspect(only.container).State.StartedAt
	s.taken("docker kill of the only one, from its next start", started, "proven dead")
	for _, c := range s.replicas {
		if c != only.container {
			s.startAgain(c)
		}
	}
}

// anyEnd stands for the end of a term that depends on who was first.
const anyEnd = "any"

// requireSoundHistory checks all terms and runs of the test.
func (s *stack) requireSoundHistory() {
	s.t.Helper()
	s.leader.awaitStatus("done", s.leader.term)
	runs, terms := fetch[[]runRow](&s.leader.replica, "/runs?limit=100000"), s.leader.terms()
	slices.Reverse(terms)
	require.Len(s.t, terms, len(s.ends)+1)
	byTerm := map[int64]termRow{}
	for i, term := range terms {
		byTerm[term.Term] = term
		require.Equal(s.t, 1, term.PID)
		if i > 0 {
			before := terms[i-1]
			require.Greater(s.t, term.Term, before.Term)
			require.False(s.t, term.AcquiredAt.Before(before.EndedAt), "%+v begins before %+v ends",
				term, before)
		}
		if i == len(s.ends) {
			require.Empty(s.t, term.EndReason, "the last term is open")
		} else if s.ends[i] != anyEnd {
			require.Equal(s.t, s.ends[i], term.EndReason, "end of term %d of %d", i+1, len(terms))
		}
	}

	type tick struct {
		job string
		at  time.Time
	}
	seen, statuses := map[tick]runRow{}, map[string]int{}
	var ticks []time.Time // of the job tick
	for _, run := range runs {
		statuses[run.Status]++
		term, ok := byTerm[run.Term]
		require.True(s.t, ok, "run of no term: %+v", run)
		if !run.StartedAt.IsZero() {
			require.False(s.t, run.StartedAt.Before(term.AcquiredAt), "%+v before its term %+v",
				run, term)
			require.True(s.t, term.EndedAt.IsZero() || !run.StartedAt.After(term.EndedAt),
				"%+v after its term %+v", run, term)
		}
		for i := range max(run.Count, 1) {
			at := tick{run.Job, run.ScheduledAt}
			if run.Job == "tick" {
				at.at = at.at.Add(time.Duration(i) * dockerTick)
				ticks = append(ticks, at.at)
			}
			require.NotContains(s.t, seen, at, "scheduled twice: %+v", run)
			seen[at] = run
		}
	}
	slices.SortFunc(ticks, time.Time.Compare)
	for i := 1; i < len(ticks); i++ {
		require.Equal(s.t, dockerTick, ticks[i].Sub(ticks[i-1]), "a tick was lost after %v",
			ticks[i-1])
	}
	s.t.Logf("%d terms, %d ticks, rows by status: %v", len(terms), len(ticks), statuses)
	require.Greater(s.t, statuses["done"], len(terms))
}

// requireHealthy checks that the engine finds all healthy and that nothing has
// crashed meanwhile.
func (s *stack) requireHealthy() {
	s.t.Helper()
	for _, c := range s.replicas {
		eventually(s.t, c.service+" is healthy", func() error {
			i := s.inspect(c)
			require.Equal(s.t, "running", i.State.Status)
			require.Equal(s.t, c.restarts, i.RestartCount, "restarts of %s", c.service)
			if i.State.Health.Status != "healthy" {
				return fmt.Errorf("it is %+v", i.State.Health)
			}
			return nil
		})
	}
}

// refuseTheFileAlone mounts the database file into a container, then, as the
// refusal says, its folder.
func (s *stack) refuseTheFileAlone() {
	s.t.Helper()
	image := s.inspect(s.leader.container).Image
	dir := filepath.Join(s.t.TempDir(), "data")
	file := filepath.Join(dir, "demoapp.db")
	require.NoError(s.t, os.Mkdir(dir, 0o755))
	require.NoError(s.t, os.Chmod(dir, 0o777)) // it is another user in the container
	require.NoError(s.t, os.WriteFile(file, nil, 0o644))
	require.NoError(s.t, os.Chmod(file, 0o666))

	name := s.project + "-alone"
	s.t.Cleanup(func() { _, _ = s.run("docker", "rm", "-f", "-v", name) })
	said, err := s.run("docker", "run", "--rm", "--name", name, "-v",
		file+":/data/demoapp.db", image)
	require.Equal(s.t, exitFailed, exitCode(err), "%v: %s", err, said)
	require.Contains(s.t, said, "mount the folder, not the file")

	s.docker("run", "-d", "--name", name, "-v", dir+":/data", image)
	eventually(s.t, "it leads on the mounted folder", func() error {
		if said := s.docker("logs", name); !strings.Contains(said, "msg=leading") {
			return errors.New(said)
		}
		return nil
	})
}
