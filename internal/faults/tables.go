//go:build linux

package faults

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/schedlock/schedlock/driver"
)

// A dialect is what differs between the databases in the SQL of the harness.
type dialect struct {
	row        string // reads a Row
	layout     string // of a time
	begin, end string // of a transaction for which everybody waits who decides about runs
	saw        bool   // fenced writes say what they have found
}

const rowOnServer = `SELECT term, heartbeat_at, false, grace_ms IS NOT NULL FROM scheduler_lock`

var (
	sqliteDialect = dialect{
		row:    `SELECT term, heartbeat_at, file_id IS NOT NULL, false FROM scheduler_lock`,
		layout: "2006-01-02T15:04:05.000000Z", begin: `BEGIN IMMEDIATE`, end: `COMMIT`}
	postgresDialect = dialect{row: rowOnServer, layout: time.RFC3339,
		begin: `BEGIN; LOCK TABLE scheduler_jobs`, end: `COMMIT`}
	mysqlDialect = dialect{row: rowOnServer, layout: time.DateTime,
		begin: `LOCK TABLES scheduler_jobs WRITE, scheduler_runs READ`, end: `UNLOCK TABLES`,
		saw: true}
)

// tables are the part of a Database for which its dialect is enough.
type tables struct {
	dialect

	// task does something on a connection, which nobody has afterwards if that fails.
	task func(ctx context.Context, do func(context.Context, *sql.Conn) error) error

	mu   sync.Mutex
	anew []Anew // when the harness has deleted all cursors, see History
}

func (t *tables) exec(ctx context.Context, queries ...string) error {
	return t.task(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return execEach(ctx, conn, queries...)
	})
}

func execEach(ctx context.Context, conn *sql.Conn, queries ...string) error {
	for _, query := range queries {
		if _, err := conn.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("%.60s: %w", query, err)
		}
	}
	return nil
}

func execOn(ctx context.Context, db *sql.DB, queries ...string) error {
	return withConn(ctx, db, func(ctx context.Context, conn *sql.Conn) error {
		return execEach(ctx, conn, queries...)
	})
}

// withConn is a task on a connection of db.
func withConn(ctx context.Context, db *sql.DB, do func(context.Context, *sql.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	if err = do(ctx, conn); err != nil {
		discard(conn) // it may have a transaction, or settings, that nobody else shall have
		return err
	}
	return conn.Close()
}

// discard closes a connection instead of letting it be used again.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	_ = conn.Close()
}

// onceMore does it again where another transaction was in the way.
func onceMore(ctx context.Context, do func() error) error {
	for {
		err := do()
		n := myNumber(err)
		if n != 1213 && n != 1205 && pgCode(err) != "40P01" || ctx.Err() != nil {
			return err
		}
	}
}

func myNumber(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

func pgCode(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// block keeps a transaction open on a connection of its own.
func block(ctx context.Context, db *sql.DB, queries ...string) (unblock func(), err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	// The program locks its tables in another order: the server may end either of the two.
	if err := onceMore(ctx, func() error { return execEach(ctx, conn, queries...) }); err != nil {
		discard(conn)
		return nil, err
	}
	return func() { discard(conn) }, nil
}

func (t *tables) Row(ctx context.Context) (row Row, ok bool, err error) {
	err = t.task(ctx, func(ctx context.Context, conn *sql.Conn) error {
		err := conn.QueryRowContext(ctx, t.row).Scan(&row.Term, &row.Beat, &row.Proof,
			&row.Session)
		if ok = err == nil; errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return row, ok, err
}

func (t *tables) Edit(ctx context.Context, e Edit) error {
	if e == editJobs {
		return t.task(ctx, t.forgetJobs)
	}
	at := func(year int) string {
		return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Format(t.layout)
	}
	return t.exec(ctx, strings.NewReplacer("$token", driver.NewToken().String(),
		"$past", at(2001), "$future", at(2101)).Replace(string(e)))
}

// forgetJobs deletes the cursors.
func (t *tables) forgetJobs(ctx context.Context, conn *sql.Conn) error {
	if err := execEach(ctx, conn, t.begin); err != nil {
		return err
	}
	var anew Anew
	if err := conn.QueryRowContext(ctx,
		`SELECT coalesce(max(id), 0) FROM scheduler_runs`).Scan(&anew.Newest); err != nil {
		return err
	}
	if err := readJobs(ctx, conn, &anew.Jobs); err != nil {
		return err
	}
	if err := execEach(ctx, conn, string(editJobs), t.end); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.anew = append(t.anew, anew)
	return nil
}

func (t *tables) Paused(ctx context.Context) (paused bool, err error) {
	err = t.task(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, `SELECT count(*) > 0 FROM scheduler_pauses
			WHERE resumed_at IS NULL`).Scan(&paused)
	})
	return paused, err
}

const (
	sqlReadTerms  = `SELECT term FROM scheduler_terms ORDER BY term`
	sqlReadLedger = `
SELECT id, job, scheduled_at, until, coalesce(count, 0), attempt, term, status <> 'skipped',
       started_at, status = 'abandoned', retry_at IS NOT NULL,
       coalesce(error, ''), coalesce(requested_by, ''), coalesce(request_reason, '')
FROM scheduler_runs ORDER BY id`
	sqlReadReplaced = `
SELECT r.id, r.job, r.scheduled_at, a.attempt, a.term, a.started_at
FROM scheduler_attempts a JOIN scheduler_runs r ON r.id = a.run_id ORDER BY r.id, a.attempt`
	sqlReadJobs     = `SELECT job, spec, cursor_at FROM scheduler_jobs ORDER BY job`
	sqlReadRequests = `SELECT requested_by, CAST(reason AS integer), job, requested_at
		FROM scheduler_requests ORDER BY requested_at`
	sqlReadTasks = `SELECT id, state, attempts, retries_left FROM queue_tasks ORDER BY seq`

	sqlReadWrites = `SELECT name, term FROM faults_writes ORDER BY id`
	sqlReadSaw    = `SELECT name, term, saw FROM faults_writes ORDER BY id`
)

func (t *tables) Read(ctx context.Context, h *History) error {
	t.mu.Lock()
	h.Anew = slices.Clone(t.anew)
	t.mu.Unlock()
	return t.task(ctx, func(ctx context.Context, conn *sql.Conn) error {
		err := errors.Join(
			readRows(ctx, conn, sqlReadTerms, &h.Terms, func(term *int64) []any {
				return []any{term}
			}),
			readRows(ctx, conn, sqlReadWrites, &h.Writes, func(w *Write) []any {
				return []any{&w.Name, &w.Term}
			}),
			readRows(ctx, conn, sqlReadLedger, &h.Ledger, func(r *LedgerRow) []any {
				return []any{&r.ID, &r.Job, (*micro)(&r.Tick), (*micro)(&r.Until), &r.Count,
					&r.Attempt, &r.Term, &r.Started, (*micro)(&r.StartedAt), &r.Cut, &r.Owed,
					&r.Reason, &r.AskedBy, &r.AskedFor}
			}),
			readRows(ctx, conn, sqlReadReplaced, &h.Replaced, func(r *LedgerRow) []any {
				return []any{&r.ID, &r.Job, (*micro)(&r.Tick), &r.Attempt, &r.Term,
					(*micro)(&r.StartedAt)}
			}),
			readJobs(ctx, conn, &h.Jobs),
			readRows(ctx, conn, sqlReadTasks, &h.Tasks, func(r *TaskRow) []any {
				return []any{&r.Task, &r.State, &r.Attempts, &r.RetriesLeft}
			}),
			readRows(ctx, conn, sqlReadRequests, &h.Pending, func(a *Ask) []any {
				return []any{&a.Process, &a.Number, &a.Job, (*micro)(&a.Tick)}
			}))
		if err != nil || !t.saw {
			return err
		}
		return readRows(ctx, conn, sqlReadSaw, &h.Saw, func(w *Saw) []any {
			return []any{&w.Name, &w.Term, &w.Earlier}
		})
	})
}

// micro is a time in Unix microseconds; NULL is 0.
type micro int64

// Scan implements sql.Scanner.
func (m *micro) Scan(value any) (err error) {
	var at time.Time
	switch v := value.(type) {
	case nil:
		return nil
	case time.Time: // of PostgreSQL
		at = v
	case string: // of SQLite
		at, err = time.Parse(time.RFC3339Nano, v)
	case []byte: // of MariaDB
		at, err = time.Parse(time.DateTime, string(v))
	default:
		return fmt.Errorf("%T is no time", value)
	}
	*m = micro(at.UnixMicro())
	return err
}

// readRows reads the rows of a query into a list: each into the places that dest names.
func readRows[T any](ctx context.Context, conn *sql.Conn, query string, list *[]T,
	dest func(*T) []any) error {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	*list = []T{}
	for rows.Next() {
		var row T
		if err := rows.Scan(dest(&row)...); err != nil {
			return err
		}
		*list = append(*list, row)
	}
	return rows.Err()
}

func readJobs(ctx context.Context, conn *sql.Conn, list *[]JobRow) error {
	return readRows(ctx, conn, sqlReadJobs, list, func(j *JobRow) []any {
		return []any{&j.Name, &j.Spec, (*micro)(&j.Cursor)}
	})
}
