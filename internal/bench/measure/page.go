//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"example.com/schedlock/internal/bench/section"
)

// A report is all that was measured. What was not is nil.
type report struct {
	Date    time.Time
	Took    time.Duration
	Command string
	Facts   []fact
	Missing string   // why nothing was measured on PostgreSQL; "": it was
	Failed  []string // parts

	Noise      []noiseSample
	processors processors // at the last of them

	Benchmarks benchmarks
	Starts     *starts
	Changes    *changes
	Crowds     *crowds
	Idle       *idle
	Growth     *growth
	Sizes      []built
	MariaDB    *mariaDB
	Kept       string // the section about MariaDB of an earlier run, if this one has none
	Peers      string // the section that internal/bench/peers has written
}

// over is the page in the place of an old one, of which it keeps what other runs have
// written.
func (r *report) over(old string) string {
	r.Peers, r.Kept = section.Of(old, section.Peers), section.Of(old, section.MariaDB)
	if r.MariaDB != nil && r.MariaDB.Alone && old != "" {
		return section.Replace(old, section.MariaDB, r.mariaDB())
	}
	return r.page()
}

// page is docs/benchmarks.md.
func (r *report) page() string {
	w := &writer{}
	w.say("# Benchmarks")
	w.say("A program writes this page: [internal/bench/measure](../internal/bench/measure). " +
		"[internal/bench/peers](../internal/bench/peers) writes the last section. Do not edit it.")
	w.say("The section about MariaDB is of a run of its own.")
	r.machine(w)
	r.targets(w)
	r.changes(w)
	r.crowds(w)
	r.idle(w)
	r.starts(w)
	r.operations(w)
	r.growth(w)
	r.runs(w)
	r.queues(w)
	r.sizes(w)
	page := section.Replace(w.String(), section.MariaDB, r.mariaDB())
	return section.Replace(page, section.Peers,
		cmp.Or(r.Peers, "Not measured yet: run `make peers`."))
}

func (r *report) targets(w *writer) {
	w.say("## The targets")
	var (
		rows   [][]string
		missed []target
		met    int
		open   int
	)
	for _, t := range targets() {
		figure, part, ok := t.measure(r)
		verdict, ratio := "met", digits(part)
		switch {
		case !ok:
			verdict, figure, ratio = "not measured", "", ""
			open++
		case math.Round(part*100) > 100: // a count over some seconds is not more exact than that
			verdict = "**missed**"
			missed = append(missed, t)
		default:
			met++
		}
		if t.limit == "0" {
			ratio = ""
		}
		rows = append(rows, []string{t.what, t.limit, figure, ratio, verdict})
	}
	w.say("%d met, %d missed, %d not measured in this run. "+
		"The ratio is the measured figure over the target. "+
		"A target is met up to a ratio of 1, rounded to two places.", met, len(missed), open)
	w.table(true, []string{"what", "target", "measured", "ratio", ""}, rows)
	if len(missed) > 0 {
		w.say("The targets that are missed, and why:")
		for _, t := range missed {
			fmt.Fprintln(w,
				wrapped(fmt.Sprintf("- *%s*: %s", t.what,
					cmp.Or(reasons[t.key], "not explained yet.")), "  "))
		}
		fmt.Fprintln(w)
	}
}

func (r *report) changes(w *writer) {
	w.say("## Hand-over and take-over")
	w.say("%d replicas ran, each a process with package startup and one job. "+
		"In each round the leader gets SIGTERM, or `kill -9`. "+
		"When another leads and has started a run, a new replica takes the place of the one "+
		"that has ended. "+
		"All that do not lead stand by. "+
		"All times are stamps that the processes read from one clock of the kernel "+
		"(`CLOCK_BOOTTIME`).", fleetSize)
	if r.Changes == nil {
		w.say("Not measured in this run.")
		return
	}
	var rows [][]string
	add := func(name string, s sample) {
		if len(s) > 0 {
			rows = append(rows, append([]string{name}, s.cells()...))
		}
	}
	for _, db := range databases {
		if c := r.Changes.Handover[db]; c != nil {
			add(db+", hand-over: release sent → the next leader may start runs", c.Held)
			add("… of it the release itself", c.Own)
			add("… → its first run has begun, recorded in the ledger", c.Run)
			add("… SIGTERM sent → the next leader may start runs", c.Total)
		}
	}
	if c := r.Changes.Takeover[dbSQLite]; c != nil {
		add(dbSQLite+", take-over: `kill -9` → the next leader may start runs", c.Total)
		add("… → its first run has begun, recorded in the ledger", c.Run)
	}
	if c := r.Changes.Signs; c != nil {
		add(fmt.Sprintf("%s, take-over after the end of the session (TTL %v, grace %v): "+
			"`kill -9` → the next leader may start runs", dbPostgres,
			time.Minute, defaultGrace), c.Total)
		add("… → its first run has begun, recorded in the ledger", c.Run)
	}
	if c := r.Changes.Short; c != nil {
		add(fmt.Sprintf("… with a grace of %v", shortGrace), c.Total)
	}
	if c := r.Changes.Expired; c != nil {
		add(fmt.Sprintf("%s, take-over at a TTL of %v (heartbeat %v): "+
			"`kill -9` → the next leader may start runs",
			dbPostgres, expiredTTL, expiredHeartbeat), c.Total)
	}
	w.table(false, []string{"", "rounds", "p50", "p99", "max"}, rows)
	w.say("“Release sent” is just before its statement. " +
		"So these times contain the release and the acquisition, a durable transaction each. " +
		"On SQLite the kernel wakes the standby: " +
		"it says that the leader's byte of the lease file is free. " +
		"On PostgreSQL a notification wakes it. " +
		"Where nothing proves a death, the TTL counts from the leader's last heartbeat, " +
		"as the standby has seen it.")
	for _, db := range databases {
		if c := r.Changes.Handover[db]; c != nil {
			w.histogram(db+", hand-over, release sent → the next leader may start runs", c.Held)
			w.histogram(db+", hand-over, release sent → its first run has begun", c.Run)
		}
	}
	if c := r.Changes.Takeover[dbSQLite]; c != nil {
		w.histogram(dbSQLite+", take-over after `kill -9`", c.Total)
	}
	if c := r.Changes.Signs; c != nil {
		w.histogram(dbPostgres+", take-over after `kill -9`", c.Total)
	}
}

func (r *report) growth(w *writer) {
	w.say("## How it grows")
	w.say("The same operations ran in turns on databases with a short and a long history. " +
		"The figures are medians. " +
		"An operation whose cost does not grow has a ratio near 1.")
	g := r.Growth
	if g == nil {
		w.say("Not measured in this run.")
		return
	}
	size := func(h history) string {
		return fmt.Sprintf("%s, %s", count(h.Terms, "term"), count(h.Runs, "run"))
	}
	for _, db := range databases {
		if g.Took[db] == nil {
			continue
		}
		var rows [][]string
		for _, op := range growing {
			took := g.Took[db][op]
			times := func(i int) string {
				return digits(float64(took[i].p50()) / float64(took[0].p50()))
			}
			rows = append(rows, []string{op, show(took[0].p50()),
				show(took[1].p50()), times(1), show(took[2].p50()), times(2)})
		}
		w.table(false, []string{fmt.Sprintf("%s, %d rounds", db, g.N), size(g.Sizes[0]),
			size(g.Sizes[1]), "ratio", size(g.Sizes[2]), "ratio"}, rows)
	}
	w.say("For growth with the number of replicas, see above: " +
		"the hand-overs by the number of replicas, and the idle standbys.")
	for _, db := range databases {
		b := g.Beats[db]
		if b == nil {
			continue
		}
		what, file := "the WAL", fmt.Sprintf(", and the file from %s to %s",
			bytes(float64(b.FileBefore)), bytes(float64(b.FileNow)))
		if db == dbPostgres {
			what, file = "the table with its indexes", ""
		}
		w.say("On %s the program sent %s heartbeats without a pause, about as many as in %s. "+
			"Meanwhile %s went from %s to %s%s. "+
			"After as many more, while a reader did not end its transaction, it was %s. "+
			"When that reader had ended, and after %s more, it was %s. "+
			"One heartbeat took %s (p50).",
			db, thousands(b.N), dayOf(b.N), what, bytes(float64(b.Before)), bytes(float64(b.After)),
			file, bytes(float64(b.WithReader)), thousands(b.N/10), bytes(float64(b.Released)),
			show(b.P50))
	}
}

func (r *report) queues(w *writer) {
	w.say("## What a task of a queue costs")
	w.say("The benchmarks compare one call with one UPDATE that writes the same rows by their " +
		"key, with the same durability, in turns. " +
		"A capture also chooses the tasks. " +
		"*Both* is a capture and a Done against two UPDATEs, by one worker that does nothing else.")
	var rows [][]string
	for _, db := range databases {
		for _, n := range []int{1, 100} {
			for _, call := range []string{"capture", "done", "both"} {
				name := benchName("Queue", db) + fmt.Sprintf("/%s-%d", call, n)
				took, ok := r.Benchmarks.median(name, "op-ns")
				if !ok {
					continue
				}
				limit, _ := r.Benchmarks.median(name, "limit-ns")
				x, _ := r.Benchmarks.median(name, "x-limit")
				row := []string{db + ", " + call + ", " + count(n, "task"),
					show(time.Duration(took)), show(time.Duration(limit)), digits(x), "", ""}
				if per, ok := r.Benchmarks.median(name, "tasks-s"); ok {
					updates, _ := r.Benchmarks.median(name, "updates-s")
					row[4], row[5] = digits(per), digits(updates)
				}
				rows = append(rows, row)
			}
		}
		if x, ok := r.Benchmarks.median(benchName("QueueMillion", db), "x-limit"); ok {
			rows = append(rows, []string{db +
				", capture beside a million done tasks; limit: beside none", "", "", digits(x),
				"", ""})
		}
	}
	w.table(false, []string{"", "takes", "limit", "ratio",
		"tasks/s", "rows/s of the UPDATEs"}, rows)
	rows = nil
	for _, db := range databases {
		for _, n := range []int{1, 10} {
			name := benchName("QueueWorkers", db) + fmt.Sprintf("/batches-of-%d", n)
			per, ok := r.Benchmarks.median(name, "tasks-s")
			if !ok {
				continue
			}
			updates, _ := r.Benchmarks.median(name, "updates-s")
			failed, _ := r.Benchmarks.median(name, "errors")
			rows = append(rows, []string{db + ", " + count(n, "task") + " a capture", digits(per),
				digits(updates), digits(failed)})
		}
	}
	w.say("Eight workers ran at once for three seconds, and then eight connections that write " +
		"one row a transaction. A task takes two writes. " +
		"An error is a call that found the database busy for longer than it waits. " +
		"Its caller repeats it.")
	w.table(false, []string{"", "tasks/s", "raw UPDATEs/s", "errors"}, rows)
}

func (r *report) runs(w *writer) {
	w.say("## What a run costs")
	w.say("A run costs two transactions: its start, which is durable before the leader calls the " +
		"job, and its end.")
	var rows [][]string
	for _, b := range []struct{ name, what string }{{"Run", "one job, one run after the other"},
		{"RunParallel", "32 jobs at the same time"}} {
		for _, db := range databases {
			name := benchName(b.name, db)
			if ns, ok := r.Benchmarks.median(name, "ns/op"); ok {
				per, _ := r.Benchmarks.median(name, "runs/s")
				allocs, _ := r.Benchmarks.median(name, "allocs/op")
				row := []string{b.what + ", " + db, fmt.Sprint(len(r.Benchmarks[name]["ns/op"])),
					show(time.Duration(ns)), digits(per), ""}
				if allocs > 0 {
					row[4] = digits(allocs)
				}
				rows = append(rows, row)
			}
		}
	}
	w.table(false, []string{"", "runs of the benchmark", "each", "per second", "allocations"}, rows)
	rows = nil
	for _, kind := range []string{"spread", "all_at_the_full_second"} {
		for _, db := range databases {
			name := benchName("ThousandJobs/"+kind, db)
			per, ok := r.Benchmarks.median(name, "runs/s")
			if !ok {
				continue
			}
			row := []string{db + ", " + strings.ReplaceAll(kind, "_", " "), digits(per)}
			for _, unit := range []string{"%skipped", "p50-late-ms", "p99-late-ms", "%in-ledger"} {
				v, _ := r.Benchmarks.median(name, unit)
				row = append(row, digits(v)+map[byte]string{'%': " %", 'p': " ms"}[unit[0]])
			}
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 {
		w.say("A thousand jobs that do nothing ran for 20 s on one leader, " +
			"each due every second. " +
			"They were spread over the second by their names, or all due at once. " +
			"*Late* is from the tick to the start. " +
			"*In the ledger* is the part of a run's life that is spent in calls to the database. " +
			"That life is from when the run is due until its end is recorded. " +
			"A tick that comes too late is recorded as missed, not lost.")
		w.table(false, []string{"", "runs/s", "ticks skipped",
			"late p50", "late p99", "in the ledger"}, rows)
	}
}

func (r *report) sizes(w *writer) {
	w.say("## Size of the programs")
	var rows [][]string
	for _, b := range r.Sizes {
		rows = append(rows, []string{b.Name, bytes(float64(b.Size)), bytes(float64(b.Stripped))})
	}
	if n := len(r.Sizes); n >= 2 {
		with, without := r.Sizes[n-2], r.Sizes[n-1]
		rows = append(rows, []string{"the difference of the two",
			bytes(float64(with.Size - without.Size)),
			bytes(float64(with.Stripped - without.Stripped))})
	}
	w.table(false, []string{"`CGO_ENABLED=0 go build -trimpath`",
		"", "with `-ldflags \"-s -w\"`"}, rows)
}
