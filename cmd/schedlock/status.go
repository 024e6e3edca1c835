package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"example.com/schedlock/cmd/schedlock/internal/words"
	"example.com/schedlock/internal/assess"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const statusHelp = `The first line is the whole answer in one sentence.

Whether the holder lives is known from the lease file of a SQLite database on
the same machine, and from its session where it is connected directly to
PostgreSQL; elsewhere only its heartbeats tell.

Examples:
  schedlock --db /srv/app/app.db status
  schedlock status --json | jq -r .verdict
`

// A situation is what status and watch read.
type situation struct {
	view       driver.Snapshot
	paused     *ledger.Pause  // of the whole scheduler; nil: it is not
	pausedJobs []ledger.Pause // of jobs by themselves
	schema     int64
	judged     assessment
	waiting    int          // requests that nobody has answered
	failing    []ledger.Job // whose latest attempt has failed; only status asks
}

// situation reads what is shown of the lock, and with more what a command shows besides.
func (t *tool) situation(ctx context.Context,
	more func(context.Context, store, *situation) error) (found situation, err error) {
	err = t.look(ctx, func(ctx context.Context, s store) error {
		found = situation{schema: t.schema}
		var err error
		if found.view, err = assess.LookAtSession(ctx, s); err != nil {
			return err
		}
		inbox, err := s.Pending(ctx)
		if err != nil {
			return err
		}
		for _, n := range inbox.Backlog {
			found.waiting += n
		}
		found.paused = inbox.Paused("")
		for _, p := range inbox.Pauses {
			if p.InForce() && p.Job != "" {
				found.pausedJobs = append(found.pausedJobs, p)
			}
		}
		return more(ctx, s, &found)
	})
	found.judged = judge(found.view)
	return found, err
}

func status(t *tool, _ *pflag.FlagSet) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		s, err := t.situation(ctx, func(ctx context.Context, st store, found *situation) error {
			list, err := st.Jobs(ctx)
			found.failing = slices.DeleteFunc(list,
				func(j ledger.Job) bool { return j.Streak == 0 })
			return err
		})
		if err != nil {
			return 0, err
		}
		if t.json {
			t.encode(newStatusJSON(t, s))
		} else {
			t.showStatus(s)
		}
		return s.judged.verdict.exitCode(), nil
	}
}

// headline is the situation in one line that can be read aloud: who leads, and what is
// wrong with the jobs.
func (s situation) headline() string {
	line := s.judged.summary
	if n := len(s.failing); n > 0 {
		worst := slices.MaxFunc(s.failing, func(a, b ledger.Job) int {
			return cmp.Compare(a.Streak, b.Streak)
		})
		switch {
		case worst.Streak == 1 && n == 1:
			line += fmt.Sprintf("; %s has failed the last time", worst.Name)
		case worst.Streak == 1:
			line += fmt.Sprintf("; %d jobs have failed the last time", n)
		default:
			line += fmt.Sprintf("; %s has failed %d times in a row", worst.Name, worst.Streak)
			if n > 1 {
				line += fmt.Sprintf("; failing besides it: %d", n-1)
			}
		}
	}
	switch n := len(s.pausedJobs); {
	case s.paused != nil:
		line += "; everything is paused by " + s.paused.By
	case n == 1:
		line += fmt.Sprintf("; %s is paused", s.pausedJobs[0].Job)
	case n > 1:
		line += fmt.Sprintf("; %d jobs are paused", n)
	}
	return line
}

func (t *tool) showStatus(s situation) {
	v, a := s.view, s.judged
	paint := a.colour()
	if paint == green && (len(s.failing)+len(s.pausedJobs) > 0 || s.paused != nil) {
		paint = yellow
	}
	fmt.Fprintln(t.out, t.paint(paint, plain(s.headline())))
	if i := v.Info(); i != nil {
		t.line("since", "%s, for %s", t.at(i.CreatedAt), span(i.Age))
		t.line("heartbeat", "%s, %s ago; every %v, TTL %v, renew deadline %v", t.at(i.HeartbeatAt),
			span(i.HeartbeatAge),
			i.Timing.HeartbeatInterval, i.Timing.TTL, i.Timing.RenewDeadline)
		if app := words.App(i.App); app != "" {
			t.line("app", "%s", app)
		}
		t.line("state", "%s", i.State)
		if i.State == driver.StateRevoked {
			t.line("revoked", "%s", t.revokedWords(i.Revoked))
		}
		if i.Blocker != "" {
			t.line("blocked", "its row is locked by %s", i.Blocker)
		}
	}
	t.line("proof", "%s", t.signWords(v))
	t.line("standby", "waits %s", a.standby.text)
	if p := s.paused; p != nil {
		t.line("paused", "%s", t.pauseWords(*p))
	}
	if n := len(s.pausedJobs); n > 0 {
		t.line("paused", "jobs by themselves: %d; see schedlock jobs", n)
	}
	if s.waiting > 0 {
		t.line("requests", "%d that nobody has answered", s.waiting)
	}
	t.line("schema", "%s", schemaWords(s.schema))
	t.line("database", "%s", shownDSN(t.dsn))
	if a.advice != "" {
		t.line("to do", "%s", a.advice)
	}
}

func schemaWords(version int64) string {
	if version > migrations.Latest {
		return fmt.Sprintf("version %d; this tool knows %d, which still works", version,
			migrations.Latest)
	}
	return fmt.Sprintf("version %d", version)
}

func (t *tool) revokedWords(r schedlock.Revocation) string {
	if r.At.IsZero() {
		return "the history does not say by whom"
	}
	return fmt.Sprintf("by %q at %s: %q", r.By, t.at(r.At), r.Reason)
}

func (t *tool) signWords(v driver.Snapshot) string {
	switch {
	case v.Sign == driver.SignAlive:
		return "alive: a process holds its place in the lease file"
	case v.Row == nil && (v.Newest == nil || !v.Newest.Open()):
		return "none is needed: nobody holds the lock"
	case v.Sign == driver.SignDead:
		return "dead: the kernel has taken back its place in the lease file"
	case v.Sign == driver.SignEnded:
		return fmt.Sprintf("a sign of death: its database session has ended; "+
			"unless it is back within %v another leads", v.Row.Grace)
	case v.Row != nil && v.Row.Grace > 0:
		return fmt.Sprintf("on: once its database session has ended, others wait for %v only",
			v.Row.Grace)
	case v.Row != nil && v.Row.TTLOnly != "":
		return "none, only the heartbeats tell: " + v.Row.TTLOnly
	case isPostgres(t.dsn), isMySQL(t.dsn):
		return "none: only the heartbeats tell"
	}
	return "none: the lease file tells nothing of it (made elsewhere, missing, or not readable); " +
		"only the heartbeats tell"
}

type statusJSON struct {
	Verdict       verdict     `json:"verdict"` // held, free, stale, dead, unfinished
	Summary       string      `json:"summary"`
	ToDo          string      `json:"to_do"`
	Now           timestamp   `json:"now"`         // the database's clock
	Lock          *lockJSON   `json:"lock"`        // null: there is no row
	NewestTerm    *termJSON   `json:"newest_term"` // null: nobody ever led
	Standby       standbyJSON `json:"standby"`
	Paused        *pauseJSON  `json:"paused"` // the whole scheduler; null: it is not
	PausedJobs    []pauseJSON `json:"paused_jobs"`
	Requests      int         `json:"requests"` // that nobody has answered
	SchemaVersion int64       `json:"schema_version"`
	Database      string      `json:"database"`
}

type lockJSON struct {
	PID                  int          `json:"pid"`
	Hostname             string       `json:"hostname"`
	Term                 int64        `json:"term"`
	State                driver.State `json:"state"`
	App                  string       `json:"app"`     // "": not known
	Program              string       `json:"program"` // of the holder; "": not known
	CreatedAt            timestamp    `json:"created_at"`
	HeartbeatAt          timestamp    `json:"heartbeat_at"`
	AgeSeconds           float64      `json:"age_seconds"`
	HeartbeatAgeSeconds  float64      `json:"heartbeat_age_seconds"`
	TTLSeconds           float64      `json:"ttl_seconds"`
	RenewDeadlineSeconds float64      `json:"renew_deadline_seconds"`
	HeartbeatSeconds     float64      `json:"heartbeat_seconds"`
	// alive, dead, session ended, none
	Sign string `json:"sign"`
	// 0: others wait for the TTL, …
	SessionGraceSeconds float64      `json:"session_grace_seconds"`
	TTLOnly             string       `json:"ttl_only"` // … and why; "": not known
	Revoked             *revokedJSON `json:"revoked"`
	BlockedBy           string       `json:"blocked_by"`
}

type revokedJSON struct {
	At     timestamp `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

type standbyJSON struct {
	AtOnce        bool    `json:"at_once"`
	AtMostSeconds float64 `json:"at_most_seconds"`
	WaitsFor      string  `json:"waits_for"`
}

type pauseJSON struct {
	Job    string    `json:"job"` // "": the whole scheduler
	Since  timestamp `json:"since"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

func newPauseJSON(p ledger.Pause) pauseJSON {
	return pauseJSON{p.Job, timestamp(p.Since), p.By, p.Reason}
}

func newRevokedJSON(r schedlock.Revocation) *revokedJSON {
	if r.At.IsZero() {
		return nil
	}
	return &revokedJSON{timestamp(r.At), r.By, r.Reason}
}

func newLockJSON(i *schedlock.LockInfo) *lockJSON {
	if i == nil {
		return nil
	}
	return &lockJSON{
		PID: i.PID, Hostname: i.Hostname, Term: i.Term, State: i.State, App: i.App.Name,
		Program:   i.App.Program,
		CreatedAt: timestamp(i.CreatedAt), HeartbeatAt: timestamp(i.HeartbeatAt),
		AgeSeconds: i.Age.Seconds(), HeartbeatAgeSeconds: i.HeartbeatAge.Seconds(),
		TTLSeconds: i.Timing.TTL.Seconds(), RenewDeadlineSeconds: i.Timing.RenewDeadline.Seconds(),
		HeartbeatSeconds: i.Timing.HeartbeatInterval.Seconds(),
		Sign:             i.Sign.String(), SessionGraceSeconds: i.Grace.Seconds(),
		TTLOnly: i.TTLOnly, Revoked: newRevokedJSON(i.Revoked), BlockedBy: i.Blocker,
	}
}

func newStatusJSON(t *tool, s situation) statusJSON {
	j := statusJSON{
		Verdict: s.judged.verdict, Summary: s.headline(), ToDo: s.judged.advice,
		Now:  timestamp(s.view.Now),
		Lock: newLockJSON(s.view.Info()),
		Standby: standbyJSON{s.judged.standby.atOnce, s.judged.standby.most.Seconds(),
			s.judged.standby.text},
		PausedJobs: convert(s.pausedJobs, newPauseJSON), Requests: s.waiting,
		SchemaVersion: s.schema, Database: shownDSN(t.dsn),
	}
	if n := s.view.Newest; n != nil {
		j.NewestTerm = new(newTermJSON(*n))
	}
	if p := s.paused; p != nil {
		j.Paused = new(newPauseJSON(*p))
	}
	return j
}
