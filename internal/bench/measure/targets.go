//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"example.com/schedlock/internal/bench/page"
)

// reasons say why a target is missed, by the profile of what takes the time.
var reasons = map[string]string{
	"Acquire, MariaDB": "It is one round trip, a block of statements, which the server parses " +
		"each time.",
	"Release, MariaDB": "It is one round trip, a block of statements, which the server parses " +
		"each time.",
	"Heartbeat, SQLite": "Before and after the statement the store looks whether the paths still " +
		"lead to the files that are open: database, -wal, -shm and lease file. " +
		"By the profile that is 41 % of it; without that it would be 1.2 times the limit. " +
		"It cannot be left out, because a heartbeat in a file that nobody else reads is none.",
	"GetLockInfo, SQLite": "It looks whether the paths still lead to the files that are open, " +
		"and asks the lease file whether the holder lives. The limit does neither. " +
		"By the profile that is 25 % and 30 % of it.",
	"hand-over, SQLite: release sent → the next leader may start runs, p50": "It is a release, " +
		"the wake of another process by the kernel, a look, " +
		"and an acquisition that waits for the disk. Within one process it takes less: " +
		"see the table by the number of replicas.",
	"take-over after `kill -9`, PostgreSQL, TTL 60 s, session grace 5s, max": "The grace of 5 s " +
		"is the reason, and jobs are the reason for the grace: " +
		"those of a leader that has lost its session, and lives, have half of it to return. " +
		"A second would be too little for many. Where it is enough, " +
		"WithSessionGrace sets 2 s, as the next row does.",
	"idle standby, PostgreSQL: processor": "It is one look a second: a statement, and its " +
		"answer. A process that does nothing else took 0.067 % (`perf stat`, 10 s).",
}

// A verdict is how many targets are met.
type verdict struct {
	Rows      [][]string
	Met, Open int
	Missed    []string // with the reasons
}

// add compares a figure to its target. part is what part of the limit it is; ok is false if it was
// not measured.
func (v *verdict) add(ok bool, what, limit, figure string, part float64) {
	ratio, met := page.Number(part), "met"
	switch {
	case !ok:
		met, figure, ratio = "not measured", "", ""
		v.Open++
	case math.Round(part*100) > 100: // a count over some seconds is not more exact than that
		met = "**missed**"
		v.Missed = append(v.Missed, "*"+what+"*: "+cmp.Or(reasons[what], "not explained yet."))
	default:
		v.Met++
	}
	if limit == "0" {
		ratio = ""
	}
	v.Rows = append(v.Rows, []string{what, limit, figure, ratio, met})
}

// none is for what must not be at all.
func (v *verdict) none(ok bool, what, figure string, n float64) {
	part := 0.0
	if n != 0 {
		part = 2
	}
	v.add(ok, what, "0", figure, part)
}

// within compares the median and the largest.
func (v *verdict) within(s sample, what string, p50, largest time.Duration) {
	ok := len(s) > 0
	v.add(ok, what+", p50", "≤ "+page.Time(p50), page.Time(s.p50()), float64(s.p50())/float64(p50))
	v.add(ok, what+", max", "≤ "+page.Time(largest), page.Time(s.max()),
		float64(s.max())/float64(largest))
}

// leaderBy16 is the benchmark of the leader check by 16 goroutines.
const leaderBy16 = "IsLeader16Goroutines"

// Targets are the numbers to reach, and what was measured of them.
func (r *report) Targets() *verdict {
	v := &verdict{}
	r.operationTargets(v)
	both := []string{dbSQLite, dbPostgres} // MariaDB has targets for single operations only
	for _, db := range both {
		r.idleTargets(v, db)
	}
	for _, db := range both {
		p50 := map[string]time.Duration{dbSQLite: 1200 * time.Microsecond,
			dbPostgres: 5 * time.Millisecond}[db]
		c := r.Changes[handOver(db)]
		v.within(c.Held, "hand-over, "+db+": release sent → the next leader may start runs", p50,
			50*time.Millisecond)
		v.within(c.Run, "hand-over, "+db+": release sent → its first run has begun",
			8*time.Millisecond, 50*time.Millisecond)
	}
	v.within(r.Changes[takeOverSQLite].Total, "take-over after `kill -9`, SQLite, TTL 60 s",
		10*time.Millisecond, 250*time.Millisecond)
	expired := r.Changes[takeOverExpired].Total
	beyond := expired.max() - expiredTTL
	text := "TTL + " + page.Time(beyond)
	if beyond < 0 {
		text = "TTL − " + page.Time(-beyond)
	}
	v.add(len(expired) > 0, "take-over after `kill -9`, PostgreSQL, without signs of death, max",
		"≤ TTL + 2 s", text, max(beyond.Seconds(), 0)/2)
	for _, grace := range []struct{ name, way string }{{"5s", takeOverGrace},
		{"2s", takeOverShort}} {
		s := r.Changes[grace.way].Total
		v.add(len(s) > 0, "take-over after `kill -9`, PostgreSQL, TTL 60 s, session grace "+
			grace.name+", max", "≤ 3 s", page.Time(s.max()), s.max().Seconds()/3)
	}
	v.within(r.Crowds[dbPostgres][thousand+1], "1,000 standbys on one PostgreSQL: hand-over",
		50*time.Millisecond, 250*time.Millisecond)
	s := r.Starts[dbSQLite+", new"].Held
	v.add(len(s) > 0,
		"start of the process to lock held, new SQLite file, migrations included, p50", "≤ 50 ms",
		page.Time(s.p50())+" (max "+page.Time(s.max())+")", s.p50().Seconds()/0.05)
	return v
}

func (r *report) operationTargets(v *verdict) {
	b := r.Benchmarks
	for _, check := range []struct{ what, name string }{{"“am I leader?”", "IsLeader"},
		{"the same, 16 goroutines at once", leaderBy16}} {
		ns := b.median(check.name, "op-ns")
		v.add(ns > 0, check.what, "≤ 60 ns", fmt.Sprintf("%s ns (`time.Now()` alone %s ns)",
			page.Number(ns), b.number(check.name, "limit-ns")), ns/60)
	}
	allocs := max(b.median("IsLeader", "allocs/op"), b.median(leaderBy16, "allocs/op"))
	v.none(b["IsLeader"] != nil, "the same, allocations", page.Number(allocs), allocs)

	times := func(op, db string, limit float64, than string) {
		bench := benchName(op, db)
		x := b.median(bench, "x-limit")
		v.add(x > 0, op+", "+db, fmt.Sprintf("≤ %v × %s", limit, than),
			fmt.Sprintf("%s × (%s)", page.Number(x), b.spread(bench)), x/limit)
	}
	const (
		rows   = "a transaction that writes the same rows"
		update = "a one-row UPDATE: one round trip"
		row    = "a one-row SELECT"
	)
	times("Acquire", dbSQLite, 1.5, rows)
	times("Acquire", dbPostgres, 1.5, rows)
	times("Acquire", dbMariaDB, 2.2, update)
	times("Heartbeat", dbSQLite, 1.5, rows)
	times("Heartbeat", dbPostgres, 1.2, update)
	times("Heartbeat", dbMariaDB, 1.2, update)
	times("Release", dbSQLite, 1.5, rows)
	times("Release", dbPostgres, 1.5, rows)
	times("Release", dbMariaDB, 1.5, update)
	times("GetLockInfo", dbSQLite, 1.5, row)
	times("GetLockInfo", dbPostgres, 1.5, row)
}

// idleTargets are those of the largest fleet that was measured.
func (r *report) idleTargets(v *verdict, db string) {
	var c idleCost
	written := float64(r.Fleets[db].Written)
	for _, one := range r.Idle {
		if one.DB != db {
			continue
		}
		c = one
		if written += c.Written + float64(c.Changed.rows); db == dbSQLite && c.Changed.changed() {
			written++
		}
	}
	ok := c.Standbys > 0
	v.none(ok, "idle standby, "+db+": writes", fmt.Sprintf("%s by up to %d of them",
		page.Bytes(written), c.Standbys), written)
	v.add(ok, "idle standby, "+db+": statements", "≤ 1 SELECT a second",
		page.Number(c.Looks)+" a second", c.Looks)
	v.add(ok, "idle standby, "+db+": processor", "≤ 0.05 % of a core",
		page.Number(c.CPU*100)+" %", c.CPU/0.0005)
	if db == dbPostgres {
		v.add(ok, "idle standby, PostgreSQL: connections", "1", page.Number(c.Conns), c.Conns)
	}
}
