//go:build linux

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pythonFor is how long the fleet in Python is disturbed; each fault comes twice at
// least.
var pythonFor = flag.Duration("python.for", 0,
	"with -containers: how long the fleet in Python is disturbed")

const python = "/usr/bin/python3"

// A pythonStatus is what a worker of the app in docs/python answers.
type pythonStatus struct {
	Replica string
	Worker  int
	Leader  string
	Bans    int
	Lists   map[string]int
	Ticks   []struct {
		Second, Term int64
		Host         string
	}
}

// TestDockerPython runs three replicas of docs/python, with gunicorn and its four
// workers in each, and ends the program that runs the jobs in all the ways there are.
func TestDockerPython(t *testing.T) {
	s := newStack(t, "python-a", "python-b", "python-c")
	s.pythonImage()
	s.env = append(s.env, "COMPOSE_PROFILES=python", "SCHEDLOCK_PYTHON_TTL=4s")
	s.compose(append([]string{"up", "-d", "--build"}, s.services()...)...)
	for _, c := range s.replicas {
		c.id = s.compose("ps", "-q", c.service)
		workers := map[int]bool{}
		s.eventually("four workers answer", func() bool {
			if answer, ok := c.python(); ok {
				require.Equal(t, c.service, answer.Replica)
				workers[answer.Worker] = true
			}
			return len(workers) == 4
		})
	}
	s.eventually("the lists are imported", func() bool {
		answer, ok := s.replicas[1].python()
		return ok && answer.Bans > 0 && len(answer.Lists) == 3
	})
	first := s.awaitTick(time.Now())

	faults := map[string]func(c *container){
		"kill -9 of the program": func(c *container) { s.killProcess(c, "program") },
		"kill -9 of its guard":   func(c *container) { s.killProcess(c, "inner") },
		"kill -9 of schedlock":   func(c *container) { s.killProcess(c, "outer") },
		"kill -9 of all the three": func(c *container) {
			s.killProcess(c, "outer", "inner", "program")
		},
		"docker kill": func(c *container) {
			s.docker("kill", c.id)
			s.awaitTick(time.Now())
			s.docker("start", c.id)
		},
		"docker stop": func(c *container) {
			s.docker("stop", c.id)
			s.awaitTick(time.Now())
			s.docker("start", c.id)
		},
		"docker restart": func(c *container) { s.docker("restart", c.id) },
		"schedlock release": func(c *container) {
			s.eventually("there is a leader to release", func() bool { // a tick may be the last one
				_, err := s.run("docker", "exec", c.id, "schedlock", "release", "--force", "--yes",
					"--no-wait", "--by", "test", "--reason", "a test")
				return err == nil
			})
		},
	}
	names := make([]string, 0, 2*len(faults))
	for name := range faults {
		names = append(names, name, name)
	}
	done := map[string]int{}
	for begun := time.Now(); len(names) > 0 || time.Since(begun) < *pythonFor; {
		if len(names) == 0 {
			for name := range faults {
				names = append(names, name)
			}
		}
		i := rand.IntN(len(names))
		name := names[i]
		names = slices.Delete(names, i, i+1)
		leader := s.pythonLeader()
		faults[name](leader)
		done[name]++
		s.awaitTick(time.Now())
		time.Sleep(rand.N(time.Second))
	}

	var last pythonStatus
	s.eventually("all have the same status", func() bool {
		answer, ok := s.replicas[0].python()
		last = answer
		return ok
	})
	terms := map[int64]bool{}
	for i, tick := range last.Ticks {
		terms[tick.Term] = true
		if i > 0 {
			before := last.Ticks[i-1]
			require.Greater(t, tick.Second, before.Second, "%+v after %+v", tick, before)
			require.GreaterOrEqual(t, tick.Term, before.Term, "%+v after %+v", tick, before)
		}
	}
	require.Greater(t, len(terms), len(faults))
	span := last.Ticks[len(last.Ticks)-1].Second - first + 1
	t.Logf("faults: %v; %d ticks in %d s, of %d terms", done, len(last.Ticks), span, len(terms))
	programs := 0
	for _, c := range s.replicas {
		pids := s.docker("exec", c.id, "python3", "-c", findProcesses, "program")
		programs += len(strings.Fields(pids))
	}
	require.LessOrEqual(t, programs, 1)
}

// findProcesses prints the pids of the processes with these names, and kills those
// after -9.
const findProcesses = `
import os, signal, sys
def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}") as f: return f.read()
    except OSError: return ""
processes = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    words, stat = read(pid, "cmdline").split("\0"), read(pid, "stat").rpartition(")")[2].split()
    if stat: processes[int(pid)] = words, int(stat[1])
of = {"outer": [p for p, (w, parent) in processes.items() if parent == 1 and "exec" in w]}
of["inner"] = [p for p, (w, parent) in processes.items() if parent in of["outer"]]
of["program"] = [p for p, (w, _) in processes.items() if w[1:2] == ["scheduler.py"]]
kill = sys.argv[1:2] == ["-9"]
for pid in [p for name in sys.argv[1 + kill:] for p in of[name]]:
    print(pid)
    if kill: os.kill(pid, signal.SIGKILL)
`

// killProcess kills processes of the container that leads, or of the one that leads by now.
func (s *stack) killProcess(c *container, names ...string) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%v of the leader is killed", names), func() bool {
		args := append([]string{"exec", c.id, "python3", "-c", findProcesses, "-9"}, names...)
		out, err := s.run("docker", args...)
		if strings.TrimSpace(out) != "" && (err == nil || len(names) > 1) {
			return true // of several, the last may have ended before it was killed
		}
		s.t.Logf("none of %v in %s: %v", names, c.service, err)
		c = s.pythonLeader()
		return false
	})
}

func (s *stack) services() (names []string) {
	for _, c := range s.replicas {
		names = append(names, c.service)
	}
	return names
}

func (s *stack) eventually(what string, condition func() bool) {
	s.t.Helper()
	require.Eventually(s.t, condition, 2*time.Minute, 50*time.Millisecond, what)
}

func (c *container) python() (answer pythonStatus, ok bool) {
	a, err := c.try(http.MethodGet, "/status")
	if err != nil || a.status != http.StatusOK {
		return answer, false
	}
	return answer, json.Unmarshal(a.body, &answer) == nil
}

// awaitTick waits for a tick of a second after that moment, and returns its second.
func (s *stack) awaitTick(after time.Time) (second int64) {
	s.t.Helper()
	s.eventually("a tick", func() bool {
		for _, c := range s.replicas {
			if answer, ok := c.python(); ok && len(answer.Ticks) > 0 {
				if second = answer.Ticks[len(answer.Ticks)-1].Second; second > after.Unix() {
					return true
				}
			}
		}
		return false
	})
	return second
}

// pythonLeader is the replica that made the last tick.
func (s *stack) pythonLeader() (leader *container) {
	s.t.Helper()
	s.eventually("a leader", func() bool {
		for _, c := range s.replicas {
			answer, ok := c.python()
			if !ok || len(answer.Ticks) == 0 {
				continue
			}
			last := answer.Ticks[len(answer.Ticks)-1]
			i := slices.Index(s.services(), last.Host)
			require.GreaterOrEqual(s.t, i, 0, last.Host)
			leader = s.replicas[i]
			return true
		}
		return false
	})
	return leader
}

// pythonImage makes an image of this machine's Python with the packages of the app,
// since images may be out of reach.
func (s *stack) pythonImage() {
	s.t.Helper()
	out, err := exec.Command(python, "-c", "import apscheduler, flask, gunicorn").CombinedOutput()
	require.NoError(s.t, err, "-containers needs the packages of docs/python "+
		"(Debian: apt-get install gunicorn python3-apscheduler python3-flask): %s", out)
	image := s.project + "-python"
	script := `set -euo pipefail
library=$(` + python + ` -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
packages=/usr/lib/python3
shared=$(find $library $packages -name '*.so' -exec ldd ` + python + ` /bin/bash {} + 2>/dev/null |
	grep -oE '/[^ :]+ ' | sort -u)
tar -chPf - --ignore-failed-read --exclude=test --exclude='config-*' --transform='s|^/||' \
	/bin/sh /bin/bash $library $packages ` + python + ` /usr/bin/gunicorn $shared \
	/usr/share/zoneinfo \
	2>/dev/null | docker import - ` + image
	out, err = exec.Command("bash", "-c", script).CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	s.t.Cleanup(func() { _, _ = s.run("docker", "rmi", "-f", image) })
	s.env = append(s.env, "SCHEDLOCK_PYTHON_IMAGE="+image)
	s.t.Logf("image %s: %s", image, strings.TrimSpace(string(out)))
}
