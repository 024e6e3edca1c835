//go:build linux

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

var before = flag.String("before", "",
	"commits whose demo app works beside this one, separated by commas, such as the last release's")

// buildApp returns the demo app of a commit, and whether it has a store on MariaDB.
func buildApp(t *testing.T, commit string) (app string, mariaDB bool) {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	run := func(in, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = in
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
	}
	run(".", "git", "worktree", "add", "--detach", tree, commit)
	t.Cleanup(func() { run(".", "git", "worktree", "remove", "--force", tree) })
	app = filepath.Join(dir, "demoapp")
	run(tree, "go", "build", "-o", app, "./cmd/demoapp")
	_, err := os.Stat(filepath.Join(tree, "schedlock", "mysql"))
	return app, err == nil
}

// TestUpgrade takes a fleet from an earlier release to this one and back, one
// replica after the other. Old and new ones take over from each other, from leaders
// that are told to stop and from those that are killed. Throughout, one leads, terms
// rise, and no tick is run twice or missing.
func TestUpgrade(t *testing.T) {
	if *before == "" {
		t.Skip("-before=COMMIT works with the demo app of that commit")
	}
	for commit := range strings.SplitSeq(*before, ",") {
		app, mariaDB := buildApp(t, commit)
		databases := []string{"sqlite", "postgres"}
		if mariaDB {
			databases = append(databases, "mariadb")
		}
		for _, database := range databases {
			t.Run(commit+" on "+database, func(t *testing.T) {
				env := []string{"TICK=200ms", "LOCK_TTL=4s", "LOCK_HEARTBEAT=500ms",
					"TICK_CATCHUP=1000", "TICK_OVERLAP=queue"}
				switch database {
				case "sqlite":
					upgrade(t, newFleet(t, env...), app)
				case "postgres":
					upgrade(t, newPostgresFleet(t, env...), app)
				case "mariadb":
					upgrade(t, newFleetOn(t, mytest.Start(t).Database(t), env...), app)
				}
			})
		}
	}
}

func upgrade(t *testing.T, f *fleet, old string) {
	program := func(path string) *replica {
		f.program = path
		return f.start()
	}
	var mu sync.Mutex
	replicas := []*replica{program(old), program(old), program(old)}
	current := func() []*replica {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(replicas)
	}
	stopWatching := watchLeaders(t, current)
	leader, term := awaitOneLeader(t, replicas, 0)
	changes := map[string]int{}
	next := func(end string, from *replica) {
		leader, term = awaitOneLeader(t, current(), term)
		changes[fmt.Sprintf("%s, %s after %s", end, version(leader, old), version(from, old))]++
	}
	// replace ends a replica, and starts one of that program in its place.
	replace := func(r *replica, path, end string) {
		led := r == leader
		if end == "stopped" {
			r.stop()
		} else {
			r.kill()
		}
		mu.Lock()
		at := slices.Index(replicas, r)
		replicas = slices.Delete(replicas, at, at+1)
		mu.Unlock()
		if led { // before the new one comes, so that one that stood by leads
			next(end, r)
		}
		started := program(path)
		mu.Lock()
		replicas = slices.Insert(replicas, at, started)
		mu.Unlock()
	}
	// While one replica of a kind is left, leaders are ended until it has led and one of the other
	// kind has followed it, in both ways.
	for _, to := range []string{"", old} {
		for i := range 3 {
			replace(current()[i], to, "stopped")
			for range 2 {
				replace(leader, leader.cmd.Path, eitherWay())
			}
			if i != 1 {
				continue
			}
			follows := "new after old"
			if to == old {
				follows = "old after new"
			}
			for range 60 {
				if changes["killed, "+follows] > 0 && changes["stopped, "+follows] > 0 {
					break
				}
				replace(leader, leader.cmd.Path, eitherWay())
			}
			require.Positive(t, changes["killed, "+follows], "%v", changes)
			require.Positive(t, changes["stopped, "+follows], "%v", changes)
		}
	}
	stopWatching()
	for _, r := range current() {
		r.stop()
	}
	f.program = ""
	reader, _ := f.startLeader()
	ran, skipped := f.requireEveryTickOnce(reader, 200*time.Millisecond)
	terms := reader.terms()
	for i := range len(terms) - 1 {
		require.Greater(t, terms[i].Term, terms[i+1].Term)
		require.False(t, terms[i].AcquiredAt.Before(terms[i+1].EndedAt), "%+v before the end of %+v",
			terms[i], terms[i+1])
	}
	t.Logf("%d terms, %d ticks run, %d skipped; %v", len(terms), ran, skipped, changes)
}

// eitherWay is how a leader ends, by chance: else two may take turns, each ended in one way only.
func eitherWay() string { return []string{"killed", "stopped"}[rand.IntN(2)] }

func version(r *replica, old string) string {
	if r.cmd.Path == old {
		return "old"
	}
	return "new"
}

// watchLeaders fails the test if one replica leads, before and after another does.
func watchLeaders(t *testing.T, replicas func() []*replica) (stop func()) {
	var ended atomic.Bool
	done := make(chan struct{})
	leads := func(r *replica) int64 {
		a, err := r.try(http.MethodGet, "/lock")
		if err != nil {
			return 0 // it has ended
		}
		var l lockAnswer
		if json.Unmarshal(a.body, &l) != nil || !l.Self.Leader {
			return 0 // no 200
		}
		return l.Self.Term
	}
	go func() {
		defer close(done)
		for ; !ended.Load(); time.Sleep(20 * time.Millisecond) {
			var first *replica
			var its int64
			for _, r := range replicas() {
				term := leads(r)
				if term == 0 {
					continue
				}
				if first != nil && leads(first) == its {
					t.Errorf("%d leads in term %d, and %d in %d", first.pid(), its, r.pid(), term)
				}
				first, its = r, term
			}
		}
	}()
	return func() { ended.Store(true); <-done }
}
