package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/cmd/schedlock/internal/words"
	"example.com/schedlock/internal/assess"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

// What is worth a word in the rows.
const (
	futureStamp  = time.Second      // a heartbeat that is further ahead of the clock
	shortTTL     = 3 * time.Second  // every pause of a process or a disk ends such a lease
	longTTL      = 10 * time.Minute // a crash is noticed that late
	settled      = time.Minute      // a leader has taken up everything by then
	overdueAfter = time.Minute
	lossWindow   = 24 * time.Hour
	mixedTerms   = 10 // newest terms that are compared for their TTL
	shown        = 5  // entries of a list in one finding
)

// What to do about tables that are missing.
const (
	toMake = "start the app, which makes them, or run `schedlock migrate`; " +
		"if the app runs, this is not its database"
	toRestore = "somebody has dropped a table, and no migration makes it anew: " +
		"stop all replicas, and restore a backup"
)

// judge says what the rows mean. seen is what a standby sees of them.
func judge(f *findings, x facts, seen driver.Snapshot) {
	if !judgeSchema(f, x) {
		return
	}
	led := judgeLock(f, x, seen)
	judgeTiming(f, x)
	judgeHistory(f, x)
	judgeApps(f, x)
	judgePauses(f, x)
	judgeRuns(f, x, led)
	judgeRequests(f, x, led)
	judgeJobs(f, x, led)
}

// judgeSchema reports whether the rows could be read.
func judgeSchema(f *findings, x facts) bool {
	switch latest := migrations.Latest; {
	case x.version == 0:
		f.fail("schema", "the tables of the scheduler lock are not there", toMake)
		return false
	case x.minCode > latest:
		f.fail("schema", fmt.Sprintf("version %d, which needs code of version %d or newer; "+
			"this program has version %d", x.version, x.minCode, latest),
			"use a newer release of this program; replicas of this release cannot start here")
		return false
	case x.version < latest:
		f.warn("schema", fmt.Sprintf("version %d; this program has version %d", x.version, latest),
			"run `schedlock migrate`, or deploy a release that has it: it migrates at its start")
	case x.version > latest:
		f.note("schema",
			fmt.Sprintf("version %d, newer than this program's %d, and compatible with it",
				x.version, latest))
	default:
		f.ok("schema", fmt.Sprintf("version %d", x.version))
	}
	if len(x.missing) > 0 {
		f.fail("tables", "not there, or hidden from this user: "+strings.Join(x.missing, ", "),
			toRestore)
	}
	return true
}

// judgeLock says who leads, in the words of status, and returns the row of a
// leader that renews it.
func judgeLock(f *findings, x facts, seen driver.Snapshot) (led *lockRow) {
	judged, summary, advice := words.Of(seen)
	r := x.row
	if r != nil {
		if _, err := driver.ParseToken(r.token); err != nil {
			f.fail("lock", summary+": "+err.Error(),
				"somebody has edited the row: its holder steps down by itself, and another leads "+
					"after its TTL of "+judged.TTL.String()+"; leave the row alone")
			return nil
		}
		if r.heartbeat.time.IsZero() {
			f.warn("lock", fmt.Sprintf("the time of the last heartbeat of pid %d on host %q, "+
				"%.40q, cannot be read", r.PID, r.Hostname, r.heartbeat.text),
				"the next heartbeat writes it anew; if it does not, the holder is gone")
			return nil
		}
		if len(x.terms) > 0 && (x.terms[0].number != r.term || x.terms[0].token != r.token) {
			f.warn("lock", fmt.Sprintf("the row is of term %d, but the newest term of the "+
				"history is %d, with another token", r.term, x.terms[0].number),
				"somebody has edited the tables, or restored a part of a backup: the holder "+
					"steps down if the row is not its own, and the next acquisition repairs it")
		}
		judgeStamp(f, x)
	}
	switch {
	case judged.Verdict == assess.Free:
		f.note("lock", summary)
	case judged.Verdict != assess.Held, seen.Blocker != "":
		f.warn("lock", summary, advice)
	case words.Late(seen, judged) != "":
		f.warn("lock", "held: "+words.Late(seen, judged),
			fmt.Sprintf("it has died, hangs, or cannot reach the database: "+
				"another may lead once its TTL of %s has passed; look at its log", judged.TTL))
	case r.state != driver.StateLeading:
		f.note("lock", summary+": it leaves on purpose and starts nothing new")
	default:
		f.ok("lock", summary)
		return r
	}
	return nil
}

// judgeApps finds apps that share the lock: one leads again after another has led.
// An app that has only got another name does not.
func judgeApps(f *findings, x facts) {
	apps := slices.DeleteFunc(slices.Clone(x.apps), func(a driver.App) bool {
		return a.Name == ""
	})
	if len(apps) == 0 {
		return
	}
	last, other := apps[0], ""
	for _, a := range apps[1:] {
		switch {
		case last.Differs(a):
			other = a.Name
		case other != "":
			f.warn("app", fmt.Sprintf("two apps take turns to lead: %s, and %s", last.Name, other),
				`the jobs of one never run while the other leads: `+
					`give each app a lock of its own: `+
					`postgres.WithSchema("...") on PostgreSQL, another database on MariaDB, `+
					`another file on SQLite`)
			return
		}
	}
	f.ok("app", "the lock is that of "+words.App(last))
}

// judgeSign says what the end of the session of a leader on a server means. Only a look tells of
// the session.
func judgeSign(f *findings, seen driver.Snapshot, looked bool) {
	switch r := seen.Row; {
	case r == nil:
	case !looked:
		f.note("sign of death", "not looked at: the lock could not be read as a standby does, "+
			"or another leads by now")
	case r.Grace > 0:
		f.ok("sign of death", fmt.Sprintf("once the leader's database session has ended, "+
			"others wait for %s only", r.Grace))
	default:
		f.note("sign of death", "none, a crash of the leader is noticed after its TTL: "+
			cmp.Or(r.TTLOnly, "the leader does not say why"))
	}
}

func judgeStamp(f *findings, x facts) {
	r := x.row
	if ahead := r.heartbeat.time.Sub(x.now); ahead > futureStamp {
		f.warn("clock", fmt.Sprintf("the last heartbeat lies %s in the future of the "+
			"database's clock (%s)", words.Span(ahead), r.heartbeat.text),
			"a clock was set back, or two machines' clocks differ: nothing is judged by it, "+
				"but ages are wrong until it has caught up; look at NTP")
		return
	}
	f.ok("clock", "no stamp of the lock lies in the future")
}

// judgeTiming looks at the settings of the holder.
func judgeTiming(f *findings, x facts) {
	if x.row == nil {
		return
	}
	p := x.row.timing
	text := fmt.Sprintf("TTL %s, renew deadline %s, heartbeat every %s", p.TTL, p.RenewDeadline,
		p.HeartbeatInterval)
	if err := p.Validate(); err != nil {
		f.warn("timing", text+": "+strings.ReplaceAll(err.Error(), "\n", "; "),
			"no replica accepts such settings: somebody has edited the row; "+
				"a restart of the leader writes its own")
		return
	}
	switch {
	case p.TTL < shortTTL:
		f.warn("timing", text, fmt.Sprintf("a TTL below %s ends with every pause of a process, "+
			"a disk or a network: 60s is the default", shortTTL))
	case p.TTL > longTTL:
		f.warn("timing", text, fmt.Sprintf("where a death cannot be proven, "+
			"a crash is noticed after the TTL only: more than %s is long, 60s is the default",
			longTTL))
	default:
		f.ok("timing", text)
	}
	judgeMixed(f, x)
}

// judgeMixed tells a fleet of mixed settings from one that was changed once.
func judgeMixed(f *findings, x facts) {
	var changes int
	ttls := map[time.Duration]bool{}
	last := x.row.timing.TTL
	ttls[last] = true
	for _, t := range x.terms[:min(len(x.terms), mixedTerms)] {
		if t.ttl != last {
			changes++
		}
		last = t.ttl
		ttls[last] = true
	}
	if changes == 0 {
		return
	}
	var list []string
	for ttl := range ttls {
		list = append(list, ttl.String())
	}
	slices.Sort(list)
	found := fmt.Sprintf("the newest %d terms had TTLs of %s", min(len(x.terms), mixedTerms),
		strings.Join(list, " and "))
	if changes == 1 {
		f.note("mixed settings", found+": it was changed once")
		return
	}
	f.warn("mixed settings", found+", in turn",
		"that is safe, but replicas have different settings: give all of them the same TTL")
}

func judgeHistory(f *findings, x facts) {
	recent, handed, losses := 0, 0, 0
	var lost *term
	for i, t := range x.terms {
		age := x.now.Sub(t.acquired.time) // below 0 if a clock was set back since
		if age > -futureStamp && age < assess.FlapWindow {
			if i+1 < len(x.terms) && x.terms[i+1].reason == driver.EndRevoked {
				handed++ // an operator wanted it
			} else {
				recent++
			}
		}
		if !words.EndedByItself(t.reason) && x.now.Sub(t.ended.time) < lossWindow {
			if losses++; lost == nil {
				lost = &x.terms[i]
			}
		}
	}
	found := fmt.Sprintf("terms that began in the last %s: %d", assess.FlapWindow, recent)
	if handed > 0 {
		found += fmt.Sprintf(", and %d after a hand-over", handed)
	}
	if recent > assess.FlapTerms {
		f.warn("flapping", found,
			"leaders do not stay: do they crash, are they restarted (a health check that "+
				"fails?), do they lose the lock? See `schedlock history` and their logs")
	} else {
		f.ok("flapping", found)
	}
	if losses > 0 {
		f.warn("losses", fmt.Sprintf("terms of the last day that ended without a release: %d; "+
			"the last was term %d of pid %d on %s (%s, %s)",
			losses, lost.number, lost.PID, lost.Hostname, lost.reason, lost.ended.text),
			"look into that replica's log at that time: a process that crashed or was killed, "+
				"a slow or unreachable database, a paused process, or a row edited by hand")
	}
}

func judgePauses(f *findings, x facts) {
	for i, p := range x.pauses {
		if i == shown {
			f.note("pause", fmt.Sprintf("%d more jobs are paused", len(x.pauses)-shown))
			return
		}
		f.note("pause", p.String())
	}
}

// judgeRuns looks for attempts that nobody has anymore.
func judgeRuns(f *findings, x facts, led *lockRow) {
	var orphans []string
	for _, r := range x.running {
		if x.row == nil || r.term != x.row.term {
			orphans = append(orphans, fmt.Sprintf("%q of term %d, started %s",
				r.job, r.term, r.started.text))
		}
	}
	if len(orphans) == 0 {
		return
	}
	found := fmt.Sprintf("runs in progress for terms that have ended: %d: %s", len(orphans),
		list(orphans))
	switch {
	case led == nil:
		f.warn("runs", found,
			"the next leader writes them down as abandoned and retries what may be retried: "+
				"start a replica")
	case leadsSince(x, led) < settled:
		f.note("runs", found+"; the new leader is about to write them down as abandoned")
	default:
		f.warn("runs", found,
			"the leader should have written them down as abandoned: "+
				"does it run its jobs through package tasks? Else look at its log")
	}
}

func judgeRequests(f *findings, x facts, led *lockRow) {
	inbox := ledger.Pending{Pauses: x.pauses}
	waiting := slices.DeleteFunc(slices.Clone(x.requests), func(r ledger.Request) bool {
		return inbox.Paused(r.Job) != nil
	})
	if len(waiting) == 0 {
		return
	}
	oldest := waiting[0]
	found := fmt.Sprintf("requests that wait: %d, the oldest for job %q by %s since %s",
		len(waiting), oldest.Job, oldest.By, oldest.At.Format(time.RFC3339))
	switch {
	case led == nil:
		f.warn("requests", found+", and no leader renews the lock",
			"start a replica: the next leader answers them")
	case x.now.Sub(oldest.At) > settled && leadsSince(x, led) > settled:
		f.warn("requests", found+", though somebody leads",
			"look at the leader's log: its scheduler hangs, or it does not run its jobs through "+
				"package tasks")
	default:
		f.note("requests", found)
	}
}

// judgeJobs looks for jobs that do not run as their schedule says.
func judgeJobs(f *findings, x facts, led *lockRow) {
	inbox, running := ledger.Pending{Pauses: x.pauses}, map[string]bool{}
	for _, r := range x.running {
		running[r.job] = true
	}
	var overdue, ahead []string
	for _, j := range x.jobs {
		if j.cursor.time.IsZero() {
			f.fail("cursor", fmt.Sprintf("the cursor_at of job %q, %.40q, cannot be read",
				j.name, j.cursor.text),
				fmt.Sprintf("a leader takes it for now when it comes to the job; to do so at "+
					"once: schedlock reset-cursor %s; ticks before now are then not run",
					words.Argument(j.name)))
			continue
		}
		if j.cursor.time.After(x.now.Add(overdueAfter)) {
			ahead = append(ahead, fmt.Sprintf("%q until %s", j.name, j.cursor.text))
			continue
		}
		spec := tasks.ParseSpec(j.spec)
		if spec.Validate() != nil {
			f.note("jobs", fmt.Sprintf("the schedule of job %q, %.80q, is not known here: "+
				"it was not looked at", j.name, j.spec))
			continue
		}
		due := spec.Next(j.cursor.time)
		if late := x.now.Sub(due); !due.IsZero() && late > overdueAfter &&
			inbox.Paused(j.name) == nil && !running[j.name] {
			overdue = append(overdue, fmt.Sprintf("%q by %s", j.name, words.Span(late)))
		}
	}
	if len(ahead) > 0 {
		f.warn("cursor",
			"the cursors of jobs lie in the future of the database's clock, so they wait: "+
				list(ahead),
			"a clock was set back, or a hand has set them: they run again once it has caught up, "+
				"or another leader begins; for each that cannot wait: schedlock reset-cursor JOB")
	}
	switch {
	case x.row == nil && len(overdue) > 0:
		f.warn("overdue", "jobs are overdue, and nobody leads: "+list(overdue), "start a replica")
	case led == nil || leadsSince(x, led) < settled:
		// Whoever leads next, or has just begun, catches up.
	case len(overdue) > 0:
		f.warn("overdue", "jobs are overdue though somebody leads: "+list(overdue),
			"does the leader's code still have them (a removed job keeps its row)? "+
				"Else its scheduler hangs: "+
				"look at its log, and hand over with `schedlock release --force --reason WHY`")
	case len(x.jobs) > 0:
		f.ok("overdue", fmt.Sprintf("none of %d jobs is overdue", len(x.jobs)))
	}
}

func leadsSince(x facts, led *lockRow) time.Duration { return x.now.Sub(led.created.time) }

func list(entries []string) string {
	if more := len(entries) - shown; more > 0 {
		return strings.Join(entries[:shown], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(entries, ", ")
}
