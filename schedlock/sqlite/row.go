package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ncruces/go-sqlite3"

	"example.com/schedlock/internal/columns"
)

// row reads the one row of a query without parameters into *sql.NullInt64s,
// *sql.NullStrings and *columns.Times; the turn is held.
//
// database/sql asks the driver for the name and the declared type of every
// column, for every query, and starts a goroutine: with a wide row that takes
// longer than to read it. So where the driver is the one that this package is
// made for, its own statement is read.
func (s *Store) row(ctx context.Context, query string, dest ...any) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	known := false
	err := s.conn.Raw(func(conn any) error {
		c, ok := conn.(rawConn)
		if !ok {
			return nil
		}
		known = true
		return s.readRow(ctx, c.Raw(), query, dest)
	})
	if known || err != nil {
		return err
	}
	stmt, err := s.prepare(ctx, query)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(ctx).Scan(dest...)
}

// prepareRow is prepare for the driver's own connection.
func (s *Store) prepareRow(conn *sqlite3.Conn, query string) (stmt *sqlite3.Stmt, err error) {
	if stmt = s.rows[query]; stmt == nil {
		if stmt, _, err = conn.Prepare(query); err == nil {
			s.rows[query] = stmt
		}
	}
	return stmt, err
}

func (s *Store) readRow(ctx context.Context, conn *sqlite3.Conn, query string,
	dest []any) error {
	defer conn.SetInterrupt(conn.SetInterrupt(ctx))
	stmt, err := s.prepareRow(conn, query)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Reset() }()
	if !stmt.Step() {
		if err := stmt.Err(); err != nil {
			return err
		}
		return sql.ErrNoRows
	}
	values := make([]any, len(dest))
	if err := stmt.ColumnsRaw(values...); err != nil {
		return err
	}
	for i, value := range values {
		switch d := dest[i].(type) {
		case *sql.NullInt64:
			d.Int64, d.Valid = value.(int64)
		case *sql.NullString:
			var text []byte // valid until the next step
			text, d.Valid = value.([]byte)
			d.String = string(text)
		case *columns.Time:
			if err := d.Scan(value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("column %d is read into a %T", i+1, d)
		}
	}
	return nil
}
