//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A group is a cluster of the short run, with the faults that it suffers.
type group struct {
	name                      string
	sameOwner, appPool, small bool
	postgres, pooler          bool
	sessions                  bool // their end is a sign
	faults                    []string
	locks                     bool // named locks and a queue are used too
}

func (g group) open(t *testing.T, dir string) (Database, error) {
	small := func(small bool) (Database, error) {
		if g.postgres {
			return newPostgres(t, 3, g.appPool, g.pooler, small)
		}
		return newSQLite(dir, g.appPool, small)
	}
	db, err := small(g.small)
	if errors.Is(err, errCannotInject) { // the fault that needs it says so
		db, err = small(false)
	}
	return db, err
}

var groups = []group{
	{name: "processes", faults: []string{
		"kill -9 of the leader", "kill -9 of all", "SIGSTOP past the TTL, SIGCONT",
		"SIGSTOP, another leads, kill -9 of the stopped one", "SIGTERM in the middle of a job",
		"job panics", "job fails, kill -9 of the leader before its next attempt", "job leaves a child behind, kill -9 of the leader", "file read-only",
	}},
	{name: "one pid and host for all, on the app's pool", sameOwner: true, appPool: true, faults: []string{
		"SIGSTOP past the TTL, one pid and host for all", "SIGSTOP for a quarter of the TTL",
		"clock of the leader stepped by an hour, and back", "clock of all stepped by an hour, and back",
		"the app's pool exhausted", "the app's pool exhausted, kill -9 of the leader",
	}},
	{name: "small disk", small: true, faults: []string{
		"disk full", "file moved away and back", "write lock held for 0.4 TTL", "write lock held beyond the TTL",
		"lease file deleted", "job ignores its cancellation", "leader revoked in the middle of a job",
	}},
	{name: "rows and files", sameOwner: true, faults: []string{
		"row deleted, SIGSTOP for a moment", "row and lease file deleted, SIGSTOP for a moment", "row's token edited, SIGSTOP for a moment", "row's term edited, SIGSTOP for a moment", "row's pid edited, SIGSTOP for a moment",
		"row stamped into the past, SIGSTOP for a moment", "row stamped into the future, SIGSTOP for a moment",
		"row's TTL set to 1 ms, SIGSTOP for a moment", "file deleted", "file replaced by an older copy",
	}},
}

// testRun is what the clusters of one test share.
type testRun struct {
	t      *testing.T
	seed   uint64
	stalls *StallMeter

	mu     sync.Mutex
	report Report
	count  count
	locks  lockCount
}

func newTestRun(t *testing.T) *testRun {
	r := &testRun{t: t, seed: *seedFlag, stalls: NewStallMeter()}
	if r.seed == 0 {
		r.seed = rand.Uint64()>>32 + 1
	}
	for _, f := range slices.Concat(Faults, PostgresFaults, LockFaults) {
		r.report.line(f.Name)
	}
	t.Logf("-faults.seed=%d", r.seed)
	t.Cleanup(func() { r.stalls.Stop(); r.publish() })
	return r
}

// publish prints the table, and writes it where it was asked for.
func (r *testRun) publish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Lines = slices.DeleteFunc(r.report.Lines, func(l Line) bool { return l.Times == 0 && l.Violations == 0 && l.Note == "" })
	var text strings.Builder
	_ = r.report.Write(&text)
	fmt.Fprintf(&text, "\n%v\n%v\n", r.count, r.locks)
	fmt.Printf("%s, seed %d:\n\n%s\n", r.t.Name(), r.seed, text.String())
	if *reportFile != "" {
		if err := os.WriteFile(*reportFile, []byte(text.String()), 0o644); err != nil {
			r.t.Error(err)
		}
	}
}

// with runs one cluster: start, do, close, check.
func (r *testRun) with(t *testing.T, g group, number int, do func(context.Context, *Cluster) (map[string]error, error)) {
	dir := t.TempDir()
	if *keepFiles != "" {
		dir = filepath.Join(*keepFiles, fmt.Sprintf("%s%d", strings.ReplaceAll(g.name, " ", "-"), number))
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	db, err := g.open(t, dir)
	require.NoError(t, err)
	defer db.Close()
	ctx := t.Context()
	config := Config{
		Dir: dir, Processes: 3, TTL: 2 * time.Second, Heartbeat: 300 * time.Millisecond, Tick: 200 * time.Millisecond,
		Drain: 300 * time.Millisecond, SameOwner: g.sameOwner, Seed: r.seed + uint64(number), Logf: t.Logf, Locks: g.locks,
	}
	if g.postgres { // a request may take a second
		config.TTL, config.Heartbeat = 3*time.Second, 400*time.Millisecond
	}
	if g.sessions { // so that a grace, too, can take some load
		config.TTL, config.Heartbeat, config.Grace = 8*time.Second, time.Second, 2*time.Second
	}
	c, err := NewCluster(ctx, config, db)
	require.NoError(t, err)
	refused, err := do(ctx, c)
	if err != nil {
		t.Errorf("%v\n%s", err, c.Describe(ctx))
	} else if err := c.Quiet(ctx); err != nil {
		t.Errorf("in the end: %v\n%s", err, c.Describe(ctx))
	}
	require.NoError(t, c.Close())
	h, err := c.History(ctx)
	require.NoError(t, err)
	slack := *slackFlag
	if slack < 0 {
		slack = 500 * time.Millisecond
		if *soakFor == 0 { // beside the tests of other packages, which need the machine too
			slack = keepsSlack
		}
	}
	vs := Check(h, slack, r.stalls.Worst)
	if *keepFiles != "" {
		require.NoError(t, h.writeLedger(filepath.Join(dir, "ledger")))
	}
	r.mu.Lock()
	r.report.Add(h, vs)
	r.mu.Unlock()
	for name, why := range refused {
		t.Logf("not injected: %s: %v", name, why)
		r.refuse(name, why)
	}
	if g.locks {
		n := h.lockCount()
		t.Log(n)
		assert.NotZero(t, n.holds, "nobody has held a named lock")
		assert.NotZero(t, n.writes, "nobody has written under one")
		assert.NotZero(t, n.done, "no task was done")
	}
	t.Logf("%d processes, %d failed starts, %d terms, %d fenced writes, %v", len(c.all), c.failed, len(h.Beliefs), len(h.Writes), h.count())
	r.mu.Lock()
	r.count = r.count.plus(h.count())
	r.locks = r.locks.plus(h.lockCount())
	r.mu.Unlock()
	for i, v := range vs {
		t.Errorf("%v", v)
		if i < 3 {
			t.Log(Evidence(h, v, dir))
		}
	}
}

func (r *testRun) refuse(name string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.line(name).Note = why.Error()
}

// Every fault, at least twice.
func TestNoFaultMakesTwoLeadersOrNoneForLong(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	run := newTestRun(t)
	var together together
	for n, g := range groups {
		together.run(t, g.name, func(t *testing.T) { run.with(t, g, n, g.times(2)) })
	}
	together.run(t, "corruption", func(t *testing.T) {
		for n := range 4 {
			run.with(t, group{name: "corruption"}, 100+n, func(ctx context.Context, c *Cluster) (map[string]error, error) {
				return nil, c.Inject(ctx, fault([]string{"header corrupted", "pages corrupted"}[n%2]))
			})
		}
	})
	together.run(t, "storm", func(t *testing.T) {
		run.with(t, group{name: "storm", appPool: true}, 200, func(ctx context.Context, c *Cluster) (map[string]error, error) {
			return c.Storm(ctx, survivable(true, Faults...), 8, 0)
		})
	})
	together.Wait()
}

// times returns what injects every fault of the group n times.
func (g group) times(n int) func(context.Context, *Cluster) (map[string]error, error) {
	return func(ctx context.Context, c *Cluster) (map[string]error, error) {
		refused := map[string]error{}
		for range n {
			for _, i := range c.random.Perm(len(g.faults)) {
				err := c.Inject(ctx, fault(g.faults[i]))
				if errors.Is(err, errCannotInject) {
					refused[g.faults[i]] = err
				} else if err != nil {
					return refused, err
				}
			}
		}
		return refused, nil
	}
}

// together runs subtests at once, however few processors there are: they
// mostly wait.
type together struct {
	sync.WaitGroup
	limit chan struct{} // nil: all at once; else as many as it has room
}

func (w *together) run(t *testing.T, name string, do func(*testing.T)) {
	w.Go(func() {
		if w.limit != nil {
			w.limit <- struct{}{}
			defer func() { <-w.limit }()
		}
		t.Run(name, do)
	})
}

// survivable returns the faults of a storm, without those that step clocks or
// those that lose the database.
func survivable(clocks bool, faults ...Fault) []Fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f Fault) bool {
		return f.Last || clocks && f.Restore || !clocks && f.Clock
	})
}

func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("-faults.soak=10m runs a random storm of that length")
	}
	require.Contains(t, backends, *soakOn)
	run := newTestRun(t)
	var together together
	for n := range *soakMany * 2 {
		g := group{name: fmt.Sprintf("storm %d", n), sameOwner: n%4 < 2, appPool: n/2%2 == 0, small: n%3 == 2}
		faults := Faults
		if *soakOn == kindPostgres {
			// Small disks and poolers have no replica.
			g.postgres, g.small, g.pooler = true, n%6 == 2, n%6 == 4 || n%6 == 1
			g.sessions = n%2 == 0
			faults = slices.Concat(sharedFaults(), PostgresFaults)
		}
		if g.locks = n%3 == 0; g.locks {
			faults = slices.Concat(faults, LockFaults)
		}
		together.run(t, g.name, func(t *testing.T) {
			run.with(t, g, n, func(ctx context.Context, c *Cluster) (map[string]error, error) {
				return c.Storm(ctx, survivable(n%2 == 0, faults...), 0, *soakFor)
			})
		})
	}
	together.Wait()
}
