package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// use runs do on the store's own connection, alone, and explains its error. The wait for the turn,
// for a connection, and the statements all end with ctx.
func (s *Store) use(ctx context.Context, do func(context.Context, *sql.Conn) error) error {
	return s.explain(s.unexplained(ctx, do))
}

func (s *Store) unexplained(ctx context.Context, do func(context.Context, *sql.Conn) error) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.closed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// Also with the turn: whoever takes a connection after Close keeps it for good.
	select {
	case <-s.closed:
		return fmt.Errorf("database %s was closed: stop the lock first", s.files.path)
	default:
	}
	if ctx.Err() != nil { // not every driver asks before it runs a statement
		return context.Cause(ctx)
	}
	if lost := s.files.lost(); lost != nil && s.conn != nil {
		s.discard() // the next one, of a pool of our own, has the new files open
	}
	fresh := s.conn == nil
	if fresh {
		if err := s.files.check(); !s.files.owned && err != nil {
			return err
		}
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		if err := s.checkConnection(ctx, conn); err != nil {
			conn.Close()
			return err
		}
		if err := s.configure(ctx, conn); err != nil {
			conn.Close()
			return err
		}
		s.conn, s.durable = conn, true
		if err := s.findOpen(ctx, conn); err != nil {
			s.discard()
			return err
		}
	}
	err := do(ctx, s.conn)
	if ctx.Err() != nil && errors.Is(err, sqlite3.INTERRUPT) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if fresh {
		s.followSides()
	}
	if f := s.files; !f.owned && s.conn != nil && f.path != "" &&
		f.sets.Load().beside.Load() == nil {
		s.findSides(ctx, s.conn) // somebody may have changed the journal mode
	}
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, sqldriver.ErrBadConn) {
		s.discard()
	}
	return err
}

const (
	sqlDurable = `PRAGMA synchronous = FULL`
	sqlLazy    = `PRAGMA synchronous = NORMAL`
)

// configure sets on the connection what the store needs, and keeps what the pool
// had set: an app that waits for 5 s must not find a connection that waits for
// half a second.
func (s *Store) configure(ctx context.Context, conn *sql.Conn) error {
	var wait, synchronous int
	if err := conn.QueryRowContext(ctx, `PRAGMA busy_timeout`).Scan(&wait); err != nil {
		return err
	}
	s.before = fmt.Sprintf(`PRAGMA busy_timeout = %d`, wait)
	if _, err := conn.ExecContext(ctx, `PRAGMA busy_timeout = `+busyTimeoutMillis); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&synchronous); err != nil {
		return errors.Join(err, restore(conn, s.before))
	}
	s.before = fmt.Sprintf(`PRAGMA synchronous = %d; `, synchronous) + s.before
	if _, err := conn.ExecContext(ctx, sqlDurable); err != nil {
		return errors.Join(err, restore(conn, s.before))
	}
	return nil
}

// restore sets on a connection what it had, or closes it.
func restore(conn *sql.Conn, before string) error {
	_, err := conn.ExecContext(context.Background(), before)
	if err != nil {
		_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	}
	return err
}

// setDurable says whether the next commits wait for the disk; the turn is held,
// and no transaction is open. SQLite does it when it compiles the statement, so
// that cannot be kept prepared, and is left out where nothing changes.
func (s *Store) setDurable(ctx context.Context, durable bool) error {
	if s.durable == durable {
		return nil
	}
	query := sqlLazy
	if durable {
		query = sqlDurable
	}
	s.durable = false // whatever becomes of it: then it is set again
	_, err := s.conn.ExecContext(ctx, query)
	s.durable = durable && err == nil
	return err
}

// discard closes the connection instead of giving it back to the pool, so that
// the next call takes a new one; the turn is held.
func (s *Store) discard() {
	s.forget()
	if s.conn != nil && s.closesQuietly() {
		_ = s.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	}
	_ = s.release()
}

// prepare keeps the statements of the connection; the turn is held.
func (s *Store) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt, ok := s.stmts[query]; ok {
		return stmt, nil
	}
	stmt, err := s.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	s.stmts[query] = stmt
	return stmt, nil
}

// each calls row for each row of a query on the connection, after it was scanned
// into dest; the turn is held.
func (s *Store) each(ctx context.Context, query string, args, dest []any,
	row func() error) error {
	rows, err := tx{s}.QueryContext(ctx, query, args...)
	return columns.Each(rows, err, dest, row)
}

// write runs do in one BEGIN IMMEDIATE transaction, which is rolled back
// unless do returns nil and the commit succeeds. The statements go to the
// connection itself: a sql.Tx would roll back from another goroutine when ctx
// ends, and what came after would be written outside the transaction.
func (s *Store) write(ctx context.Context, do func(context.Context, tx) error) error {
	return s.writeDurably(ctx, true, do)
}

// writeDurably is write; without durable it does not wait for the disk.
func (s *Store) writeDurably(ctx context.Context, durable bool,
	do func(context.Context, tx) error) error {
	if err := s.mayWrite(); err != nil {
		return err
	}
	err := s.use(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
		tx := tx{s}
		if err := s.setDurable(ctx, durable); err != nil {
			return err
		}
		if err := s.unsynced; durable && err != nil {
			s.unsynced = nil
			return err
		}
		// Not kept prepared: SQLite looks for an interruption after so many steps
		// in the life of a statement, and could find one when it has begun.
		if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
			s.rollBack(ctx, conn) // if ctx has ended, a driver may have begun all the same
			return err
		}
		// Once more: to begin may have taken half a second.
		if err := s.mayWrite(); err != nil {
			s.rollBack(ctx, conn)
			return err
		}
		always := context.WithoutCancel(ctx)
		committed := false
		defer func() {
			if !committed {
				s.rollBack(ctx, conn)
			}
		}()
		if err := do(ctx, tx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err = tx.exec(always, `COMMIT`)
		committed = err == nil
		return err
	})
	if err == nil {
		err = s.mayWrite() // what was committed to files that are gone, others will not find
	}
	return s.explain(err)
}

// lazily runs do, whose statements are transactions of their own that wait for no
// disk. What they write may be lost with the machine.
func (s *Store) lazily(ctx context.Context, do func(context.Context, tx) error) error {
	if err := s.mayWrite(); err != nil {
		return err
	}
	return s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		if err := s.setDurable(ctx, false); err != nil {
			return err
		}
		return do(ctx, tx{s})
	})
}

// within runs do by way of write, share or lazily, and returns what it returns: nothing
// unless that was committed.
func within[T any](ctx context.Context,
	how func(context.Context, func(context.Context, tx) error) error,
	do func(context.Context, tx) (T, error)) (T, error) {
	var none, v T
	err := how(ctx, func(ctx context.Context, tx tx) (err error) {
		v, err = do(ctx, tx)
		return err
	})
	if err != nil {
		return none, err
	}
	return v, nil
}

// rollBack ends the transaction, if there is one; the turn is held.
func (s *Store) rollBack(ctx context.Context, conn *sql.Conn) {
	_, err := conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
	if err != nil && !strings.Contains(err.Error(), "no transaction is active") {
		s.discard() // whatever it still holds goes with the connection
	}
}

// tx runs prepared statements in the open transaction.
type tx struct{ s *Store }

// ExecContext implements ledgersql.Conn.
func (t tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	stmt, err := t.s.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

// QueryContext implements ledgersql.Conn.
func (t tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := t.s.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

func (t tx) exec(ctx context.Context, query string, args ...any) (affected int64, err error) {
	res, err := t.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// row reads the one row of a statement, to its end: a statement outside a transaction commits
// there.
func (t tx) row(ctx context.Context, query string, args []any, dest ...any) error {
	found := false
	err := t.s.each(ctx, query, args, dest, func() error {
		found = true
		return nil
	})
	if err == nil && !found {
		err = sql.ErrNoRows
	}
	return err
}

// explain adds the file's name and, for the errors that have one, what to do. An
// error that is explained already stays as it is.
func (s *Store) explain(err error) error {
	var hint string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrLost), errors.Is(err, driver.ErrConflict),
		// answers, no faults
		errors.Is(err, ledger.ErrPaused), errors.Is(err, ledger.ErrNoJob), errors.Is(err,
			ledger.ErrBacklog):
		return err
	case errors.Is(err, driver.ErrPermanent), errors.Is(err, driver.ErrCorrupt):
		return err // is explained already
	case strings.Contains(err.Error(), "no such table: scheduler_"),
		strings.Contains(err.Error(), "no such table: named_locks"),
		strings.Contains(err.Error(), "no such table: queue_tasks"):
		return fmt.Errorf("%w: database %s: %w; its migrations were not run (migrations.Up), "+
			"or the table was dropped since: restore a backup", driver.ErrPermanent,
			s.files.path, err)
	case is(err, sqlite3.NOTADB):
		return &notADatabase{s.files.path, err}
	case is(err, sqlite3.CORRUPT):
		return fmt.Errorf("database %s: %w: %w: stop the replicas and restore it from a backup",
			s.files.path, driver.ErrCorrupt, err)
	case is(err, sqlite3.FULL):
		hint = "; the disk is full"
	case errors.Is(err, sqlite3.IOERR_WRITE), // our driver says so of a full disk too,
		errors.Is(err, sqlite3.IOERR_SHMSIZE): // and this, if the -shm file finds no room
		hint = "; the disk is full, or broken"
	case is(err, sqlite3.READONLY):
		hint = "; the file, or its folder, cannot be written by this user"
	}
	text := err.Error()
	if !strings.Contains(text, s.files.path) { // it contains one that is not known yet
		err = fmt.Errorf("database %s: %w", s.files.path, err)
	}
	if !strings.Contains(text, hint) {
		err = fmt.Errorf("%w%s", err, hint)
	}
	return err
}

// notADatabase is an ErrCorrupt of a file that most likely never was a database: a
// wrong path is more common than a database that was overwritten.
type notADatabase struct {
	path string
	err  error
}

func (e *notADatabase) Error() string {
	return fmt.Sprintf("database %s: %v: this is no SQLite file: see that the path is right; "+
		"if it is, the file was overwritten or encrypted", e.path, e.err)
}

func (e *notADatabase) Unwrap() []error { return []error{driver.ErrCorrupt, e.err} }

// retryBusy repeats what failed because other processes hold the file, as many
// do that set WAL on one new file at once.
func retryBusy(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !is(err, sqlite3.BUSY, sqlite3.LOCKED) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(1+rand.IntN(20)) * time.Millisecond):
		}
	}
}
