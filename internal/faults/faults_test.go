//go:build linux

package faults

import (
	"cmp"
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

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
)

// A group is a cluster of the short run, with the faults that it suffers.
type group struct {
	name                      string
	on                        string // a kind of database, kindGalera or onPatroni; "": SQLite
	sameOwner, appPool, small bool
	pooler                    bool // of PostgreSQL
	synchronous               bool // of Patroni
	sign                      bool // mysql.WithSessionSign
	sessions                  bool // their end is a sign
	tunnel                    bool // or would be one: a tunnel is in between
	two                       bool // processes instead of three: each fault hits the leader
	faults                    []string
	histories                 []string // after those; see postgres_test.go
	locks                     bool     // named locks and a queue are used too
	load                      bool     // and much else at once
	judge                     func(*testing.T, *History)
}

// onPatroni are three servers of PostgreSQL, see patroni_test.go.
const onPatroni = "patroni"

func (g group) open(t *testing.T, dir string) (Database, error) {
	with := func(small, tunnel bool) (Database, error) {
		switch g.on {
		case onPatroni:
			return newPatroni(t, 3, g.synchronous)
		case kindGalera:
			return newGalera(t, 3)
		case kindMySQL:
			return newMySQL(t, 3, g.sign, small)
		case kindPostgres:
			return newPostgres(t, 3, g.appPool, g.pooler, small, tunnel)
		}
		return newSQLite(dir, g.appPool, small)
	}
	db, err := with(g.small, g.tunnel)
	if errors.Is(err, errCannotInject) { // the fault that needs it says so
		db, err = with(false, false)
	}
	return db, err
}

// server reports whether the database is on one.
func (g group) server() bool { return g.on != "" && g.on != onPatroni }

// measures reports whether a long run was asked for: it ends when it ends, and what is late in it
// counts.
func measures() bool { return *soakFor > 0 || *loadFor > 0 || *patroniFlag > 0 }

// full reports whether the cluster has the size of a full run.
func (group) full() bool { return *soakFor > 0 || *loadFor > 0 || missing.Full() }

var groups = []group{
	{name: "processes", faults: []string{
		"kill -9 of the leader", "kill -9 of all", "SIGSTOP past the TTL, SIGCONT",
		"SIGSTOP, another leads, kill -9 of the stopped one",
		"SIGSTOP, another leads, kill -9 of that one", "SIGTERM in the middle of a job",
		"job panics", "job fails, kill -9 of the leader before its next attempt",
		"job leaves a child behind, kill -9 of the leader", "file read-only",
	}},
	{name: "one pid and host for all, on the app's pool", sameOwner: true, appPool: true,
		faults: []string{
			"SIGSTOP past the TTL, one pid and host for all", "SIGSTOP for a quarter of the TTL",
			"clock of the leader stepped by an hour, and back",
			"clock of all stepped by an hour, and back",
			"the app's pool exhausted", "the app's pool exhausted, kill -9 of the leader",
			"side files removed",
		}},
	{name: "small disk", small: true, faults: []string{
		"disk full", "file moved away and back", "write lock held for 0.4 TTL",
		"write lock held beyond the TTL",
		"lease file deleted", "another user locks what he may read, kill -9 of the leader",
		"hard link made", "folder switched", "job ignores its cancellation",
		"leader revoked in the middle of a job",
	}},
	{name: "rows and files", sameOwner: true, faults: []string{
		"row deleted, SIGSTOP for a moment", "row and lease file deleted, SIGSTOP for a moment",
		"row's token edited, SIGSTOP for a moment", "row's term edited, SIGSTOP for a moment",
		"row's pid edited, SIGSTOP for a moment",
		"row stamped into the past, SIGSTOP for a moment",
		"row stamped into the future, SIGSTOP for a moment",
		"row's TTL set to 1 ms, SIGSTOP for a moment", "file deleted",
		"file replaced by an older copy",
	}},
}

// Without a group only a soak injects a fault. The test of corruption injects those
// that are Last.
func TestEachFaultIsInAGroup(t *testing.T) {
	t.Parallel()
	named := []string{"server stopped past the TTL"} // in a history
	for _, g := range slices.Concat(groups, postgresGroups, mysqlGroups, lockGroups) {
		named = append(append(named, g.faults...), g.histories...)
	}
	for _, f := range append(everyFault(), histories...) {
		assert.True(t, f.Last || slices.Contains(named, f.Name), f.Name)
	}
}

// The clusters of the default run: on SQLite, on PostgreSQL, and of named locks.
func fileClusters() []group   { return slices.Concat(groups, groups) }
func serverClusters() []group { return twice(postgresGroups, lockGroups[1:]) }
func lockClusters() []group {
	return append(twice(lockGroups[:1], groups), twice(lockGroups[1:], postgresGroups)...)
}

// Most groups of MariaDB need a full run.
func TestTheDefaultRunHasEachFaultTwice(t *testing.T) {
	t.Parallel()
	times := map[bool]map[string]int{false: {}, true: {}} // on PostgreSQL?
	for _, g := range slices.Concat(fileClusters(), serverClusters(), lockClusters()) {
		for _, f := range g.faults {
			times[g.on == kindPostgres][f]++
		}
	}
	for postgres, faults := range times {
		for f, n := range faults {
			assert.GreaterOrEqual(t, n, 2, "on PostgreSQL: %v, %s", postgres, f)
		}
	}
}

// fault returns the fault with that name.
func fault(name string) Fault {
	for _, f := range append(everyFault(), histories...) {
		if f.Name == name {
			return f
		}
	}
	panic("no fault " + name)
}

// testRun is what the clusters of one test share.
type testRun struct {
	t    *testing.T
	seed uint64

	mu     sync.Mutex
	report Report
	count  count
}

func newTestRun(t *testing.T) *testRun {
	r := &testRun{t: t, seed: *seedFlag}
	if r.seed == 0 {
		r.seed = rand.Uint64()>>32 + 1
	}
	for _, f := range everyFault() {
		r.report.line(f.Name)
	}
	t.Logf("-faults.seed=%d", r.seed)
	if !measures() {
		t.Parallel()
	}
	t.Cleanup(r.publish)
	return r
}

// publish prints the table, and writes it where it was asked for.
func (r *testRun) publish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Lines = slices.DeleteFunc(r.report.Lines, func(l Line) bool {
		return l.Times == 0 && l.Violations == 0 && l.Note == ""
	})
	var text strings.Builder
	_ = r.report.Write(&text)
	fmt.Fprintf(&text, "\n%v\n", r.count)
	fmt.Printf("%s, seed %d:\n\n%s\n", r.t.Name(), r.seed, text.String())
	if *reportFile != "" {
		if err := os.WriteFile(*reportFile, []byte(text.String()), 0o644); err != nil {
			r.t.Error(err)
		}
	}
}

// with runs one cluster: start, do, close, check. In the default run, which has
// few processors beside the tests of other packages, a cluster in which somebody
// only came too late has two more chances: whether replicas are available is
// judged in a soak, on a quiet machine. Whether they are safe is judged each time.
func (r *testRun) with(t *testing.T, g group, number int,
	do func(context.Context, *Cluster) (map[string]error, error)) {
	for left := 2; ; left-- {
		late := r.once(t, g, number, do, left > 0 && !measures())
		if late == "" {
			return
		}
		t.Logf("once more, as nothing but time was the matter: %s", late)
	}
}

// lateRules are those that a machine without processors to spare breaks.
var lateRules = []string{RuleSomebody, RuleKeeps, RuleLives, RuleFault, RuleStartsWork,
	RuleRequests}

// dir is a new folder for a cluster. Only a soak waits for a real disk: what a
// process has written outlives its kill in memory, too.
func (r *testRun) dir(t *testing.T, g group, number int) string {
	switch {
	case *keepFiles != "":
		require.NoError(t, os.MkdirAll(*keepFiles, 0o755))
		dir, err := os.MkdirTemp(*keepFiles, fmt.Sprintf("%s%d-",
			strings.ReplaceAll(g.name, " ", "-"), number))
		require.NoError(t, err)
		return dir
	case *soakFor > 0 || *loadFor > 0:
		dir, err := os.MkdirTemp(child.Disk, "faults")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
		return dir
	}
	return pgtest.TempDir(t)
}

// clusterLimit is far beyond what the faults of a group take on a starved machine. A cluster that
// hangs says where, before the time of the whole test is up.
const clusterLimit = 8 * time.Minute

var errClusterLimit = fmt.Errorf("the cluster has not come to its end within %v", clusterLimit)

// once is one try; with another to come it returns why that is needed.
func (r *testRun) once(t *testing.T, g group, number int,
	do func(context.Context, *Cluster) (map[string]error, error), another bool) (late string) {
	dir := r.dir(t, g, number)
	started := awaitTurn(number)
	defer started()
	defer enter()()
	db, err := g.open(t, dir)
	require.NoError(t, err)
	defer db.Close()
	ctx := t.Context()
	config := Config{
		Dir: dir, Processes: 3, SameOwner: g.sameOwner, Seed: r.seed + uint64(number), Logf: t.Logf,
		Shape: Shape{TTL: 2 * time.Second, Heartbeat: 300 * time.Millisecond,
			Tick: 200 * time.Millisecond, Drain: 300 * time.Millisecond,
			Locks: g.locks, Load: g.load},
	}
	if *soakFor == 0 { // the default run has few processors
		config.Tick, config.Frugal = 300*time.Millisecond, *loadFor == 0
	}
	// A third process on a server needs as much of the machine as each of the others.
	if g.two || g.load || g.server() && !g.full() {
		config.Processes = 2
	}
	if g.server() { // a request may take a second
		config.TTL, config.Heartbeat = 3*time.Second, 400*time.Millisecond
		if config.Frugal { // and takes the server some time
			config.Tick = 400 * time.Millisecond
		}
	}
	if g.sessions { // so that a grace, too, can take some load
		config.TTL, config.Heartbeat, config.Grace = 8*time.Second, time.Second, 2*time.Second
		if *soakFor == 0 && !g.load { // the default run has little time
			config.TTL, config.Heartbeat = 5*time.Second, 500*time.Millisecond
		}
	}
	if g.on == kindGalera { // nobody can write while the nodes are not sure who is gone
		config.TTL, config.Heartbeat = 8*time.Second, time.Second
	}
	if g.load {
		config.Tick = time.Second
	}
	c, err := NewCluster(ctx, config, db)
	started()
	require.NoError(t, err)
	limited := ctx
	if !measures() {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeoutCause(ctx, clusterLimit, errClusterLimit)
		defer cancel()
	}
	refused, err := do(limited, c)
	if err == nil {
		if err = c.Quiet(limited); err != nil {
			err = fmt.Errorf("in the end: %w", err)
		}
	}
	if err != nil && limited.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(limited), err)
	}
	if err != nil && another {
		late = err.Error()
	} else if err != nil {
		t.Errorf("%v\n%s", err, c.Describe(ctx))
	}
	require.NoError(t, c.Close())
	var h *History
	await(ctx, 2*time.Minute, func() bool { // a starved server is slow to accept a connection
		h, err = c.History(ctx)
		return err == nil
	})
	require.NoError(t, err)
	slack := *slackFlag
	if slack < 0 {
		slack = 500 * time.Millisecond
		if *soakFor == 0 { // beside the tests of other packages, which need the machine too
			slack = keepsSlack
		}
	}
	vs := Check(h, slack, stalls.Worst)
	if another {
		safe := true
		for _, v := range vs {
			safe = safe && slices.Contains(lateRules, v.Rule)
			late = cmp.Or(late, v.String())
		}
		if late != "" && safe {
			return late
		}
		if err != nil {
			t.Error(err)
		}
	}
	if *keepFiles != "" {
		require.NoError(t, h.writeLedger(filepath.Join(dir, "ledger")))
	}
	for name, why := range refused {
		t.Logf("not injected: %s: %v", name, why)
	}
	var n count
	n.add(h)
	t.Logf("%d processes, %d failed starts, %d terms, %d fenced writes, %v", len(c.all), c.failed,
		len(h.Beliefs), len(h.Writes)-n.writes, n)
	if g.locks {
		assert.NotZero(t, n.holds, "nobody has held a named lock")
		// Under load few hold it.
		assert.True(t, g.load || n.writes > 0, "nobody has written under one")
		assert.NotZero(t, n.done, "no task was done")
	}
	r.add(h, vs, refused)
	for _, text := range h.Undecided {
		t.Log("undecided:", text)
	}
	for i, v := range vs {
		t.Errorf("%v", v)
		if i < 3 {
			t.Log(Evidence(h, v, dir))
		}
	}
	if g.judge != nil {
		g.judge(t, h)
	}
	return ""
}

// add takes what a cluster has shown into the report.
func (r *testRun) add(h *History, vs []Violation, refused map[string]error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Add(h, vs)
	r.count.add(h)
	for name, why := range refused {
		r.report.line(name).Note = why.Error()
	}
}

// Every fault, at least twice.
func TestNoFaultMakesTwoLeadersOrNoneForLong(t *testing.T) {
	missing.Long(t, "takes a minute")
	run := newTestRun(t)
	var together together
	run.inject(&together, fileClusters(), 100, 1)
	for n := range 4 {
		together.run(t, fmt.Sprint("corruption, ", n), func(t *testing.T) {
			run.with(t, group{name: "corruption"}, 200+n,
				func(ctx context.Context, c *Cluster) (map[string]error, error) {
					return nil, c.Inject(ctx,
						fault([]string{"header corrupted", "pages corrupted"}[n%2]))
				})
		})
	}
	if missing.Full() {
		together.run(t, "storm", func(t *testing.T) {
			run.with(t, group{name: "storm", appPool: true}, 90,
				func(ctx context.Context, c *Cluster) (map[string]error, error) {
					return c.Storm(ctx, survivable(true, Faults...), 8, 0)
				})
		})
	}
	together.Wait()
}

// inject runs each group in a cluster of its own, with each fault so many times. Their numbers
// count from first.
func (r *testRun) inject(w *together, groups []group, first, times int) {
	for n, g := range groups {
		// No name occurs twice: a # in a path would end the DSN.
		w.run(r.t, fmt.Sprint(g.name, ", ", n), func(t *testing.T) {
			r.with(t, g, first+n, g.times(times))
		})
	}
}

// times returns what injects every fault of the group n times, and then its histories twice; in a
// soak 20 times.
func (g group) times(n int) func(context.Context, *Cluster) (map[string]error, error) {
	all := slices.Repeat([][]string{g.faults}, n)
	if *soakFor > 0 {
		all = append(all, slices.Repeat([][]string{g.histories}, 20)...)
	} else {
		all = append(all, g.histories, g.histories)
	}
	return func(ctx context.Context, c *Cluster) (map[string]error, error) {
		refused := map[string]error{}
		for _, names := range all {
			for _, i := range c.random.Perm(len(names)) {
				err := c.Inject(ctx, fault(names[i]))
				if errors.Is(err, errCannotInject) {
					refused[names[i]] = err
				} else if err != nil {
					return refused, err
				}
			}
		}
		return refused, nil
	}
}

// twice are some groups of one database, with each fault twice that is in only one of them and
// in none of the others: so each comes at least twice in all.
func twice(some, others []group) (all []group) {
	for _, g := range some {
		once := g.faults
		g.faults = nil
		for _, name := range once {
			g.faults = append(g.faults, name)
			if !slices.ContainsFunc(slices.Concat(some, others), func(o group) bool {
				return o.name != g.name && slices.Contains(o.faults, name)
			}) {
				g.faults = append(g.faults, name)
			}
		}
		all = append(all, g)
	}
	return all
}

// The harness' rules hold without an excuse: nothing that was committed is lost.
func TestSideFilesRemovedInAnyOrder(t *testing.T) {
	missing.Long(t, "takes ten seconds")
	missing.OnlyFull(t, "removes them more often than the other clusters do")
	run := newTestRun(t)
	var together together
	together.run(t, "side files", func(t *testing.T) {
		run.with(t, group{name: "side files"}, 300,
			group{faults: []string{"side files removed"}}.times(*ordersFlag))
	})
	together.Wait()
}

// The rules about ticks differ where a clock was set.
func TestSeveralFaultsAtOnceSetTheClockIfOneDoes(t *testing.T) {
	assert.True(t, atOnce([]Fault{{Name: "a"}, {Name: "b", Clock: true}}).Clock)
	assert.False(t, atOnce([]Fault{{Name: "a"}, {Name: "b"}}).Clock)
}
