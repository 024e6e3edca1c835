package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/internal/columns"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// facts is what the tables say, read in one transaction, and not by the stores'
// own methods: these refuse what cannot be read, an older schema too, and to name
// exactly that is the task here. Only look asks them.
type facts struct {
	now      time.Time // of the database
	version  int64     // of the schema
	minCode  int64     // the lowest code version that works with it
	row      *lockRow  // nil: there is none
	terms    []term    // the newest, newest first
	jobs     []job
	running  []run // in progress, oldest first
	requests []ledger.Request
	pauses   []ledger.Pause // in force
	apps     []driver.App   // of the terms
	missing  []string       // tables that a migration has made, and that nothing here reads
}

type lockRow struct {
	driver.Owner
	created, heartbeat stamp
	token              string
	term               int64
	state              driver.State
	timing             driver.Timing
	fileID             string // "": NULL
}

type term struct {
	driver.Owner
	number          int64
	token           string
	acquired, ended stamp
	reason          driver.EndReason
	ttl             time.Duration
	fileID          string
}

type job struct {
	name, spec string
	cursor     stamp
}

type run struct {
	job     string
	started stamp
	term    int64
}

// A stamp is a time as it stands in a table, whatever that is.
type stamp struct {
	text string    // "": NULL
	time time.Time // zero: it cannot be read
}

// Scan takes what the drivers make of a time: text from SQLite, a time or the word
// infinity from PostgreSQL, a time from MariaDB.
func (s *stamp) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*s = stamp{}
	case string:
		*s = readStamp(v)
	case []byte:
		*s = readStamp(string(v))
	case time.Time:
		*s = stamp{text: v.UTC().Format(columns.Layout), time: v.UTC()}
	default:
		*s = stamp{text: fmt.Sprint(v)}
	}
	return nil
}

// readStamp reads what the stores read: their own layout, and what a hand may
// have written with SQLite's datetime().
func readStamp(text string) stamp {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999"} {
		if t, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			return stamp{text: text, time: t.UTC()}
		}
	}
	return stamp{text: text}
}

// A dialect is in what the databases differ when their rows are read.
type dialect struct {
	tx     sql.TxOptions // one snapshot for all statements
	first  string        // statement of the transaction; "": none
	exists string        // 1 if there is the table scheduler_lock_schema, else 0
	more   []made        // tables that not every database has, or needs
	clock  string        // "": this machine's
	noFile bool          // there is no column file_id
}

var sqliteDialect = dialect{
	exists: `SELECT count(*) FROM sqlite_master
		WHERE type = 'table' AND name = 'scheduler_lock_schema'`,
	more: unrepeatable,
}

// unrepeatable is where goose notes the migrations. Those of MariaDB bear being repeated, and the
// table may be hidden there from the app's user, who needs no right on it.
var unrepeatable = []made{{"scheduler_lock_migrations", 1}}

// A made table is there from a version of the schema on.
type made struct {
	table   string
	version int64
}

// unread are the tables of every database that readFacts does not read.
var unread = []made{{"named_locks", 5}, {"named_locks_floor", 5}, {"queue_tasks", 6},
	{"scheduler_audit", 11}, {"scheduler_replicas", 12}, {"scheduler_attempts", 13}}

// How much is read: enough to judge, bounded in a database that has grown.
const (
	sqlSchema = `SELECT max(version), max(min_code) FROM scheduler_lock_schema`
	sqlLock   = `
SELECT pid, hostname, created_at, heartbeat_at, token, term, state,
       ttl_ms, renew_deadline_ms, heartbeat_ms, coalesce(file_id, '')
FROM scheduler_lock WHERE id = 1`
	sqlTerms = `
SELECT term, token, pid, hostname, acquired_at, ended_at, coalesce(end_reason, ''),
       ttl_ms, coalesce(file_id, '')
FROM scheduler_terms ORDER BY term DESC LIMIT 100`
	sqlApps = `
SELECT coalesce(app, ''), coalesce(program, '') FROM scheduler_terms ORDER BY term DESC LIMIT 100`
	sqlJobs = `
SELECT job, spec, cursor_at FROM scheduler_jobs ORDER BY job LIMIT 1000`
	sqlRunning = `
SELECT job, started_at, term FROM scheduler_runs
WHERE status = 'in_progress' ORDER BY id LIMIT 1000`
	sqlRequests = `
SELECT q.job, q.requested_at, q.requested_by FROM scheduler_requests q
WHERE NOT EXISTS (SELECT 1 FROM scheduler_pauses p
                  WHERE p.job IN ('', q.job) AND p.resumed_at IS NULL)
ORDER BY q.requested_at LIMIT 1000`
	sqlPauses = `
SELECT job, paused_at, paused_by, reason FROM scheduler_pauses
WHERE resumed_at IS NULL ORDER BY job LIMIT 1000`
)

// readFacts reads everything. A version of 0 means that there are no tables.
func readFacts(ctx context.Context, db *sql.DB, d dialect) (f facts, err error) {
	tx, err := db.BeginTx(ctx, &d.tx)
	if err != nil {
		return f, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	if d.first != "" {
		if _, err := tx.ExecContext(ctx, d.first); err != nil {
			return f, err
		}
	}
	var tables int
	if err := tx.QueryRowContext(ctx, d.exists).Scan(&tables); err != nil || tables == 0 {
		return f, err
	}
	if err := tx.QueryRowContext(ctx, sqlSchema).Scan(&f.version, &f.minCode); err != nil {
		return f, fmt.Errorf("table scheduler_lock_schema: %w", err)
	}
	if f.minCode > migrations.Latest {
		return f, nil // unknown tables
	}
	each := func(table, query string, dest []any, row func()) {
		if err != nil {
			return
		}
		if d.noFile {
			query = strings.ReplaceAll(query, "coalesce(file_id, '')", "''")
		}
		if err = eachRow(ctx, tx, query, nil, dest, row); err != nil {
			err = fmt.Errorf("table %s: %w", table, err)
		}
	}
	var (
		r                     lockRow
		t                     term
		j                     job
		running               run
		asked                 ledger.Request
		pause                 ledger.Pause
		app                   driver.App
		ttl, renew, heartbeat int64
		at                    stamp
	)
	each("scheduler_lock", sqlLock, []any{&r.PID, &r.Hostname, &r.created, &r.heartbeat, &r.token,
		&r.term, &r.state, &ttl, &renew, &heartbeat, &r.fileID}, func() {
		r.timing = driver.Timing{TTL: millis(ttl), RenewDeadline: millis(renew),
			HeartbeatInterval: millis(heartbeat)}
		f.row = &r
	})
	each("scheduler_terms", sqlTerms, []any{&t.number, &t.token, &t.PID, &t.Hostname, &t.acquired,
		&t.ended, &t.reason, &ttl, &t.fileID}, func() {
		t.ttl = millis(ttl)
		f.terms = append(f.terms, t)
	})
	each("scheduler_jobs", sqlJobs, []any{&j.name, &j.spec, &j.cursor},
		func() { f.jobs = append(f.jobs, j) })
	each("scheduler_runs", sqlRunning, []any{&running.job, &running.started, &running.term},
		func() { f.running = append(f.running, running) })
	if f.version >= 10 {
		each("scheduler_terms", sqlApps, []any{&app.Name, &app.Program},
			func() { f.apps = append(f.apps, app) })
	}
	if f.version >= 2 {
		each("scheduler_requests", sqlRequests, []any{&asked.Job, &at, &asked.By}, func() {
			asked.At = at.time
			f.requests = append(f.requests, asked)
		})
		each("scheduler_pauses", sqlPauses, []any{&pause.Job, &at, &pause.By, &pause.Reason},
			func() {
				pause.Since = at.time
				f.pauses = append(f.pauses, pause)
			})
	}
	for _, m := range slices.Concat(unread, d.more) {
		if err != nil || f.version < m.version {
			continue
		}
		query := strings.Replace(d.exists, "scheduler_lock_schema", m.table, 1)
		if err = tx.QueryRowContext(ctx, query).Scan(&tables); err == nil && tables == 0 {
			f.missing = append(f.missing, m.table)
		}
	}
	if err != nil {
		return f, err
	}
	// After the rows: what they bear is not later than this.
	if f.now = time.Now().UTC(); d.clock != "" {
		err = tx.QueryRowContext(ctx, d.clock).Scan(&f.now)
	}
	return f, err
}

// look is what a standby sees. If that cannot be read, such as from older
// tables, or another leads by then, it is what the rows tell without a sign.
func (x facts) look(ctx context.Context, store driver.Store) (seen driver.Snapshot, looked bool) {
	own := x.view()
	if seen, err := assess.LookAtSession(ctx, store); err == nil && sameHolder(own, seen) {
		return seen, true
	}
	return own, false
}

func sameHolder(a, b driver.Snapshot) bool {
	switch {
	case (a.Row == nil) != (b.Row == nil), (a.Newest == nil) != (b.Newest == nil):
		return false
	case a.Row != nil && (a.Row.RawToken != b.Row.RawToken || a.Row.Term != b.Row.Term):
		return false
	}
	return a.Newest == nil || a.Newest.Term == b.Newest.Term && a.Newest.Open() == b.Newest.Open()
}

func (x facts) view() driver.Snapshot {
	v := driver.Snapshot{Now: x.now}
	if r := x.row; r != nil {
		v.Row = &driver.Row{Ref: driver.Ref{Owner: r.Owner, Term: r.term}, RawToken: r.token,
			State:     r.state,
			CreatedAt: r.created.time, HeartbeatAt: r.heartbeat.time, Timing: r.timing}
	}
	if len(x.terms) > 0 {
		t := x.terms[0]
		v.Newest = &driver.Term{Ref: driver.Ref{Owner: t.Owner, Term: t.number},
			AcquiredAt: t.acquired.time,
			EndedAt:    t.ended.time, EndReason: t.reason, TTL: t.ttl}
	}
	return v
}

func eachRow(ctx context.Context, q queryer, query string, args, dest []any, do func()) error {
	rows, err := q.QueryContext(ctx, query, args...)
	return columns.Each(rows, err, dest, func() error {
		do()
		return nil
	})
}

// millis bounds what somebody may have edited.
func millis(ms int64) time.Duration {
	const most = int64(1000 * time.Hour / time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}
