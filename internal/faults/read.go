//go:build linux

package faults

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// What SQLite and MariaDB are read with; PostgreSQL has the same statements, and a
// driver of its own.

const sqlNewestRun = `
SELECT coalesce(max(id), 0) FROM scheduler_runs`

const sqlForgetJobs = `
DELETE FROM scheduler_jobs`

const sqlPaused = `
SELECT count(*) > 0 FROM scheduler_pauses WHERE resumed_at IS NULL`

const (
	sqlReadTerms  = `SELECT term FROM scheduler_terms ORDER BY term`
	sqlReadWrites = `SELECT term FROM faults_writes ORDER BY id`

	sqlReadLedger = `
SELECT id, job, scheduled_at, until, coalesce(count, 0), attempt, term, status <> 'skipped',
       started_at, status = 'abandoned', retry_at IS NOT NULL,
       coalesce(error, ''), coalesce(requested_by, ''), coalesce(request_reason, '')
FROM scheduler_runs ORDER BY id`

	sqlReadJobs     = `SELECT job, spec, cursor_at FROM scheduler_jobs ORDER BY job`
	sqlReadRequests = `SELECT requested_by, CAST(reason AS integer), job, requested_at
		FROM scheduler_requests ORDER BY requested_at`
)

func readHistory(ctx context.Context, conn *sql.Conn, h *History) (err error) {
	if h.Terms, err = readInts(ctx, conn, sqlReadTerms); err != nil {
		return err
	}
	if h.Writes, err = readInts(ctx, conn, sqlReadWrites); err != nil {
		return err
	}
	h.Ledger, err = readRows(ctx, conn, sqlReadLedger,
		func(scan func(...any) error) (r LedgerRow, err error) {
			var tick, until, started micro
			err = scan(&r.ID, &r.Job, &tick, &until, &r.Count, &r.Attempt, &r.Term, &r.Started,
				&started, &r.Cut, &r.Owed, &r.Reason, &r.AskedBy, &r.AskedFor)
			r.Tick, r.Until, r.StartedAt = int64(tick), int64(until), int64(started)
			return r, err
		})
	if err != nil {
		return err
	}
	if h.Jobs, err = readJobs(ctx, conn); err != nil {
		return err
	}
	h.Pending, err = readRows(ctx, conn, sqlReadRequests,
		func(scan func(...any) error) (a Ask, err error) {
			err = scan(&a.Process, &a.Number, &a.Job, (*micro)(&a.Tick))
			return a, err
		})
	return err
}

func readLocks(ctx context.Context, conn *sql.Conn, h *History) (err error) {
	h.LockWrites, err = readRows(ctx, conn, sqlReadLockWrites,
		func(scan func(...any) error) (w LockWrite, err error) {
			err = scan(&w.Name, &w.Term)
			return w, err
		})
	if err != nil {
		return err
	}
	h.Tasks, err = readRows(ctx, conn, sqlReadTasks,
		func(scan func(...any) error) (r TaskRow, err error) {
			err = scan(&r.Task, &r.State, &r.Attempts, &r.RetriesLeft)
			return r, err
		})
	return err
}

// micro is a time in Unix microseconds; NULL is 0.
type micro int64

// Scan implements sql.Scanner.
func (m *micro) Scan(value any) error {
	if value == nil {
		return nil
	}
	text, layout := "", time.RFC3339Nano
	switch v := value.(type) {
	case string:
		text = v
	case []byte: // of MariaDB
		text, layout = string(v), time.DateTime
	default:
		return fmt.Errorf("%T is no time", value)
	}
	at, err := time.Parse(layout, text)
	*m = micro(at.UnixMicro())
	return err
}

func readRows[T any](ctx context.Context, conn *sql.Conn, query string,
	read func(scan func(...any) error) (T, error)) ([]T, error) {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := []T{}
	for rows.Next() {
		row, err := read(rows.Scan)
		if err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, rows.Err()
}

func readJobs(ctx context.Context, conn *sql.Conn) ([]JobRow, error) {
	return readRows(ctx, conn, sqlReadJobs, func(scan func(...any) error) (j JobRow, err error) {
		err = scan(&j.Name, &j.Spec, (*micro)(&j.Cursor))
		return j, err
	})
}

func readInts(ctx context.Context, conn *sql.Conn, query string) ([]int64, error) {
	return readRows(ctx, conn, query, func(scan func(...any) error) (n int64, err error) {
		err = scan(&n)
		return n, err
	})
}
