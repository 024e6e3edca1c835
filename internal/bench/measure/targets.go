//go:build linux

package main

import (
	"fmt"
	"time"
)

// A target is a number to reach.
type target struct {
	key   string // for reasons
	what  string
	limit string

	// measure returns the figure in words, and what part of the limit it is: up
	// to 1 the target is met. ok is false if it was not measured.
	measure func(r *report) (figure string, part float64, ok bool)
}

// reasons say why a target is missed, by the profile of what takes the time.
var reasons = map[string]string{
	"leader":    whyLeader,
	"leader 16": whyLeader,
	"acquire PostgreSQL": "Besides writing it judges. In one statement it locks the row that was " +
		"judged, compares the server's epoch, and looks at the newest terms. " +
		"That takes about 70 µs of the server beyond the bare writes, whatever the disk does. " +
		"It cannot be left out, because it keeps a second leader out. " +
		"The limit is one statement that writes the same rows and judges nothing.",
	"heartbeat SQLite": "Before and after the statement the store looks whether the paths still " +
		"lead to the files that are open: database, -wal, -shm and lease file. " +
		"By the profile that is 41 % of it; without that it would be 1.2 times the limit. " +
		"It cannot be left out, because a heartbeat in a file that nobody else reads is none.",
	"GetLockInfo SQLite": "It looks whether the paths still lead to the files that are open, " +
		"and asks the lease file whether the holder lives. The limit does neither. " +
		"By the profile that is 25 % and 30 % of it.",
	"hand-over PostgreSQL p50": "It is two transactions of the server, and a notification that " +
		"wakes two processes. The second transaction waits for the disk.",
	"hand-over SQLite p50": "It is a release, the wake of another process by the kernel, a look, " +
		"and an acquisition that waits for the disk. Within one process it takes less: " +
		"see the table by the number of replicas.",
	"first run PostgreSQL p50": "After the hand-over it reads four tables, one after the other, " +
		"and starts the run: five round trips, the last of which waits for the disk.",
	"take-over signs 5s": "The grace of 5 s is the reason, and jobs are the reason for the grace: " +
		"those of a leader that has lost its session, and lives, have half of it to return. " +
		"A second would be too little for many. Where it is enough, " +
		"WithSessionGrace sets 2 s, as the next row does.",
	"idle cpu SQLite": "It is one look a second by each of 100 processes on the cores named above. " +
		"The table below has fewer standbys, too.",
	"idle cpu PostgreSQL": "It is one look a second: a statement, and its answer. " +
		"A process that does nothing else took 0.067 % (`perf stat`, 10 s).",
	"thousand max": "All standbys are told at the same moment, and ask for the lock: " +
		"1,000 processes of the server on the cores named above.",
	"GetLockInfo PostgreSQL": "It reads the row and the newest term, 27 columns of two tables, " +
		"in one statement. The limit is one row of one table. " +
		"The profile: about 13 µs more on the server, 6 µs more to decode.",
}

const whyLeader = "The check is one `time.Now()`, an atomic load and two comparisons. " +
	"The profile has 81–84 % of it in `time.Now()`, which takes longer than the target here, " +
	"or nearly. The target was set where it took 47 ns. " +
	"Half of that is the monotonic clock, half the wall clock. " +
	"Without the wall clock the check would not see that the machine was suspended."

// targets are all of them, in the order of the table.
func targets() []target {
	var all []target
	add := func(key, what, limit string, measure func(r *report) (string, float64, bool)) {
		all = append(all, target{key, what, limit, measure})
	}

	add("leader", "“am I leader?”", "≤ 60 ns", func(r *report) (string, float64, bool) {
		return r.leaderCheck("IsLeader", "one goroutine")
	})
	add("leader 16", "the same, 16 goroutines at once", "≤ 60 ns",
		func(r *report) (string, float64, bool) {
			return r.leaderCheck(leaderBy16, "16 goroutines")
		})
	add("leader allocs", "the same, allocations", "0", func(r *report) (string, float64, bool) {
		n, ok := r.Benchmarks.median("IsLeader", "allocs/op")
		m, _ := r.Benchmarks.median(leaderBy16, "allocs/op")
		return digits(max(n, m)), none(max(n, m)), ok
	})
	for _, op := range []struct{ bench, name string }{{"Acquire", "acquire"},
		{"Heartbeat", "heartbeat"}, {"Release", "release"}} {
		for _, db := range databases {
			limit, than := 1.5, "a transaction that writes the same rows"
			if op.bench == "Heartbeat" && db == dbPostgres {
				limit, than = 1.2, "a one-row UPDATE: one round trip"
			}
			add(op.name+" "+db, op.name+", "+db, fmt.Sprintf("≤ %v × %s", limit, than),
				func(r *report) (string, float64, bool) {
					return r.timesLimit(op.bench, db, limit)
				})
		}
	}
	for _, db := range databases {
		add("GetLockInfo "+db, "GetLockInfo, "+db, "≤ 1.5 × a one-row SELECT",
			func(r *report) (string, float64, bool) {
				return r.timesLimit("GetLockInfo", db, 1.5)
			})
	}
	for _, db := range databases {
		add("idle writes "+db, "idle standby, "+db+": writes", "0",
			func(r *report) (string, float64, bool) {
				c, ok := r.idleCost(db)
				if !ok {
					return "", 0, false
				}
				var n int64
				for _, c := range r.Idle.Cost[db] {
					if n += c.Written + c.Rows; db == dbSQLite {
						n += c.Changed
					}
				}
				if l := r.Idle.Long[db]; l != nil {
					n += l.Written
				}
				return fmt.Sprintf("%s by up to %d of them", bytes(float64(n)),
					c.Standbys), none(float64(n)), true
			})
		add("idle statements "+db, "idle standby, "+db+": statements", "≤ 1 SELECT a second",
			func(r *report) (string, float64, bool) {
				c, ok := r.idleCost(db)
				return digits(c.Looks) + " a second", c.Looks, ok
			})
		add("idle cpu "+db, "idle standby, "+db+": processor", "≤ 0.05 % of a core",
			func(r *report) (string, float64, bool) {
				c, ok := r.idleCost(db)
				return digits(c.CPU*100) + " %", c.CPU / 0.0005, ok
			})
	}
	add("idle connections", "idle standby, PostgreSQL: connections", "1",
		func(r *report) (string, float64, bool) {
			c, ok := r.idleCost(dbPostgres)
			return digits(c.Conns), c.Conns, ok
		})
	for _, db := range databases {
		handover := func(of func(*change) sample) func(r *report) sample {
			return func(r *report) sample {
				if r.Changes == nil || r.Changes.Handover[db] == nil {
					return nil
				}
				return of(r.Changes.Handover[db])
			}
		}
		p50 := map[string]time.Duration{dbSQLite: 1200 * time.Microsecond,
			dbPostgres: 5 * time.Millisecond}[db]
		all = append(all, within("hand-over "+db, "hand-over, "+
			db+": release sent → the next leader may start runs",
			p50, 50*time.Millisecond, handover(func(c *change) sample { return c.Held }))...)
		all = append(all, within("first run "+db, "hand-over, "+
			db+": release sent → its first run has begun",
			8*time.Millisecond, 50*time.Millisecond,
			handover(func(c *change) sample { return c.Run }))...)
	}
	all = append(all, within("take-over SQLite", "take-over after `kill -9`, SQLite, TTL 60 s",
		10*time.Millisecond, 250*time.Millisecond, func(r *report) sample {
			if r.Changes == nil || r.Changes.Takeover[dbSQLite] == nil {
				return nil
			}
			return r.Changes.Takeover[dbSQLite].Total
		})...)
	add("take-over PostgreSQL",
		"take-over after `kill -9`, PostgreSQL, without signs of death, max", "≤ TTL + 2 s",
		func(r *report) (string, float64, bool) {
			if r.Changes == nil || r.Changes.Expired == nil {
				return "", 0, false
			}
			beyond := r.Changes.Expired.Total.max() - expiredTTL
			text := "TTL + " + show(beyond)
			if beyond < 0 {
				text = "TTL − " + show(-beyond)
			}
			return text, max(beyond.Seconds(), 0) / 2, true
		})
	for _, grace := range []time.Duration{defaultGrace, shortGrace} {
		add("take-over signs "+grace.String(),
			fmt.Sprintf("take-over after `kill -9`, PostgreSQL, TTL 60 s, session grace %v, max",
				grace), "≤ 3 s",
			func(r *report) (string, float64, bool) {
				if r.Changes == nil || r.Changes.Signs == nil || r.Changes.Short == nil {
					return "", 0, false
				}
				c := r.Changes.Signs
				if grace == shortGrace {
					c = r.Changes.Short
				}
				return show(c.Total.max()), c.Total.max().Seconds() / 3, true
			})
	}
	all = append(all, within("thousand", "1,000 standbys on one PostgreSQL: hand-over",
		50*time.Millisecond, 250*time.Millisecond, func(r *report) sample {
			if r.Crowds == nil {
				return nil
			}
			return r.Crowds.Took[dbPostgres][thousand]
		})...)
	add("start", "start of the process to lock held, new SQLite file, migrations included, p50",
		"≤ 50 ms", func(r *report) (string, float64, bool) {
			if r.Starts == nil || r.Starts.Fresh[dbSQLite] == nil {
				return "", 0, false
			}
			s := r.Starts.Fresh[dbSQLite].Held
			return fmt.Sprintf("%s (max %s)", show(s.p50()),
				show(s.max())), float64(s.p50()) / float64(50*time.Millisecond), true
		})
	return all
}

// leaderBy16 is the benchmark of the leader check by 16 goroutines.
const leaderBy16 = "IsLeader16Goroutines"

// within makes the targets for the median and for the largest.
func within(key, what string, p50, largest time.Duration, of func(r *report) sample) []target {
	one := func(suffix string, limit time.Duration, stat func(sample) time.Duration) target {
		return target{key + " " + suffix, what + ", " + suffix, "≤ " + show(limit),
			func(r *report) (string, float64, bool) {
				s := of(r)
				return show(stat(s)), float64(stat(s)) / float64(limit), len(s) > 0
			}}
	}
	return []target{one("p50", p50, sample.p50), one("max", largest, sample.max)}
}

// none is the part for what must not be at all.
func none(n float64) float64 {
	if n == 0 {
		return 0
	}
	return 1 + n
}

func (r *report) leaderCheck(bench, who string) (string, float64, bool) {
	for _, unit := range []string{"op-ns", "ns/op"} {
		if ns, ok := r.Benchmarks.median(bench, unit); ok && ns > 0 {
			text := fmt.Sprintf("%s ns (%s", digits(ns), who)
			if now, ok := r.Benchmarks.median(bench, "limit-ns"); ok {
				text += fmt.Sprintf("; `time.Now()` alone %s ns", digits(now))
			}
			return text + ")", ns / 60, true
		}
	}
	return "", 0, false
}

// benchName is the name of a benchmark of one operation.
func benchName(op, db string) string {
	return op + map[string]string{dbSQLite: "/sqlite", dbPostgres: "/postgres",
		dbMariaDB: "/mysql"}[db]
}

func (r *report) timesLimit(op, db string, limit float64) (string, float64, bool) {
	name := benchName(op, db)
	x, ok := r.Benchmarks.median(name, "x-limit")
	from, to := r.Benchmarks.spread(name)
	text := digits(x) + " ×"
	if from != to {
		text += fmt.Sprintf(" (%s–%s)", digits(from), digits(to))
	}
	return text, x / limit, ok
}

// idleCost is that of the largest fleet that was measured.
func (r *report) idleCost(db string) (c idleCost, ok bool) {
	if r.Idle == nil {
		return c, false
	}
	for _, n := range r.Idle.Sizes {
		if found := r.Idle.Cost[db][n]; found != nil {
			c, ok = *found, true
		}
	}
	return c, ok
}
