//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// aims are those of single operations on MariaDB, in times of the limit.
var aims = []struct {
	op   string
	aim  float64 // 0: none
	than string
}{
	{"Acquire", 2.2, "UPDATE"}, {"Heartbeat", 1.2, "UPDATE"}, {"Release", 1.5, "UPDATE"},
	{"GetLockInfo", 0, "SELECT"},
}

// mariaDB is the section about MariaDB.
func (r *report) mariaDB() string {
	w := &writer{}
	m := r.MariaDB
	switch {
	case m == nil:
		return cmp.Or(r.Kept,
			"Not measured yet: run `go run ./internal/bench/measure -only mariadb -o FILE`.")
	case m.Missing != "":
		w.say("Nothing was measured on MariaDB: %s.", m.Missing)
		return w.String()
	}
	w.say("The server ran on the same machine, with a flush for each commit and without a binlog. " +
		"A ratio compares two things that took turns in one run. " +
		"All else depends on what others did on the machine meanwhile.")
	rows := [][]string{{"date", r.Date.Format("2006-01-02 15:04 UTC") +
		fmt.Sprintf(", %v", r.Took.Round(time.Second))}, {"command", "`" + r.Command + "`"},
		{dbMariaDB, m.Version}}
	for _, f := range r.Facts {
		if f.name != dbSQLite && f.name != dbPostgres {
			rows = append(rows, []string{f.name, f.value})
		}
	}
	w.table(true, []string{"", ""}, rows)
	if len(r.Failed) > 0 {
		w.say("**Some of this failed, and its figures are missing or not complete.**")
	}
	r.noiseOfMariaDB(w)
	r.operationsOnMariaDB(w)
	m.changes(w)
	m.idle(w)
	return w.String()
}

func (r *report) noiseOfMariaDB(w *writer) {
	samples := r.Noise[min(r.MariaDB.Noise, len(r.Noise)):]
	if len(samples) == 0 {
		return
	}
	least, most := 1.0, 0.0
	for _, n := range samples {
		least, most = min(least, n.Others), max(most, n.Others)
	}
	text := "Between the parts, while this program did nothing, other programs used at least " +
		"%.0f %% and at most %.0f %% of the machine. Its load was %s at first and %s at last."
	if most > calm {
		text += " **So it was not calm.** Compare the ratios only."
	}
	w.say(text, least*100, most*100, samples[0].Load, samples[len(samples)-1].Load)
}

func (r *report) operationsOnMariaDB(w *writer) {
	w.say("### Single operations on MariaDB")
	w.say("The limit is one round trip of the same driver, with a prepared statement, " +
		"on one row of a table of the same shape: " +
		"a SELECT for GetLockInfo, else an UPDATE. " +
		"With a binlog both are flushed twice. " +
		"Acquire and Release are one round trip each: a block of statements, " +
		"which the server parses each time. " +
		"A claim that is *refused* comes too late, and writes nothing. " +
		"So its ratio is what Acquire costs before the first row is written.")
	var rows [][]string
	add := func(what, name, aim string, of float64) {
		took, ok := r.Benchmarks.median(name, "op-ns")
		if !ok {
			return
		}
		limit, _ := r.Benchmarks.median(name, "limit-ns")
		x, _ := r.Benchmarks.median(name, "x-limit")
		from, to := r.Benchmarks.spread(name)
		allocs, _ := r.Benchmarks.median(name, "allocs-op")
		verdict := ""
		if of > 0 {
			verdict = "met"
			if x > of {
				verdict = "**missed**"
			}
		}
		rows = append(rows, []string{what, show(time.Duration(took)), show(time.Duration(limit)),
			digits(x), digits(from) + "–" + digits(to), aim, verdict, digits(allocs)})
	}
	for _, op := range aims {
		aim := ""
		if op.aim > 0 {
			aim = fmt.Sprintf("≤ %v × one %s", op.aim, op.than)
		}
		name := benchName(op.op, dbMariaDB)
		add(op.op, name, aim, op.aim)
		if op.op == "Acquire" {
			add("Acquire, as a take-over", name+"-take-over", aim, op.aim)
			add("Acquire, refused", name+"-refused", "", 0)
		}
		add(op.op+", with a binlog", name+"-binlog", "", 0)
	}
	w.table(false, []string{"", "takes", "limit", "ratio", "ratio from–to", "aim", "",
		"allocations"}, rows)
}

func (m *mariaDB) changes(w *writer) {
	w.say("### Hand-over and take-over on MariaDB")
	var rows [][]string
	add := func(name string, s sample) {
		if len(s) > 0 {
			rows = append(rows, append([]string{name}, s.cells()...))
		}
	}
	if c := m.Handover; c != nil {
		add("hand-over: release sent → the next leader may start runs", c.Held)
		add("… of it the release itself", c.Own)
		add("… → its first run has begun, recorded in the ledger", c.Run)
		add("… SIGTERM sent → the next leader may start runs", c.Total)
	}
	if c := m.Signs; c != nil {
		add(fmt.Sprintf("`kill -9`, with WithSessionSign (TTL %v, grace %v) → "+
			"the next leader may start runs", time.Minute, 5*time.Second), c.Total)
		add("… → its first run has begun, recorded in the ledger", c.Run)
	}
	if c := m.Expired; c != nil {
		add(fmt.Sprintf("`kill -9`, without it, at a TTL of %v (heartbeat %v) → "+
			"the next leader may start runs", expiredTTL, expiredHeartbeat), c.Total)
	}
	w.table(false, []string{"", "rounds", "p50", "p99", "max"}, rows)
	w.say("The rounds are those of [hand-over and take-over](#hand-over-and-take-over). " +
		"The release wakes a standby, which waits in GET_LOCK on a connection of its own.")
	if c := m.Handover; c != nil {
		w.histogram("Hand-over, release sent → the next leader may start runs", c.Held)
	}
}

func (m *mariaDB) idle(w *writer) {
	w.say("### What idles on MariaDB")
	w.say("As in [what an idle standby costs](#what-an-idle-standby-costs): " +
		"the standbys cause all that is counted, and each row is one round. " +
		"Looks, statements (*seen by the server*), connections and processor are for each standby. " +
		"*Rows* and *redo log* are what the whole server wrote. " +
		"Besides its look a standby waits for the holder's named lock, " +
		"by one or two statements a second.")
	var rows [][]string
	for _, n := range m.Sizes {
		if c := m.Idle[n]; c != nil {
			rows = append(rows, []string{count(n, "standby"), digits(c.Looks) + "/s",
				digits(c.Statements) + "/s", fmt.Sprint(c.Rows), bytes(float64(c.Changed)),
				digits(c.CPU*100) + " %", digits(c.Server*100) + " %", bytes(c.Memory),
				digits(c.Conns)})
		}
	}
	w.table(false, []string{"", "looks", "seen by the server", "rows", "redo log", "processor",
		"server", "memory", "connections"}, rows)
	rows = nil
	for _, what := range slices.Sorted(maps.Keys(m.Leaders)) {
		l := m.Leaders[what]
		rows = append(rows, []string{what, l.Window.String(), digits(l.Statements) + "/s",
			digits(l.CPU*100) + " %"})
	}
	w.say("A leader alone, with no run to start, and a heartbeat every 10 s. " +
		"It looks four times a second for requests and pauses.")
	w.table(false, []string{"", "for", "seen by the server", "processor"}, rows)
}
