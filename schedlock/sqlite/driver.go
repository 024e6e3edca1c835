package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// A connector is a database/sql driver over github.com/ncruces/go-sqlite3 for
// the pools that this package opens. That module has one of its own, but
// whoever imports it registers the name "sqlite3", and an app with
// mattn/go-sqlite3 or GORM, which register it too, would panic at start. This
// one registers nothing. It does what that one does with values and with the
// parameters _txlock and _timefmt.
type connector struct {
	dsn         string
	pragmas     string // of every connection
	txlock      string
	read, write sqlite3.TimeFormat
}

func newConnector(dsn string) (*connector, error) {
	c := &connector{read: sqlite3.TimeFormatAuto, write: sqlite3.TimeFormatDefault}
	c.dsn, c.pragmas = splitPragmas(dsn)
	_, rawQuery, _ := strings.Cut(dsn, "?")
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, err
	}
	c.txlock = query.Get("_txlock")
	if !slices.Contains([]string{"", "deferred", "concurrent", "immediate", "exclusive"},
		c.txlock) {
		return nil, fmt.Errorf("the DSN's parameter _txlock=%s is not known: "+
			"it is deferred, immediate or exclusive", c.txlock)
	}
	switch format := query.Get("_timefmt"); format {
	case "":
	case "sqlite":
		c.write = sqlite3.TimeFormat3
	case "rfc3339":
		c.read = sqlite3.TimeFormatDefault
	default:
		c.read, c.write = sqlite3.TimeFormat(format), sqlite3.TimeFormat(format)
	}
	return c, nil
}

// splitPragmas takes the pragmas out of a DSN: if one of them fails, the driver
// (v0.35.6) never gives the memory of the connection back, which is none of Go's.
// It does if they are executed on a connection that was opened.
func splitPragmas(dsn string) (rest, pragmas string) {
	path, rawQuery, _ := strings.Cut(dsn, "?")
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return dsn, "" // the driver says what is wrong
	}
	for _, p := range query["_pragma"] {
		pragmas += "PRAGMA " + p + ";"
	}
	query.Del("_pragma")
	return path + "?" + query.Encode(), pragmas
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return ncruces{} }

// ncruces is what sql.DB.Driver returns for a pool of this package.
type ncruces struct{}

// Open implements driver.Driver.
func (ncruces) Open(dsn string) (driver.Conn, error) {
	c, err := newConnector(dsn)
	if err != nil {
		return nil, err
	}
	return c.Connect(context.Background())
}

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	db, err := openConn(ctx, c.dsn)
	if err != nil {
		return nil, err
	}
	defer db.SetInterrupt(db.SetInterrupt(ctx))
	readOnly := false
	if err = db.Exec(c.pragmas); err == nil {
		readOnly, err = queryOnly(db)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &conn{Conn: db, connector: c, readOnly: readOnly}, nil
}

func queryOnly(db *sqlite3.Conn) (bool, error) {
	s, _, err := db.Prepare(`PRAGMA query_only`)
	if err != nil {
		return false, err
	}
	defer s.Close()
	return s.Step() && s.ColumnBool(0), s.Err()
}

// rawConn is what a connection of ncruces' own driver is, and one of ours.
type rawConn interface{ Raw() *sqlite3.Conn }

// A conn is one connection.
type conn struct {
	*sqlite3.Conn
	connector *connector
	readOnly  bool   // always
	after     string // what follows the end of the transaction
}

// Raw returns the connection of github.com/ncruces/go-sqlite3.
func (c *conn) Raw() *sqlite3.Conn { return c.Conn }

// Begin implements driver.Conn.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	mode := ""
	switch sql.IsolationLevel(opts.Isolation) {
	case sql.LevelDefault:
		if !opts.ReadOnly {
			mode = c.connector.txlock
		}
	case sql.LevelSerializable:
		mode = "immediate"
	case sql.LevelLinearizable:
		mode = "exclusive"
	default:
		return nil, fmt.Errorf("SQLite has no isolation level %s",
			sql.IsolationLevel(opts.Isolation))
	}
	begin := "BEGIN " + mode
	if c.after = ""; opts.ReadOnly && !c.readOnly {
		begin += "; PRAGMA query_only = on"
		c.after = "PRAGMA query_only = off"
	}
	defer c.SetInterrupt(c.SetInterrupt(ctx))
	if err := c.Conn.Exec(begin); err != nil {
		return nil, err
	}
	return c, nil
}

// Commit implements driver.Tx.
func (c *conn) Commit() error {
	err := c.Conn.Exec("COMMIT; " + c.after)
	if err != nil {
		_ = c.Rollback()
	}
	return err
}

// Rollback implements driver.Tx. Nothing interrupts it. It fails if SQLite, or the caller, has
// ended the transaction already; what follows the end is done all the same.
func (c *conn) Rollback() error {
	defer c.SetInterrupt(c.SetInterrupt(context.Background()))
	return errors.Join(c.Conn.Exec("ROLLBACK"), c.Conn.Exec(c.after))
}

// Prepare implements driver.Conn.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	defer c.SetInterrupt(c.SetInterrupt(ctx))
	s, tail, err := c.Conn.Prepare(query)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, errors.New("the query has no statement")
	}
	if tail != "" {
		more, _, err := c.Conn.Prepare(tail)
		if more != nil || err != nil {
			return nil, errors.Join(
				errors.New("a query with arguments or rows is one statement, "+
					"and this one has more"), more.Close(), s.Close())
		}
	}
	return &stmt{Stmt: s, connector: c.connector, inputs: inputs(s)}, nil
}

// ExecContext implements driver.ExecerContext, for any number of statements
// without arguments.
func (c *conn) ExecContext(ctx context.Context, query string,
	args []driver.NamedValue) (driver.Result, error) {
	if len(args) != 0 {
		return nil, driver.ErrSkip
	}
	defer c.SetInterrupt(c.SetInterrupt(ctx))
	if err := c.Conn.Exec(query); err != nil {
		return nil, err
	}
	return resultOf(c.Conn), nil
}

// A result is what the last statement has done.
type result struct{ id, rows int64 }

func resultOf(c *sqlite3.Conn) driver.Result {
	r := result{rows: c.Changes()}
	if r.rows != 0 {
		r.id = c.LastInsertRowID()
	}
	return r
}

// LastInsertId implements driver.Result.
func (r result) LastInsertId() (int64, error) { return r.id, nil }

// RowsAffected implements driver.Result.
func (r result) RowsAffected() (int64, error) { return r.rows, nil }

// A stmt is one prepared statement.
type stmt struct {
	*sqlite3.Stmt
	connector *connector
	inputs    int
}

// inputs is how many arguments a statement takes; -1: they may have names.
func inputs(s *sqlite3.Stmt) int {
	n := s.BindCount()
	for i := 1; i <= n; i++ {
		if s.BindName(i) != "" {
			return -1
		}
	}
	return n
}

// NumInput implements driver.Stmt.
func (s *stmt) NumInput() int { return s.inputs }

// Exec implements driver.Stmt; database/sql calls ExecContext.
func (s *stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }

// Query implements driver.Stmt; database/sql calls QueryContext.
func (s *stmt) Query([]driver.Value) (driver.Rows, error) { return nil, errors.ErrUnsupported }

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.bind(args); err != nil {
		return nil, err
	}
	c := s.Conn()
	defer c.SetInterrupt(c.SetInterrupt(ctx))
	if err := errors.Join(s.Stmt.Exec(), s.ClearBindings()); err != nil {
		return nil, err
	}
	return resultOf(c), nil
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.bind(args); err != nil {
		return nil, err
	}
	r := &rows{stmt: s, ctx: ctx, values: make([]any, s.ColumnCount())}
	for i := range r.values {
		r.names = append(r.names, s.ColumnName(i))
		r.types = append(r.types, strings.ToUpper(s.ColumnDeclType(i)))
	}
	return r, nil
}

func (s *stmt) bind(args []driver.NamedValue) (err error) {
	for _, arg := range args {
		ids := []int{arg.Ordinal}
		if arg.Name != "" {
			ids = ids[:0]
			for _, prefix := range []string{":", "@", "$"} {
				if id := s.BindIndex(prefix + arg.Name); id != 0 {
					ids = append(ids, id)
				}
			}
		}
		for _, id := range ids {
			switch a := arg.Value.(type) {
			case nil:
				err = s.BindNull(id)
			case bool:
				err = s.BindBool(id, a)
			case int64:
				err = s.BindInt64(id, a)
			case float64:
				err = s.BindFloat(id, a)
			case string:
				err = s.BindText(id, a)
			case []byte:
				err = s.BindBlob(id, a)
			case time.Time:
				err = s.BindTime(id, a, s.connector.write)
			default:
				err = fmt.Errorf("argument %d is a %T, which SQLite cannot store", id, a)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// rows are what a statement answers.
type rows struct {
	stmt         *stmt
	ctx          context.Context
	names, types []string
	values       []any
}

// Columns implements driver.Rows.
func (r *rows) Columns() []string { return r.names }

// ColumnTypeDatabaseTypeName implements driver.RowsColumnTypeDatabaseTypeName.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string {
	name, _, _ := strings.Cut(r.types[i], "(")
	return strings.TrimSpace(name)
}

// Close implements driver.Rows.
func (r *rows) Close() error { return errors.Join(r.stmt.Reset(), r.stmt.ClearBindings()) }

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error {
	c := r.stmt.Conn()
	defer c.SetInterrupt(c.SetInterrupt(r.ctx))
	if !r.stmt.Step() {
		if err := r.stmt.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	clear(r.values) // else what it handed out before is overwritten
	if err := r.stmt.Columns(r.values...); err != nil {
		return err
	}
	for i, v := range r.values {
		dest[i] = r.value(r.types[i], v)
	}
	return nil
}

// value makes times and booleans of what is declared to be one, and times of
// text that is one as this driver writes it, unless it is declared to be text.
func (r *rows) value(declared string, v any) driver.Value {
	if blob, ok := v.([]byte); ok && blob == nil {
		return []byte{} // Columns makes no difference, but it is not NULL
	}
	format := r.stmt.connector
	switch declared {
	case "TEXT":
		return v
	case "DATE", "TIME", "DATETIME", "TIMESTAMP":
		if t, err := format.read.Decode(v); v != nil && err == nil {
			return t
		}
	case "BOOLEAN":
		if v == int64(0) || v == int64(1) {
			return v == int64(1)
		}
	}
	text, ok := v.(string)
	if !ok || len(text) < len("2006-01-02T15:04:05Z") || text[10] != 'T' {
		return v
	}
	if format.write != sqlite3.TimeFormatDefault && format.write != time.RFC3339 {
		return v
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil &&
		t.Format(time.RFC3339Nano) == text {
		return t
	}
	return v
}
