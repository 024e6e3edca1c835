// Package ledgersql has the steps of the run ledger, for the stores that talk with their database
// statement by statement: those of SQLite and MariaDB. PostgreSQL's does each operation in one
// statement, and uses none of this.
//
// A statement that all databases take stands beside the step that runs it. A store gives the
// others, and what else its database has of its own, as a [Dialect].
package ledgersql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

// A Ledger implements the parts of ledger.Store that are the same steps on each database.
type Ledger[T Conn] struct{ d *Dialect[T] }

// New returns the ledger of a store.
func New[T Conn](d Dialect[T]) Ledger[T] { return Ledger[T]{&d} }

// A Dialect is what a store and its database have of their own.
type Dialect[T Conn] struct {
	Attempt Transact[T] // for what starts or ends an attempt: many may come at once
	Leader  Transact[T] // for what else a leader writes
	Order   Transact[T] // for what people order
	Patient Transact[T] // for orders that may have to wait for others

	ReadForLeader Read // on connections that nothing else can use up
	Read          Read

	// Guard makes a transaction fail unless ref holds the lock.
	Guard func(ctx context.Context, t T, ref driver.Ref) error

	// Once ShutGate has returned, no transaction that has called PassGate is under way, and none
	// calls it before the end of t. Both are nil where there is one transaction at a time.
	PassGate, ShutGate func(ctx context.Context, t T) error

	Duplicate func(error) bool    // an INSERT has found a row with its key; nil: that is no error
	Explain   func(error) error   // what is returned; nil stays nil
	Text      func(string) string // as the tables can keep it
	Layout    string              // of times
	Clock     func() time.Time    // by which rows are stamped; nil: by the database's
	SQL       Statements
}

// A Transact runs f in a transaction, and again if the database has undone it. f returns at once
// what a statement of it returns as an error.
type Transact[T Conn] func(ctx context.Context, f func(context.Context, T) error) error

// A Read calls row for each row of a query, after it was scanned into dest.
type Read func(ctx context.Context, dest []any, row func() error, query string, args ...any) error

// Statements are those that differ, with their parameters. A stamp is the time by the Clock, and
// no parameter where there is none.
type Statements struct {
	Now string // where there is no Clock

	InsertJob  string // stamp, job, spec, cursor
	MoveCursor string // stamp, spec, cursor, job, cursor before as text
	InsertSkip string // job, first tick, term, pid, host name, reason, last tick, number of ticks
	InsertRun  string // job, tick, start, term, pid, host name

	ResetCursor string // cursor, cursor, job. Returns the specification, or Spec does
	Spec        string // job

	KeepAttempt string // run, attempt
	Retry       string // stamp, term, pid, host name, run, attempt. Returns it, or Retried does
	Retried     string // run
	Finish      string // stamp, status, error, time of the next attempt, run, term, attempt
	CountDone   string // microseconds, microseconds, run
	CountFailed string // error, run
	Left        string // term

	InsertRequest string // job, time, by, reason, job, time
	InsertAnswer  string // all of a run but its id
	PauseAgain    string // time, by, reason, job. Empty: InsertPause does it
	InsertPause   string // job, time, by, reason

	OldAudit  string // how many stay. Empty: TrimAudit takes that
	TrimAudit string // what OldAudit returns
}

// A Conn is a transaction of a store.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// within runs do in a transaction, and returns what it returns: nothing unless that was committed.
func within[T Conn, V any](ctx context.Context, l Ledger[T], how Transact[T],
	do func(context.Context, T) (V, error)) (V, error) {
	var none, v V
	err := how(ctx, func(ctx context.Context, t T) (err error) {
		v, err = do(ctx, t)
		return err
	})
	if err != nil {
		return none, l.d.Explain(err)
	}
	return v, nil
}

// all returns the value of each row. With an error it returns none.
func all[T Conn, V any](ctx context.Context, l Ledger[T], read Read, dest []any, value func() V,
	query string, args ...any) ([]V, error) {
	list := []V{}
	if err := read(ctx, dest, func() error {
		list = append(list, value())
		return nil
	}, query, l.args(args)...); err != nil {
		return nil, l.d.Explain(err)
	}
	return list, nil
}

// exec returns how many rows a statement has found.
func (l Ledger[T]) exec(ctx context.Context, t T, query string, args ...any) (int64, error) {
	result, err := t.ExecContext(ctx, query, l.args(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// insert returns the id of a new row, and false if there is none: another has its key.
func (l Ledger[T]) insert(ctx context.Context, t T, query string,
	args ...any) (id int64, isNew bool, err error) {
	result, err := t.ExecContext(ctx, query, l.args(args)...)
	if err != nil {
		if l.d.Duplicate != nil && l.d.Duplicate(err) {
			err = nil
		}
		return 0, false, err
	}
	n, err := result.RowsAffected()
	if err != nil || n == 0 {
		return 0, false, err
	}
	id, err = result.LastInsertId()
	return id, true, err
}

// row reads the row of a query, and tells whether there is one.
func (l Ledger[T]) row(ctx context.Context, t T, dest []any, query string,
	args ...any) (found bool, err error) {
	rows, err := t.QueryContext(ctx, query, l.args(args)...)
	err = columns.Each(rows, err, dest, func() error {
		found = true
		return nil
	})
	return found, err
}

// change changes a row and reads it, by another statement if there is one. It tells whether there
// was such a row.
func (l Ledger[T]) change(ctx context.Context, t T, dest []any, change string, args []any,
	read string, key any) (found bool, err error) {
	if read == "" {
		return l.row(ctx, t, dest, change, args...)
	}
	n, err := l.exec(ctx, t, change, args...)
	if err != nil || n == 0 {
		return false, err
	}
	return l.row(ctx, t, dest, read, key)
}

// now is the time by the clock that stamps the rows.
func (l Ledger[T]) now(ctx context.Context, t T) (time.Time, error) {
	if l.d.Clock != nil {
		return columns.Kept(l.d.Clock()), nil
	}
	var now columns.Time
	_, err := l.row(ctx, t, []any{&now}, l.d.SQL.Now)
	return now.Time, err
}

// stamped are the arguments of a statement with a stamp.
func (l Ledger[T]) stamped(args ...any) []any {
	if l.d.Clock == nil {
		return args
	}
	return slices.Insert(args, 0, any(l.d.Clock()))
}

// args has times as the tables keep them.
func (l Ledger[T]) args(args []any) []any {
	for i, arg := range args {
		if at, ok := arg.(time.Time); ok {
			args[i] = l.format(at)
		}
	}
	return args
}

func (l Ledger[T]) format(t time.Time) string { return t.UTC().Format(l.d.Layout) }

// optional is NULL for the zero time.
func optional(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
