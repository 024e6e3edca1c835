package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"math/rand/v2"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/columns"
)

const (
	// statementTimeout bounds each statement and each transaction, the wait for a
	// connection included, whatever context the caller has.
	statementTimeout = 10 * time.Second

	// answerTimeout bounds the wait of a connection that nobody waits for any more, unless the
	// URL has a readTimeout: the driver's COMMIT does not end with a context. The server ends
	// all else after max_statement_time, see settings.
	answerTimeout = statementTimeout + 2*time.Second

	poolSize = 4
)

// A pool has a few connections.
type pool struct {
	db     *sql.DB
	size   int
	places chan struct{} // how many transactions there may be at once; nil: as many as connections
}

func newPool(connector sqldriver.Connector, size int) pool {
	p := pool{db: sql.OpenDB(connector), size: size}
	p.db.SetMaxOpenConns(size)
	p.db.SetMaxIdleConns(size)
	if size > 1 {
		p.db.SetConnMaxIdleTime(time.Minute)
	}
	return p
}

// reconnect ends the connections that are idle.
func (p pool) reconnect() {
	p.db.SetMaxIdleConns(0)
	p.db.SetMaxIdleConns(p.size)
}

// row reads the first row of a query. Without one it returns sql.ErrNoRows.
func (p pool) row(ctx context.Context, query string, args []any, dest ...any) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return p.db.QueryRowContext(ctx, query, args...).Scan(dest...)
}

// each calls row for each row of a query, after it was scanned into dest.
func (p pool) each(ctx context.Context, dest []any, row func() error, query string,
	args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := p.db.QueryContext(ctx, query, args...)
	return columns.Each(rows, err, dest, row)
}

// all returns the value of each row, as each, and explains the error. With an error it returns
// none.
func all[T any](ctx context.Context, s *Store, p pool, dest []any, value func() T, query string,
	args ...any) ([]T, error) {
	list := []T{}
	if err := p.each(ctx, dest, func() error {
		list = append(list, value())
		return nil
	}, query, args...); err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// exec returns how many rows a statement has found.
func (p pool) exec(ctx context.Context, query string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return foundRows(p.db.ExecContext(ctx, query, args...))
}

func foundRows(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// write runs f in a transaction, and again while another transaction is in the way of
// a kind that has undone all of it. f must return at once what a statement of it
// returns as an error: after a deadlock there is no transaction any more, and the next
// statement would be one of its own.
func (p pool) write(ctx context.Context, f func(context.Context, tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := p.once(ctx, f)
		if !undone(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

func (p pool) once(ctx context.Context, f func(context.Context, tx) error) (err error) {
	if p.places != nil {
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	t, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = within(ctx, t.Rollback)
		}
	}()
	if err := f(ctx, tx{t}); err != nil {
		return err
	}
	return within(ctx, t.Commit)
}

// within waits until end returns, or until ctx ends.
func within(ctx context.Context, end func() error) error {
	select {
	case err := <-bounded.Go(end):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A tx is a transaction at READ COMMITTED.
type tx struct{ *sql.Tx }

func (t tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return foundRows(t.ExecContext(ctx, query, args...))
}

// insert returns the id of a new row, and false if there is one with the same key.
func (t tx) insert(ctx context.Context, query string, args ...any) (id int64, isNew bool,
	err error) {
	result, err := t.ExecContext(ctx, query, args...)
	if number(err) == errDuplicate {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	id, err = result.LastInsertId()
	return id, true, err
}

func (t tx) row(ctx context.Context, query string, args []any, dest ...any) error {
	return t.QueryRowContext(ctx, query, args...).Scan(dest...)
}

const sqlNow = `
SELECT UTC_TIMESTAMP(6)`

// now is the database's time.
func (t tx) now(ctx context.Context) (time.Time, error) {
	var now columns.Time
	err := t.row(ctx, sqlNow, nil, &now)
	return now.Time, err
}
