package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/schedlock/internal/names"
)

// Each statement of ours is a transaction of its own and written for READ
// COMMITTED, where it takes its snapshot after its locks on the tables: see
// sqlPauseShut. The default of a role, a database or a server may be stricter.
// A session that is ours gets a default of its own. Behind a pooler there is
// none, and the server process is another's next: there each statement is sent
// together with sqlReadCommitted and sqlLentSettings, in one round trip.

// sqlReadCommitted sets the isolation of the transaction that it is in, and of
// no other. What is sent after it, before the server is asked for an answer, is
// the same transaction. (SET TRANSACTION would do the same, with a warning.)
const sqlReadCommitted = `SET transaction_isolation = 'read committed'`

// What else each statement of ours needs, in a session of our own and where there
// is none: it waits for a lock of somebody else for a second at most, unless it
// says more or less itself, so that no connection and no row is kept for long by
// a wait; the server refuses what a policy concerns, instead of hiding rows; and it
// compiles no plan, which takes seconds where settings of the planner's make one look dear.
var (
	sqlLentSettings = sqlLent("$1")

	// sqlOurSettings finds nothing if the session is not ours. With $3 the server plans each
	// statement once.
	sqlOurSettings = `
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('lock_timeout', '1s', false),
       set_config('row_security', 'off', false), set_config('DateStyle', 'ISO', false),
       set_config('jit', 'off', false), ` + sqlNotice("false") + `, ` + sqlPath("$2", "false") + `,
       CASE WHEN $3::boolean THEN set_config('plan_cache_mode', 'force_generic_plan', false) END
WHERE pg_backend_pid() = $1::bigint`
)

// sqlLent are the settings for the transaction that it is in, with a search_path.
func sqlLent(path string) string {
	return `
SELECT set_config('lock_timeout', '1s', true),
       set_config('row_security', 'off', true), set_config('DateStyle', 'ISO', true),
       set_config('jit', 'off', true), ` + sqlPath(path, "true")
}

// sqlPath lets unqualified names mean the tables of a schema of ours: see
// WithSchema. An empty path leaves the search_path as it is. A statement in a
// transaction of the app's qualifies its tables instead: see table.
func sqlPath(path, local string) string {
	return `CASE WHEN ` + path + `::text <> '' THEN set_config('search_path', ` + path + `, ` +
		local + `) END`
}

// path is the search_path that our statements need, "" for the session's own.
func (s *Store) path() string {
	if s.schema == "" {
		return ""
	}
	return names.QuoteSchema(s.schema)
}

// table is how a statement in a transaction of the app's names a table of ours:
// the search_path there is the app's.
func (s *Store) table(name string) string {
	if s.schema == "" {
		return name
	}
	return names.QuoteSchema(s.schema) + "." + name
}

// txOptions begins a transaction of ours, with the settings where no session has them.
func (s *Store) txOptions(level pgx.TxIsoLevel) pgx.TxOptions {
	if !s.lent.Load() {
		return pgx.TxOptions{IsoLevel: level}
	}
	return pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL " + string(level) + ";" +
		sqlLent("'"+s.path()+"'")} // a name has no quote in it
}

// sqlNotice lets the server notice within a second that a client has gone, also
// while it executes a statement: else the process of a leader that was killed keeps
// the lock row locked for as long as it waits for somebody's transaction. Servers
// know the setting from PostgreSQL 14 on, and accept it where the system can tell.
func sqlNotice(local string) string {
	return `CASE WHEN version() ~ 'linux'
                  AND current_setting('client_connection_check_interval', true) = '0'
                 THEN set_config('client_connection_check_interval', '1s', ` + local + `) END`
}

// isolate gives a session that is ours what our statements need.
func (s *Store) isolate(ctx context.Context, conn *pgx.Conn, planOnce bool) error {
	var level string
	err := committed{conn, true, s.path()}.QueryRow(ctx, sqlOurSettings, int64(conn.PgConn().PID()),
		s.path(), planOnce).Scan(&level, nil, nil, nil, nil, nil, nil, nil)
	if errors.Is(err, pgx.ErrNoRows) {
		s.lent.Store(true)
		return nil
	}
	return err
}

// on sends statements on the lock's connection.
func (s *Store) on(conn *pgx.Conn) committed { return committed{conn, s.lent.Load(), s.path()} }

// committed sends statements to a connection or a pool, whose own mode is
// pgx.QueryExecModeExec. They run at READ COMMITTED: if set, because each is
// sent with sqlReadCommitted, else because that is the default of the session.
type committed struct {
	conn interface {
		Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
		QueryRow(ctx context.Context, query string, args ...any) pgx.Row
		Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	}
	set  bool
	path string // of the schema that is ours: see sqlPath
}

func (c committed) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if !c.set {
		return c.conn.QueryRow(ctx, query, args...)
	}
	rows, err := c.Query(ctx, query, args...)
	return batchRow{rows, err}
}

func (c committed) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if !c.set {
		return c.conn.Query(ctx, query, args...)
	}
	results, err := c.send(ctx, query, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return nil, err
	}
	return &batchRows{Rows: rows, results: results}, nil
}

func (c committed) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if !c.set {
		return c.conn.Exec(ctx, query, args...)
	}
	results, err := c.send(ctx, query, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	return tag, errors.Join(err, results.Close())
}

// send returns the results of query, after those of the settings.
func (c committed) send(ctx context.Context, query string, args []any) (pgx.BatchResults, error) {
	if len(args) > 0 {
		if _, ok := args[0].(pgx.QueryExecMode); ok { // a batch has the connection's
			args = args[1:]
		}
	}
	var b pgx.Batch
	b.Queue(sqlReadCommitted)
	b.Queue(sqlLentSettings, c.path)
	b.Queue(query, args...)
	results := c.conn.SendBatch(ctx, &b)
	for range b.Len() - 1 {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			return nil, err
		}
	}
	return results, nil
}

// batchRows closes the results with the rows: only then the transaction has
// been committed.
type batchRows struct {
	pgx.Rows
	results pgx.BatchResults
	closed  bool
	err     error // of the commit
}

func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *batchRows) Close() {
	r.Rows.Close()
	if !r.closed {
		r.closed = true
		r.err = r.results.Close()
	}
}

func (r *batchRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// batchRow is the first of some rows.
type batchRow struct {
	rows pgx.Rows
	err  error
}

func (r batchRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
