package doctor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

var (
	now  = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	usTT = driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
		HeartbeatInterval: 10 * time.Second}
)

func at(ago time.Duration) stamp { return readStamp(now.Add(-ago).Format(time.RFC3339Nano)) }

// led is a database with a leader of an hour, and one job.
func led() facts {
	owner := driver.Owner{PID: 7, Hostname: "a"}
	token := driver.NewToken().String()
	return facts{
		now: now, version: migrations.Latest, minCode: 1,
		row: &lockRow{Owner: owner, created: at(time.Hour), heartbeat: at(time.Second),
			token: token, term: 100, state: driver.StateLeading, timing: usTT},
		terms: []term{{Owner: owner, number: 100, token: token, acquired: at(time.Hour),
			ttl: time.Minute}, ended(99, 2*time.Hour, driver.EndReleased)},
		jobs: []job{{name: "tick", spec: "every 1m0s offset 0s", cursor: at(30 * time.Second)}},
	}
}

func ended(number int64, ago time.Duration, reason driver.EndReason) term {
	return term{Owner: driver.Owner{PID: 8, Hostname: "b"}, number: number, token: "x",
		acquired: at(ago + time.Hour), ended: at(ago), reason: reason, ttl: time.Minute}
}

func judged(x facts, sign driver.Sign) Report {
	seen := x.view()
	if seen.Row != nil {
		seen.Row.Grace = 5 * time.Second
	}
	seen.Sign = sign
	r := found(func(f *findings) { judge(f, x, seen) })
	r.Database = "test"
	return r
}

func TestALeaderThatRenewsIsHealthy(t *testing.T) {
	t.Parallel()
	r := judged(led(), driver.SignAlive)
	healthy(t, r)
	finding(t, r, "lock", OK, "held: a has led for 1 h 0 min (pid 7, term 100)",
		"last heartbeat was 1s ago")
	for _, check := range []string{"schema", "clock", "timing", "flapping", "overdue"} {
		finding(t, r, check, OK)
	}
}

func TestWhatRowsSay(t *testing.T) {
	t.Parallel()
	free := func(x *facts) {
		x.row = nil
		x.terms[0].ended, x.terms[0].reason = at(time.Minute), driver.EndReleased
	}
	beat := func(ago time.Duration) func(*facts) {
		return func(x *facts) { x.row.heartbeat = at(ago) }
	}
	asked := func(when time.Time) func(*facts) {
		return func(x *facts) {
			x.requests = []ledger.Request{{Action: ledger.Action{Job: "tick", By: "ada"}, At: when}}
		}
	}
	sixEnd := func(reason driver.EndReason) func(*facts) {
		return func(x *facts) {
			for i := range 6 {
				x.terms = append(x.terms, term{number: int64(90 - i), ended: at(0), reason: reason,
					acquired: at(time.Duration(i) * time.Minute), ttl: time.Minute})
			}
		}
	}
	apps := func(names ...string) func(*facts) {
		return func(x *facts) {
			for _, name := range names {
				x.apps = append(x.apps, driver.App{Name: name, Program: name})
			}
		}
	}
	// What words and verdicts there are for a lock TestEverybodySaysTheSameOfALock has.
	says := func(name, check string, level Level, change func(*facts), texts ...string) {
		t.Run(name, func(t *testing.T) {
			x := led()
			change(&x)
			r := judged(x, driver.SignNone)
			finding(t, r, check, level, texts...)
			if check == "schema" && level == Error {
				assert.Len(t, r.Findings, 1, "rows that were not read")
			}
		})
	}
	says("no tables", "schema", Error, func(x *facts) { x.version = 0 }, "schedlock migrate")
	says("an older schema", "schema", Warning, func(x *facts) { x.version = 1 },
		"version 1", "schedlock migrate")
	says("one app", "app", OK, apps("a", "a", ""), "the lock is that of a")
	says("an app with a new name", "app", OK, apps("a", "a", "b", "b"),
		"the lock is that of a")
	says("two apps in turn", "app", Warning, apps("a", "b", "", "a"),
		"two apps take turns to lead: a, and b", "postgres.WithSchema")
	says("a newer schema", "schema", Note, func(x *facts) { x.version = 99 }, "99")
	says("a schema too new", "schema", Error,
		func(x *facts) { x.version, x.minCode = 99, 98 }, "98", "newer release")
	says("free", "lock", Note, free, "nobody leads", "released")
	says("an edited token", "lock", Error, func(x *facts) { x.row.token = "me" },
		`"me"`, "edited")
	says("another token", "lock", Warning,
		func(x *facts) { x.row.token = driver.NewToken().String() }, "another token")
	says("a late heartbeat", "lock", Warning, beat(35*time.Second),
		"is late: it has missed 3 heartbeats")
	says("no heartbeat", "lock", Warning,
		func(x *facts) { x.row.heartbeat = readStamp("soon") }, `"soon"`)
	says("the future", "clock", Warning, beat(-5*time.Second), "5s in the future", "NTP")
	says("short TTL", "timing", Warning, func(x *facts) {
		x.row.timing = driver.Timing{TTL: 2 * time.Second,
			RenewDeadline: 1500 * time.Millisecond, HeartbeatInterval: 300 * time.Millisecond}
	}, "TTL 2s")
	says("long TTL", "timing", Warning, func(x *facts) {
		x.row.timing = driver.Timing{TTL: time.Hour, RenewDeadline: 45 * time.Minute,
			HeartbeatInterval: 10 * time.Second}
	}, "TTL 1h0m0s")
	says("edited timing", "timing", Warning,
		func(x *facts) { x.row.timing.HeartbeatInterval = 20 * time.Second },
		"below 3 × heartbeat interval", "edited")
	says("mixed settings", "mixed settings", Warning, func(x *facts) {
		x.terms[1].ttl = 30 * time.Second
		x.terms = append(x.terms, ended(98, 3*time.Hour, "released"))
	}, "1m0s and 30s", "same TTL")
	says("changed settings", "mixed settings", Note,
		func(x *facts) { x.terms[1].ttl = 30 * time.Second }, "changed once")
	says("flapping", "flapping", Warning, sixEnd(driver.EndReleased), "10m0s: 6")
	says("hand-overs by an operator", "flapping", OK, sixEnd(driver.EndRevoked),
		"10m0s: 1, and 5 after a hand-over")
	for _, reason := range []driver.EndReason{driver.EndExpired, driver.EndLost,
		driver.EndProvenDead, driver.EndSessionEnded} {
		says("losses: "+string(reason), "losses", Warning,
			func(x *facts) {
				x.terms[1].reason = reason
				x.terms = append(x.terms, ended(98, 3*time.Hour, reason))
			}, "a release: 2; the last was term 99 of pid 8 on b", "log")
	}
	says("a pause", "pause", Note, func(x *facts) {
		x.pauses = []ledger.Pause{{Action: ledger.Action{By: "ada", Reason: "deploy"},
			Since: now}}
	}, "the scheduler is paused by ada since 2026-11-21T03:00:00Z: deploy")
	says("orphans, nobody leads", "runs", Warning, func(x *facts) {
		free(x)
		x.running = []run{{job: "tick", term: 99, started: at(time.Hour)}}
	}, `"tick" of term 99`, "start a replica")
	says("orphans, a leader", "runs", Warning,
		func(x *facts) { x.running = []run{{job: "tick", term: 99, started: at(time.Hour)}} },
		"leader should have")
	says("orphans, a new leader", "runs", Note, func(x *facts) {
		x.row.created = at(time.Second)
		x.running = []run{{job: "tick", term: 99}}
	}, "about to")
	says("requests, nobody leads", "requests", Warning, func(x *facts) {
		free(x)
		asked(now)(x)
	}, "by ada", "no leader renews", "start a replica")
	says("requests that wait", "requests", Warning, asked(now.Add(-time.Hour)),
		"though somebody leads")
	says("a fresh request", "requests", Note, asked(now))
	says("an unreadable cursor", "cursor", Error,
		func(x *facts) { x.jobs[0].cursor = readStamp("gestern") },
		`"gestern"`, "schedlock reset-cursor tick;")
	says("a cursor ahead", "cursor", Warning,
		func(x *facts) { x.jobs[0].cursor = at(-time.Hour) },
		`"tick" until`, "schedlock reset-cursor JOB")
	says("an unknown schedule", "jobs", Note,
		func(x *facts) { x.jobs[0].spec = "at full moon" }, "full moon")
	says("an overdue job", "overdue", Warning,
		func(x *facts) { x.jobs[0].cursor = at(10 * time.Minute) },
		`"tick" by 9m0s`, "release --force")
	says("an overdue job that nobody runs", "overdue", Warning, func(x *facts) {
		free(x)
		x.jobs[0].cursor = at(10 * time.Minute)
	}, `"tick" by 9m0s`, "start a replica")
}

// What looks like a fault and is none.
func TestWhatRowsDoNotSay(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*facts){
		"an overdue job that is paused": func(x *facts) {
			x.jobs[0].cursor = at(10 * time.Minute)
			x.pauses = []ledger.Pause{{Action: ledger.Action{Job: "tick", By: "ada"}, Since: now}}
		},
		"an overdue job that runs": func(x *facts) {
			x.jobs[0].cursor = at(10 * time.Minute)
			x.running = []run{{job: "tick", term: 100, started: at(11 * time.Minute)}}
		},
		"an overdue job of a leader that has just begun": func(x *facts) {
			x.jobs[0].cursor = at(10 * time.Minute)
			x.row.created = at(time.Second)
		},
		"a request for a job that is paused": func(x *facts) {
			x.requests = []ledger.Request{{Action: ledger.Action{Job: "tick", By: "ada"},
				At: now.Add(-time.Hour)}}
			x.pauses = []ledger.Pause{{Action: ledger.Action{By: "ada"}, Since: now}}
		},
		"a loss of last week": func(x *facts) {
			x.terms[1] = ended(99, 7*24*time.Hour, driver.EndLost)
		},
		"terms from before the clock was set back": func(x *facts) {
			for i := range 9 {
				x.terms = append(x.terms, ended(int64(90-i), -3*time.Hour, driver.EndReleased))
			}
		},
		"a heartbeat that is a little ahead": func(x *facts) {
			x.row.heartbeat = at(-500 * time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := led()
			change(&x)
			healthy(t, judged(x, driver.SignNone))
		})
	}
}

func TestNothingInTheRowsIsTooOdd(t *testing.T) {
	t.Parallel()
	odd := judged(facts{version: migrations.Latest, row: &lockRow{},
		terms: []term{{}, {ended: readStamp("x")}}, jobs: []job{{},
			{cursor: readStamp("0001-01-02 00:00:00")}},
		running: []run{{}}, requests: []ledger.Request{{}}, pauses: []ledger.Pause{{}}},
		driver.SignDead)
	finding(t, odd, "lock", Error)
}

func TestALongListIsCut(t *testing.T) {
	t.Parallel()
	x := led()
	x.jobs = nil
	for i := range 9 {
		x.jobs = append(x.jobs, job{name: fmt.Sprint("j", i),
			spec: "every 1m0s offset 0s", cursor: at(time.Hour)})
	}
	finding(t, judged(x, 0), "overdue", Warning, "and 4 more")
}

func TestTheSignOfDeathIsJudgedByALookOnly(t *testing.T) {
	r := found(func(f *findings) {
		judgeSign(f, driver.Snapshot{Row: &driver.Row{}}, false)
	})
	finding(t, r, "sign of death", Note, "not looked at")
}
