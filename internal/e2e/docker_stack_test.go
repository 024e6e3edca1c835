//go:build linux

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stack is compose.yaml in a folder of its own, under a name of its own.
type stack struct {
	t        *testing.T
	dir      string   // has compose.yaml, the Dockerfile and the binaries
	env      []string // of the commands
	client   []string // docker compose, or docker-compose
	project  string
	replicas []*container
	leader   leadership
	ends     []string // how the terms so far ended
}

// A container is one replica; of its embedded replica it has t and url.
type container struct {
	replica
	service  string
	id       string
	away     bool // killed, paused or stopped
	restarts int  // by the engine, since it was last started by hand
}

// A leadership is a container that leads, or did, in a term.
type leadership struct {
	*container
	term int64
}

// newStack builds the binaries and prepares the stack of these services, which is torn
// down at the end of the test, whatever happens.
func newStack(t *testing.T, services ...string) *stack {
	t.Helper()
	compose := requireDocker(t)
	s := &stack{t: t, dir: t.TempDir(), project: "schedlock-test-" +
		strings.ToLower(rand.Text()[:8])}
	s.env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, envPrefix) || strings.HasPrefix(v, "COMPOSE_")
	})
	s.client = compose
	for _, name := range []string{"compose.yaml", "Dockerfile", ".dockerignore", "LICENSE"} {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), text, 0o644))
	}
	for _, name := range []string{"docs/python", "cmd/demoapp/blocklists"} {
		require.NoError(t, os.CopyFS(filepath.Join(s.dir, name),
			os.DirFS(filepath.Join("..", "..", name))))
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o",
		filepath.Join(s.dir, "bin")+"/", "../../cmd/demoapp", "../../cmd/schedlock")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	s.env = append(s.env, "SCHEDLOCK_IMAGE_TARGET=prebuilt",
		"DEMOAPP_LOCK_TTL="+dockerTTL.String(), "DEMOAPP_LOCK_HEARTBEAT="+dockerHeartbeat.String(),
		"DEMOAPP_TICK="+dockerTick.String(), "DEMOAPP_JOB_DURATION="+dockerRun.String())
	for i, service := range services {
		port := freePort(t, 11_000+3_000*i) // PostgreSQL servers of other tests are above
		s.env = append(s.env, "SCHEDLOCK_PORT_"+
			strings.ToUpper(strings.ReplaceAll(service, "-", "_"))+"="+port)
		s.replicas = append(s.replicas, &container{service: service,
			replica: replica{t: t, url: "http://127.0.0.1:" + port}})
	}
	t.Cleanup(s.down)
	return s
}

// down removes containers, volume, network and images.
func (s *stack) down() {
	if s.t.Failed() {
		out, _ := s.run(s.client[0], s.composeArgs("logs", "--no-color", "--tail", "200")...)
		s.t.Log(out)
	}
	for _, c := range s.replicas {
		if c.away { // a paused one cannot be stopped
			_, _ = s.run("docker", "unpause", c.id)
		}
	}
	out, err := s.run(s.client[0], s.composeArgs("down",
		"--volumes", "--rmi", "local", "--remove-orphans", "--timeout", "1")...)
	assert.NoError(s.t, err, out)
	for _, kind := range [][]string{{"ps", "-a"}, {"volume", "ls"}, {"network", "ls"}, {"images"}} {
		left, err := s.run("docker", append(kind, "--format", "{{.}}")...)
		assert.NoError(s.t, err, left)
		assert.NotContains(s.t, left, s.project, "docker %s", kind)
	}
}

// requireDocker returns the command of Docker Compose. The test is skipped
// unless it is asked for; then it fails where there is no engine.
func requireDocker(t *testing.T) (compose []string) {
	t.Helper()
	if !*containers {
		t.Skipf("needs containers; run it with: go test ./internal/e2e -run %s -containers",
			t.Name())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	engine, err := exec.CommandContext(ctx, "docker", "info", "--format",
		"{{.ServerVersion}}").Output()
	require.NoError(t, err, "-containers needs a Docker engine that answers docker info")
	require.NotEmpty(t, strings.TrimSpace(string(engine)), "no Docker engine answers docker info")
	for _, c := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.CommandContext(ctx, c[0], append(c[1:], "version")...).Run() == nil {
			return c
		}
	}
	require.FailNow(t,
		"-containers needs Docker Compose: neither docker compose nor docker-compose runs")
	return nil
}

// freePort looks for one below those that the system hands out to others.
func freePort(t *testing.T, from int) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(from + mathrand.IntN(3_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
	require.FailNow(t, "no free port")
	return ""
}

// run runs a command in the stack's folder; what it prints to either output is
// returned.
func (s *stack) run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = s.dir, s.env, &out, &out, time.Second
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// exitCode is that of a command; -1: it did not come to exit.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

func (s *stack) docker(args ...string) string {
	s.t.Helper()
	out, err := s.run("docker", args...)
	require.NoError(s.t, err, "docker %s: %s", args, out)
	return out
}

func (s *stack) compose(args ...string) string {
	s.t.Helper()
	out, err := s.run(s.client[0], s.composeArgs(args...)...)
	require.NoError(s.t, err, "docker compose %s: %s", args, out)
	return out
}

func (s *stack) composeArgs(args ...string) []string {
	return slices.Concat(s.client[1:], []string{"-p", s.project}, args)
}

// logs are what a container has said since then.
func (s *stack) logs(c *container, since time.Time) string {
	s.t.Helper()
	return s.docker("logs", "--since", since.UTC().Format(time.RFC3339Nano), c.id)
}

// inspection is what these tests need of docker inspect.
type inspection struct {
	ID           string `json:"Id"`
	Image        string
	RestartCount int
	State        struct {
		Status    string
		Pid       int // on the engine's machine
		ExitCode  int
		StartedAt time.Time
		Health    struct{ Status string }
	}
	Config struct {
		User        string
		StopSignal  string
		StopTimeout int // seconds
	}
	HostConfig struct{ ReadonlyRootfs bool }
}

func (s *stack) inspect(c *container) inspection {
	s.t.Helper()
	var found []inspection
	out := s.docker("inspect", c.id)
	require.NoError(s.t, json.Unmarshal([]byte(out), &found), out)
	require.Len(s.t, found, 1)
	return found[0]
}

// mayKill returns nil if State.Pid is the container's process on this machine,
// and may be killed: the engine may run on another, where the number means
// something else.
func (i inspection) mayKill() error {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", i.State.Pid))
	if err != nil {
		return err
	}
	if !strings.Contains(string(groups), i.ID) {
		return fmt.Errorf("process %d is not seen to be the container's", i.State.Pid)
	}
	return syscall.Kill(i.State.Pid, 0)
}

// tryLeader waits until one of the replicas that are not away leads, in a term
// above after, and the others stand by.
func (s *stack) tryLeader(after int64, patience time.Duration) (found leadership, err error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if found, err = s.look(after); err == nil || time.Now().After(deadline) {
			return found, err
		}
	}
}

func (s *stack) awaitLeader(after int64) leadership {
	s.t.Helper()
	found, err := s.tryLeader(after, patience)
	require.NoError(s.t, err)
	return found
}

func (s *stack) look(after int64) (found leadership, err error) {
	for _, c := range s.replicas {
		if c.away {
			continue
		}
		var l lockAnswer
		a, err := c.try(http.MethodGet, "/lock")
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("GET /lock: %d: %s", a.status, a.body)
		}
		if err == nil {
			err = json.Unmarshal(a.body, &l)
		}
		switch {
		case err != nil:
			return found, fmt.Errorf("%s: %w", c.service, err)
		case l.Self.Leader && found.container != nil:
			// asked one after the other: need not be at once
			return found, fmt.Errorf("%s and %s lead", found.service, c.service)
		case l.Self.Leader && l.Self.Term > after:
			if l.Lock.Hostname != c.service || l.Lock.PID != 1 {
				return found, fmt.Errorf("%s leads, and the row says %+v", c.service, l.Lock)
			}
			found = leadership{c, l.Self.Term}
		case l.Self.State != "standby":
			return found, fmt.Errorf("%s: %+v", c.service, l.Self)
		}
	}
	if found.container == nil {
		return found, errors.New("nobody leads")
	}
	return found, nil
}

// standby is one that is neither away nor the leader.
func (s *stack) standby() *container {
	s.t.Helper()
	i := slices.IndexFunc(s.replicas, func(c *container) bool {
		return !c.away && c != s.leader.container
	})
	require.GreaterOrEqual(s.t, i, 0)
	return s.replicas[i]
}

// taken waits for the next leader and checks how the term before ended, and
// that it took not long from then.
func (s *stack) taken(fault string, from time.Time, end string) {
	s.t.Helper()
	old := s.leader
	s.leader = s.awaitLeader(old.term)
	s.ends = append(s.ends, end)
	before, now := s.termBefore(s.leader.term), s.termOf(s.leader.term)
	require.Equal(s.t, old.term, before.Term, "the term before")
	require.Equal(s.t, end, before.EndReason)
	if end == "released" {
		from = before.EndedAt // the command has waited for the drain
	} else {
		require.Eventually(s.t, func() bool { // the engine passes lines on when it has time
			return strings.Contains(s.logs(s.leader.container, from.Add(-time.Second)),
				`previous_end="`+end+`"`)
		}, 30*time.Second, 100*time.Millisecond, end)
	}
	took := now.AcquiredAt.Sub(from)
	s.t.Logf("%s: %s leads after %v (%s %s)", fault, s.leader.service, took, old.service, end)
	require.Less(s.t, took, soon(takeOver))
	s.leader.awaitStatus("done", now.Term)
}

// startAgain starts a container that was killed or stopped: it joins as a
// standby.
func (s *stack) startAgain(c *container) {
	s.t.Helper()
	s.docker("start", c.id)
	c.away, c.restarts = false, 0
	require.Equal(s.t, s.leader.term, s.awaitLeader(0).term, "%s came back as a standby", c.service)
}

func (s *stack) termOf(term int64) termRow { s.t.Helper(); return s.findTerm(term, 0) }

// termBefore is the one that a term follows.
func (s *stack) termBefore(term int64) termRow { s.t.Helper(); return s.findTerm(term, 1) }

func (s *stack) findTerm(term int64, earlier int) termRow {
	s.t.Helper()
	terms := s.leader.terms() // newest first
	i := slices.IndexFunc(terms, func(r termRow) bool { return r.Term == term })
	require.True(s.t, i >= 0 && i+earlier < len(terms), "%d before %d in %+v", earlier, term, terms)
	return terms[i+earlier]
}
