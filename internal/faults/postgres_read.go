//go:build linux

package faults

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Read implements Database.
func (s *postgresServer) Read(ctx context.Context, h *History) error {
	h.Anew = s.list()
	return s.use(ctx, func(conn *pgx.Conn) (err error) {
		if h.Terms, err = collectTerms(ctx, conn, sqlReadTerms); err != nil {
			return err
		}
		if h.Writes, err = collectTerms(ctx, conn, sqlReadWrites); err != nil {
			return err
		}
		h.Ledger, err = collect(ctx, conn, sqlReadLedger,
			func(row pgx.CollectableRow) (r LedgerRow, err error) {
				var tick, until, started pgtype.Timestamptz
				err = row.Scan(&r.ID, &r.Job, &tick, &until, &r.Count, &r.Attempt, &r.Term,
					&r.Started,
					&started, &r.Cut,
					&r.Owed, &r.Reason, &r.AskedBy, &r.AskedFor)
				r.Tick, r.Until, r.StartedAt = micros(tick), micros(until), micros(started)
				return r, err
			})
		if err != nil {
			return err
		}
		if h.Jobs, err = readJobRows(ctx, conn); err != nil {
			return err
		}
		h.Pending, err = collect(ctx, conn, sqlReadRequests,
			func(row pgx.CollectableRow) (a Ask, err error) {
				var at pgtype.Timestamptz
				err = row.Scan(&a.Process, &a.Number, &a.Job, &at)
				a.Tick = micros(at)
				return a, err
			})
		return err
	})
}

// ReadLocks implements Database.
func (s *postgresServer) ReadLocks(ctx context.Context, h *History) error {
	return s.use(ctx, func(conn *pgx.Conn) (err error) {
		if h.LockWrites, err = collect(ctx, conn, sqlReadLockWrites,
			pgx.RowToStructByPos[LockWrite]); err != nil {
			return err
		}
		h.Tasks, err = collect(ctx, conn, sqlReadTasks, pgx.RowToStructByPos[TaskRow])
		return err
	})
}

// micros is a time in Unix microseconds; NULL is 0.
func micros(t pgtype.Timestamptz) int64 {
	if !t.Valid {
		return 0
	}
	return t.Time.UnixMicro()
}

func collect[T any](ctx context.Context, conn *pgx.Conn, query string,
	read pgx.RowToFunc[T]) ([]T, error) {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows([]T{}, rows, read)
}

func readJobRows(ctx context.Context, conn *pgx.Conn) ([]JobRow, error) {
	return collect(ctx, conn, sqlReadJobs, func(row pgx.CollectableRow) (j JobRow, err error) {
		var cursor pgtype.Timestamptz
		err = row.Scan(&j.Name, &j.Spec, &cursor)
		j.Cursor = micros(cursor)
		return j, err
	})
}

func collectTerms(ctx context.Context, conn *pgx.Conn, query string) ([]int64, error) {
	return collect(ctx, conn, query, pgx.RowTo[int64])
}
