//go:build linux

package main

import (
	"fmt"
	"time"
)

func (r *report) crowds(w *writer) {
	w.say("### By the number of replicas")
	w.say("Here the replicas are goroutines of one process. " +
		"Each has a lock of its own, and a store, that is a connection. " +
		"With so many processes the test would measure the scheduler of this machine. " +
		"The time is from when the leader sends the release until another leads. " +
		"All others stand by and wait for a hint.")
	if r.Crowds == nil {
		w.say("Not measured in this run.")
		return
	}
	var rows [][]string
	sizes := append(append([]int{}, r.Crowds.Sizes...), thousand)
	for _, db := range databases {
		for _, size := range sizes {
			if s := r.Crowds.Took[db][size]; len(s) > 0 {
				name := fmt.Sprintf("%s, %d replicas", db, size)
				if size == thousand {
					name = db + ", a leader and 1,000 standbys"
				}
				rows = append(rows, append([]string{name}, s.cells()...))
			}
		}
	}
	w.table(false, []string{"", "rounds", "p50", "p99", "max"}, rows)
	w.histogram("A leader and 1,000 standbys on one PostgreSQL server",
		r.Crowds.Took[dbPostgres][thousand])
}

func (r *report) idle(w *writer) {
	w.say("## What an idle standby costs")
	if r.Idle == nil {
		w.say("Not measured in this run.")
		return
	}
	var rows [][]string
	for _, db := range databases {
		for _, n := range r.Idle.Sizes {
			c := r.Idle.Cost[db][n]
			if c == nil {
				continue
			}
			changed, conns, server, served := "the file and its WAL untouched", "", "", ""
			if c.Changed > 0 {
				changed = "**the file or its WAL changed**"
			}
			if db == dbPostgres {
				changed = fmt.Sprintf("%s of WAL, %d rows", bytes(float64(c.Changed)), c.Rows)
				conns, served = digits(c.Conns), digits(c.Statements)
				server = fmt.Sprintf("%s %% = %s s", digits(c.Server*100), digits(c.Server*3600))
			}
			rows = append(rows, []string{fmt.Sprintf("%s, %d", db, n), digits(c.Looks), served,
				bytes(float64(c.Written) / c.Window.Hours()), changed,
				fmt.Sprintf("%s %% = %s s", digits(c.CPU*100),
					digits(c.CPU*3600)), server, bytes(c.Memory), conns})
		}
	}
	var window time.Duration
	for _, c := range r.Idle.Cost[dbSQLite] {
		window = c.Window
	}
	w.say("Standbys are processes of their own. The leader is in the measuring program, "+
		"and its next heartbeat is hours away. "+
		"So the standbys cause everything that is counted. Each row is one round of %v. "+
		"SELECTs are per second and standby, as the store runs them; "+
		"*seen by the server* is what PostgreSQL counts as transactions. "+
		"Bytes written are those that the kernel counts for all standbys together (`write_bytes` "+
		"of `/proc/…/io`). "+
		"Processor time is per standby: part of one core, and seconds per hour; "+
		"*server* is that of its PostgreSQL process. "+
		"Memory is the proportional set size of a process, the program itself shared. "+
		"(All WAL is the server's own: it notes its running transactions.)", window)
	w.table(false, []string{"standbys", "SELECTs/s", "seen by the server", "written, all, per hour",
		"the database", "processor", "server", "memory", "connections"}, rows)
	rows = nil
	for _, db := range databases {
		l := r.Idle.Long[db]
		if l == nil {
			continue
		}
		grew := fmt.Sprintf("file %s, WAL %s", bytes(float64(l.File)), bytes(float64(l.WAL)))
		if db == dbPostgres {
			grew = fmt.Sprintf("%d rows written, WAL %s", l.Rows, bytes(float64(l.WAL)))
		}
		rows = append(rows, []string{db, fmt.Sprint(l.Beats),
			bytes(float64(l.Written)), bytes(float64(l.Leader)), grew,
			fmt.Sprintf("%s %% = %s s/h", digits(l.LeaderCPU*100),
				digits(l.LeaderCPU*3600)), bytes(l.LeaderMem)})
	}
	if len(rows) > 0 {
		w.say("A whole fleet ran for %v, one round: "+
			"20 standbys, and a leader that beats every 10 s and has no run to start. "+
			"*Grew* is what changed in the database, by the leader, "+
			"and by the server's autovacuum. "+
			"The leader's processor time includes four looks a second for requests and pauses.",
			time.Minute)
		w.table(false, []string{"20 standbys", "heartbeats", "written by the standbys",
			"by the leader", "grew", "leader's processor", "leader's memory"}, rows)
	}
}

func (r *report) starts(w *writer) {
	w.say("## Start of the process to lock held")
	w.say("One replica ran alone. The time is from just before its process starts. " +
		"*New* is a database without tables. *Warm* is one that has them, with a free lock. " +
		"The program is this measuring program, with both drivers.")
	if r.Starts == nil {
		w.say("Not measured in this run.")
		return
	}
	var rows [][]string
	for _, db := range databases {
		for _, kind := range []struct {
			name string
			of   map[string]*started
		}{{"new", r.Starts.Fresh}, {"warm", r.Starts.Warm}} {
			if s := kind.of[db]; s != nil {
				rows = append(rows, append(append([]string{db + ", " + kind.name},
					s.Held.cells()...), show(s.Main.p50()), show(s.Open.p50())))
			}
		}
	}
	w.table(false, []string{"", "rounds", "p50", "p99",
		"max", "p50 until main()", "p50 to open and migrate"}, rows)
	if s := r.Starts.Fresh[dbSQLite]; s != nil {
		w.histogram("A new SQLite file", s.Held)
	}
}

func (r *report) operations(w *writer) {
	w.say("## Single operations")
	w.say("The benchmarks compare each operation with its limit. " +
		"That is what the same driver needs for the same effect, with the same durability, " +
		"on the same file system. " +
		"The two take turns, and the order is swapped every time. " +
		"The figures are medians, of the runs of the benchmark too.")
	var rows [][]string
	add := func(what, name, allocsUnit string) {
		took, ok := r.Benchmarks.median(name, "op-ns")
		if !ok {
			return
		}
		limit, _ := r.Benchmarks.median(name, "limit-ns")
		x, _ := r.Benchmarks.median(name, "x-limit")
		from, to := r.Benchmarks.spread(name)
		allocs, _ := r.Benchmarks.median(name, allocsUnit)
		rows = append(rows, []string{what, fmt.Sprint(len(r.Benchmarks[name]["op-ns"])),
			show(time.Duration(took)), show(time.Duration(limit)),
			digits(x), digits(from) + "–" + digits(to), digits(allocs)})
	}
	add("IsLeader; limit: `time.Now()`", "IsLeader", "allocs/op")
	add("IsLeader, 16 goroutines at once", leaderBy16, "allocs/op")
	for _, op := range []string{"Acquire", "Heartbeat", "Release", "GetLockInfo"} {
		for _, db := range databases {
			add(op+", "+db, benchName(op, db), "allocs-op")
		}
	}
	w.table(false, []string{"", "runs", "takes", "limit",
		"ratio", "ratio from–to", "allocations"}, rows)
	w.say("%s", comparing)
}

// comparing says how far the benchmarks can be trusted: seen on 2026-11-21, with
// a machine and a disk as in the tables of that day.
const comparing = "To compare two commits, build the benchmarks of both (`go test -c " +
	"./internal/bench`). " +
	"Let them take turns, a sample of the one and a sample of the other, " +
	"and give the two files to benchstat. " +
	"Two runs of one commit compared like that, eight samples each, showed no operation whose " +
	"time had changed (p ≥ 0.4). " +
	"Of eight ratios to a limit two differed by 1.0 % and 1.5 % with p < 0.05. " +
	"So ignore a difference below 2 %. " +
	"One run after the other, six samples each, differed by up to 30 % in time, " +
	"because the disk did. The ratios differed by up to 4 %."
