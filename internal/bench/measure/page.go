//go:build linux

package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"example.com/schedlock/internal/bench/page"
)

// A report is all that was measured. What was not is missing in its maps.
type report struct {
	Date    time.Time
	Took    time.Duration
	Command string
	Facts   [][]string
	Missing []string // servers that this machine lacks
	Failed  []string // parts

	Noise      []noiseSample
	processors processors // at the last of them

	Benchmarks benchmarks
	Starts     map[string]started        // by database, new or warm
	Changes    map[string]change         // by the name of the way
	Crowds     map[string]map[int]sample // by database, then size
	Idle       []idleCost
	Fleets     map[string]fleetCost // by database
	Growth     []growth
	Sizes      []built
}

func newReport() *report {
	r := &report{Benchmarks: benchmarks{}, Starts: map[string]started{},
		Changes: map[string]change{}, Crowds: map[string]map[int]sample{},
		Fleets: map[string]fleetCost{}}
	for _, db := range databases {
		r.Crowds[db] = map[int]sample{}
	}
	return r
}

// pageText is the page, without its last section. It has the prose and the heads of the tables.
//
//go:embed page.tmpl
var pageText string

// page is docs/benchmarks.md, without its last section.
func (r *report) page() string {
	var text strings.Builder
	t := template.Must(template.New("page").Funcs(template.FuncMap{"rows": page.Rows,
		"join": strings.Join, "number": page.Number}).Parse(pageText))
	if err := t.Execute(&text, r); err != nil {
		panic(err)
	}
	return page.Wrap(text.String())
}

// The methods below are the rows of the tables, in the order of the page.

func (r *report) Machine() [][]string {
	return append([][]string{
		{"date", r.Date.Format("2006-01-02 15:04 UTC") + ", " + r.Took.Round(time.Second).String()},
		{"command", "`" + r.Command + "`"}}, r.Facts...)
}

func (r *report) NoiseRows() (rows [][]string) {
	for _, n := range r.Noise {
		rows = append(rows, []string{n.Before, page.Time(n.CPU.p50()), page.Time(n.CPU.p99()),
			page.Time(n.Flush.p50()), page.Time(n.Flush.p99()), n.Load,
			fmt.Sprintf("%.0f %%", n.Others*100), fmt.Sprintf("%.1f %%", n.Stolen*100)})
	}
	return rows
}

// NotCalm is how many percent of the machine others used at most, unless it was calm.
func (r *report) NotCalm() string {
	others := 0.0
	for _, n := range r.Noise {
		others = max(others, n.Others)
	}
	if others <= calm {
		return ""
	}
	return fmt.Sprintf("%.0f", others*100)
}

// CPUDrift is by how much the median of the same work differed between parts.
func (r *report) CPUDrift() float64 { return r.drift(func(n noiseSample) sample { return n.CPU }) }

// FlushDrift is the same for a flush.
func (r *report) FlushDrift() float64 {
	return r.drift(func(n noiseSample) sample { return n.Flush })
}

func (r *report) drift(of func(noiseSample) sample) float64 {
	var medians []time.Duration
	for _, n := range r.Noise {
		if s := of(n); len(s) > 0 {
			medians = append(medians, s.p50())
		}
	}
	if len(medians) == 0 {
		return 1
	}
	return float64(slices.Max(medians)) / float64(slices.Min(medians))
}

func (r *report) ChangeRows() (rows [][]string) {
	for _, w := range ways {
		c := r.Changes[w.name]
		if len(c.Total) == 0 {
			continue
		}
		total := c.Total.String()
		if len(c.Held) == 0 { // it counts from the signal
			c.Held, total = c.Total, ""
		}
		rows = append(rows, []string{w.name, fmt.Sprint(len(c.Total)), c.Own.String(),
			c.Held.String(), c.Run.String(), total})
	}
	return rows
}

func (r *report) CrowdRows() (rows [][]string) {
	for _, db := range databases {
		row := []string{db}
		for _, size := range crowdSizes {
			row = append(row, r.Crowds[db][size].String())
		}
		if len(r.Crowds[db]) > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *report) IdleRows() (rows [][]string) {
	for _, c := range r.Idle {
		conns, server, served := "", "", ""
		if c.DB != dbSQLite {
			conns, served = page.Number(c.Conns), page.Number(c.Statements)
			server = processor(c.Server)
		}
		rows = append(rows, []string{fmt.Sprintf("%s, %d", c.DB, c.Standbys), page.Number(c.Looks),
			served, page.Bytes(c.Written), c.Changed.text(c.DB), processor(c.CPU), server,
			page.Bytes(c.Memory), conns})
	}
	return rows
}

// processor is a part of one core.
func processor(part float64) string {
	return page.Number(part*100) + " % = " + page.Number(part*3600) + " s"
}

// text says what has changed.
func (s databaseState) text(db string) string {
	log := page.Bytes(float64(s.log))
	switch {
	case db != dbSQLite:
		return fmt.Sprintf("%s of log, %d rows", log, s.rows)
	case s.changed():
		return fmt.Sprintf("file %s, WAL %s", page.Bytes(float64(s.size)), log)
	}
	return "untouched"
}

func (r *report) FleetRows() (rows [][]string) {
	for _, db := range databases {
		if c, ok := r.Fleets[db]; ok {
			rows = append(rows, []string{db, fmt.Sprint(c.Beats), page.Bytes(float64(c.Written)),
				page.Bytes(float64(c.Leader)), c.Changed.text(db), processor(c.LeaderCPU),
				page.Bytes(c.LeaderMem)})
		}
	}
	return rows
}

func (r *report) StartRows() (rows [][]string) {
	for _, db := range databases {
		for _, name := range []string{db + ", new", db + ", warm"} {
			if s := r.Starts[name]; len(s.Held) > 0 {
				rows = append(rows, []string{name, fmt.Sprint(len(s.Held)), s.Held.String(),
					page.Time(s.Main.p50()), page.Time(s.Open.p50())})
			}
		}
	}
	return rows
}

func (r *report) OperationRows() (rows [][]string) {
	add := func(what, name, allocs string) {
		b := r.Benchmarks
		if runs := len(b[name]["op-ns"]); runs > 0 {
			rows = append(rows, []string{what, fmt.Sprint(runs), b.time(name, "op-ns"),
				b.time(name, "limit-ns"), b.number(name, "x-limit"), b.spread(name),
				b.number(name, allocs)})
		}
	}
	add("IsLeader; limit: `time.Now()`", "IsLeader", "allocs/op")
	add("IsLeader, 16 goroutines at once", leaderBy16, "allocs/op")
	for _, op := range []string{"Acquire", "Heartbeat", "Release", "GetLockInfo"} {
		for _, db := range databases {
			add(op+", "+db, benchName(op, db), "allocs-op")
		}
		add(op+", MariaDB with a binlog", benchName(op, dbMariaDB)+"-binlog", "allocs-op")
	}
	return rows
}

// number is a median; nothing if it was not measured.
func (b benchmarks) number(name, unit string) string {
	if len(b[name][unit]) == 0 {
		return ""
	}
	return page.Number(b.median(name, unit))
}

// time is a median of nanoseconds.
func (b benchmarks) time(name, unit string) string {
	if len(b[name][unit]) == 0 {
		return ""
	}
	return page.Nanoseconds(b.median(name, unit))
}

func (g growth) Head() []string {
	row := []string{fmt.Sprintf("%s, %d rounds", g.DB, g.N)}
	for i, h := range g.Sizes {
		row = append(row, count(h.Terms, "term")+", "+count(h.Runs, "run"))
		if i > 0 {
			row = append(row, "ratio")
		}
	}
	return row
}

func (g growth) Rows() (rows [][]string) {
	for n, sizes := range g.Took {
		row := []string{g.Ops[n]}
		for i, s := range sizes {
			row = append(row, page.Time(s.p50()))
			if i > 0 {
				row = append(row, page.Number(float64(s.p50())/float64(sizes[0].p50())))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func (r *report) BeatRows() (rows [][]string) {
	for _, g := range r.Growth {
		what := g.DB + ", the table with its indexes"
		if g.DB == dbSQLite {
			what = g.DB + ", the WAL"
		}
		row, file := []string{what}, []string{g.DB + ", the file"}
		for _, size := range g.Beats.Sizes {
			row = append(row, page.Bytes(float64(size.log)))
			file = append(file, page.Bytes(float64(size.file)))
		}
		rows = append(rows, append(row, page.Time(g.Beats.P50)))
		if g.DB == dbSQLite {
			rows = append(rows, append(file, ""))
		}
	}
	return rows
}

func (r *report) RunRows() (rows [][]string) {
	b := r.Benchmarks
	for _, kind := range []struct{ name, what string }{
		{"Run", "one job, one run after the other"}, {"RunParallel", "32 jobs at the same time"}} {
		for _, db := range databases {
			if name := benchName(kind.name, db); b[name] != nil {
				rows = append(rows, []string{kind.what + ", " + db, b.time(name, "ns/op"),
					b.number(name, "runs/s"), b.number(name, "allocs/op")})
			}
		}
	}
	return rows
}

func (r *report) ThousandRows() (rows [][]string) {
	b := r.Benchmarks
	for _, kind := range []string{"spread", "all_at_the_full_second"} {
		for _, db := range databases {
			if name := benchName("ThousandJobs/"+kind, db); b[name] != nil {
				rows = append(rows, []string{db + ", " + strings.ReplaceAll(kind, "_", " "),
					b.number(name, "runs/s"), b.number(name, "%skipped") + " %",
					b.number(name, "p50-late-ms") + " ms", b.number(name, "p99-late-ms") + " ms",
					b.number(name, "%in-ledger") + " %"})
			}
		}
	}
	return rows
}

func (r *report) QueueRows() (rows [][]string) {
	add := func(what, name string) {
		if b := r.Benchmarks; b[name] != nil {
			rows = append(rows, []string{what, b.time(name, "op-ns"), b.time(name, "limit-ns"),
				b.number(name, "x-limit"), b.number(name, "tasks-s"), b.number(name, "updates-s")})
		}
	}
	for _, db := range databases {
		for _, n := range []int{1, 100} {
			for _, call := range []string{"capture", "done", "both"} {
				add(db+", "+call+", "+count(n, "task"),
					fmt.Sprintf("%s/%s-%d", benchName("Queue", db), call, n))
			}
		}
		add(db+", capture beside a million done tasks; limit: beside none",
			benchName("QueueMillion", db))
	}
	return rows
}

func (r *report) WorkerRows() (rows [][]string) {
	b := r.Benchmarks
	for _, db := range databases {
		for _, n := range []int{1, 10} {
			name := fmt.Sprintf("%s/batches-of-%d", benchName("QueueWorkers", db), n)
			if b[name] != nil {
				rows = append(rows, []string{db + ", " + count(n, "task") + " a capture",
					b.number(name, "tasks-s"), b.number(name, "updates-s"),
					b.number(name, "errors")})
			}
		}
	}
	return rows
}

func (r *report) SizeRows() (rows [][]string) {
	add := func(name string, size, stripped int64) {
		rows = append(rows, []string{name, page.Bytes(float64(size)),
			page.Bytes(float64(stripped))})
	}
	for _, b := range r.Sizes {
		add(b.Name, b.Size, b.Stripped)
	}
	if n := len(r.Sizes); n == len(programs) {
		with, without := r.Sizes[n-2], r.Sizes[n-1]
		add("the difference of the two", with.Size-without.Size, with.Stripped-without.Stripped)
	}
	return rows
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return page.Thousands(n) + " " + what
}
