package doctor

import (
	"fmt"
	"testing"
	"time"

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
	apps := func(names ...string) func(*facts) {
		return func(x *facts) {
			for _, name := range names {
				x.apps = append(x.apps, driver.App{Name: name, Program: name})
			}
		}
	}
	for name, tc := range map[string]struct {
		change func(*facts)
		sign   driver.Sign
		check  string
		level  Level
		says   []string
	}{
		"no tables": {func(x *facts) {
			x.version = 0
		}, 0, "schema", Error, []string{"schedlock migrate"}},
		"an older schema": {func(x *facts) {
			x.version = 1
		}, 0, "schema", Warning, []string{"version 1", "schedlock migrate"}},
		"one app": {apps("a", "a", ""), 0, "app", OK,
			[]string{"the lock is that of a"}},
		"an app with a new name": {apps("a", "a", "b", "b"), 0, "app", OK,
			[]string{"the lock is that of a"}},
		"two apps in turn": {apps("a", "b", "", "a"), 0, "app", Warning,
			[]string{"two apps take turns to lead: a, and b", "postgres.WithSchema"}},
		"a newer schema": {func(x *facts) {
			x.version = 99
		}, 0, "schema", Note, []string{"99"}},
		"a schema too new": {func(x *facts) {
			x.version, x.minCode = 99, 98
		}, 0, "schema", Error, []string{"98", "newer release"}},
		"free": {free, 0, "lock", Note, []string{"nobody leads", "released"}},
		"never held": {func(x *facts) {
			x.row, x.terms = nil, nil
		}, 0, "lock", Note, []string{"nobody has ever"}},
		"row deleted by hand": {func(x *facts) {
			x.row = nil
		}, 0, "lock", Warning, []string{"no lock row", "term 100", "do not delete rows"}},
		"row deleted, holder alive": {func(x *facts) {
			x.row = nil
		}, driver.SignAlive, "lock", Warning,
			[]string{"a process still holds"}},
		"an edited token": {func(x *facts) {
			x.row.token = "me"
		}, 0, "lock", Error, []string{`"me"`, "edited"}},
		"another token": {func(x *facts) {
			x.row.token = driver.NewToken().String()
		}, 0, "lock", Warning, []string{"another token"}},
		"a leftover row": {func(x *facts) {
			x.terms[0].ended, x.terms[0].reason = at(0), driver.EndReleased
		}, 0, "lock", Warning, []string{"has ended its term 100", "its row is still there"}},
		"a stale row": {func(x *facts) {
			x.row.heartbeat = at(2 * time.Minute)
		}, 0, "lock", Warning, []string{"2m0s ago", "TTL 1m0s"}},
		"a hung holder": {func(x *facts) {
			x.row.heartbeat = at(2 * time.Minute)
		}, driver.SignAlive, "lock", Warning,
			[]string{"lives, but its last heartbeat", `pid 7 on host "a"`}},
		"a dead holder": {func(x *facts) {
			x.row.heartbeat = at(2 * time.Minute)
		}, driver.SignDead, "lock", Warning, []string{"proven dead", "start one"}},
		"just died": {func(*facts) {}, driver.SignDead, "lock", Warning,
			[]string{"proven dead", "start one"}},
		"a late heartbeat": {func(x *facts) {
			x.row.heartbeat = at(35 * time.Second)
		}, 0, "lock", Warning, []string{"is late: it has missed 3 heartbeats"}},
		"cut off": {func(*facts) {}, driver.SignEnded, "lock", Warning,
			[]string{"the database session of pid 7", "unless the holder comes back"}},
		"the future, by a TTL": {func(x *facts) {
			x.row.heartbeat = at(-time.Hour)
		}, 0, "lock", Warning, []string{"stamped 1h0m0s in the future"}},
		"dead, no row": {func(x *facts) {
			x.row = nil
		}, driver.SignDead, "lock", Warning, []string{"there is no lock row", "proven dead"}},
		"draining": {func(x *facts) {
			x.row.state = driver.StateDraining
		}, 0, "lock", Note, []string{"leaves on purpose"}},
		"no heartbeat": {func(x *facts) {
			x.row.heartbeat = readStamp("soon")
		}, 0, "lock", Warning, []string{`"soon"`}},
		"the future": {func(x *facts) {
			x.row.heartbeat = at(-5 * time.Second)
		}, 0, "clock", Warning, []string{"5s in the future", "NTP"}},
		"short TTL": {func(x *facts) {
			x.row.timing = driver.Timing{TTL: 2 * time.Second,
				RenewDeadline: 1500 * time.Millisecond, HeartbeatInterval: 300 * time.Millisecond}
		}, 0, "timing", Warning, []string{"TTL 2s"}},
		"long TTL": {func(x *facts) {
			x.row.timing = driver.Timing{TTL: time.Hour, RenewDeadline: 45 * time.Minute,
				HeartbeatInterval: 10 * time.Second}
		}, 0, "timing", Warning, []string{"TTL 1h0m0s"}},
		"edited timing": {func(x *facts) {
			x.row.timing.HeartbeatInterval = 20 * time.Second
		}, 0, "timing", Warning, []string{"below 3 × heartbeat interval", "edited"}},
		"mixed settings": {func(x *facts) {
			x.terms[1].ttl = 30 * time.Second
			x.terms = append(x.terms, ended(98, 3*time.Hour, "released"))
		}, 0,
			"mixed settings", Warning, []string{"1m0s and 30s", "same TTL"}},
		"changed settings": {func(x *facts) {
			x.terms[1].ttl = 30 * time.Second
		}, 0, "mixed settings", Note, []string{"changed once"}},
		"flapping": {func(x *facts) {
			for i := range 6 {
				x.terms = append(x.terms, term{number: int64(90 - i),
					acquired: at(time.Duration(i) * time.Minute), ended: at(0),
					reason: driver.EndReleased, ttl: time.Minute})
			}
		}, 0, "flapping", Warning, []string{"10m0s: 6"}},
		"hand-overs by an operator": {func(x *facts) {
			for i := range 6 {
				x.terms = append(x.terms, term{number: int64(90 - i),
					acquired: at(time.Duration(i) * time.Minute), ended: at(0),
					reason: driver.EndRevoked, ttl: time.Minute})
			}
		}, 0, "flapping", OK, []string{"10m0s: 1, and 5 after a hand-over"}},
		"losses": {func(x *facts) {
			x.terms[1].reason = driver.EndExpired
		}, 0, "losses", Warning, []string{"term 99 of pid 8 on b", "log"}},
		"a pause": {func(x *facts) {
			x.pauses = []ledger.Pause{{Action: ledger.Action{By: "ada", Reason: "deploy"},
				Since: now}}
		}, 0, "pause", Note,
			[]string{"the scheduler is paused by ada since 2026-11-21T03:00:00Z: deploy"}},
		"orphans, nobody leads": {func(x *facts) {
			free(x)
			x.running = []run{{job: "tick", term: 99, started: at(time.Hour)}}
		}, 0, "runs", Warning, []string{`"tick" of term 99`, "start a replica"}},
		"orphans, a leader": {func(x *facts) {
			x.running = []run{{job: "tick", term: 99, started: at(time.Hour)}}
		}, 0, "runs", Warning, []string{"leader should have"}},
		"orphans, a new leader": {func(x *facts) {
			x.row.created = at(time.Second)
			x.running = []run{{job: "tick", term: 99}}
		}, 0, "runs", Note, []string{"about to"}},
		"requests, nobody leads": {func(x *facts) {
			free(x)
			x.requests = []ledger.Request{{Action: ledger.Action{Job: "tick", By: "ada"}, At: now}}
		}, 0, "requests", Warning, []string{"by ada", "no leader renews", "start a replica"}},
		"requests that wait": {func(x *facts) {
			x.requests = []ledger.Request{{Action: ledger.Action{Job: "tick", By: "ada"},
				At: now.Add(-time.Hour)}}
		}, 0, "requests", Warning, []string{"though somebody leads"}},
		"a fresh request": {func(x *facts) {
			x.requests = []ledger.Request{{Action: ledger.Action{Job: "tick", By: "ada"}, At: now}}
		}, 0, "requests", Note, nil},
		"an unreadable cursor": {func(x *facts) {
			x.jobs[0].cursor = readStamp("gestern")
		}, 0, "cursor", Error, []string{`"gestern"`, `schedlock reset-cursor "tick"`}},
		"a cursor ahead": {func(x *facts) {
			x.jobs[0].cursor = at(-time.Hour)
		}, 0, "cursor", Warning, []string{`"tick" until`, "schedlock reset-cursor JOB"}},
		"an unknown schedule": {func(x *facts) {
			x.jobs[0].spec = "at full moon"
		}, 0, "jobs", Note, []string{"full moon"}},
		"an overdue job": {func(x *facts) {
			x.jobs[0].cursor = at(10 * time.Minute)
		}, 0, "overdue", Warning, []string{`"tick" by 9m0s`, "release --force"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := led()
			tc.change(&x)
			finding(t, judged(x, tc.sign), tc.check, tc.level, tc.says...)
		})
	}
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
