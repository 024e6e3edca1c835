// Package sqlite keeps the scheduler lock in a SQLite file, through
// github.com/ncruces/go-sqlite3 (no cgo). It serves the replicas of one
// machine: processes, or containers that share a volume.
package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"

	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// busyTimeout is how long a statement waits for another writer. It lies below
// the second after which a heartbeat is repeated, so that each try reports
// before the next begins. (The driver's own default is a minute.)
const (
	busyTimeout       = 500 * time.Millisecond
	busyTimeoutMillis = "500"
)

var (
	_ schedlock.FencedStore    = (*Store)(nil)
	_ schedlock.HintedStore    = (*Store)(nil)
	_ schedlock.RevocableStore = (*Store)(nil)
	_ ledger.Store             = (*Store)(nil)
)

// A Store keeps the lock row in one SQLite file. All methods are safe for
// concurrent use. What the lock needs goes over one connection that nothing
// else can use up; reading the history uses the pool.
type Store struct {
	db    *sql.DB
	owned bool   // Close closes db
	wal   bool   // the journal mode must be WAL
	path  string // absolute, symbolic links resolved
	file  fileID // what path led to when it was opened
	now   func() time.Time

	lease     *leaseFile // nil: deaths cannot be proven here
	leaseErr  error      // why
	findLease func(dbPath string) (*leaseFile, error)
	mu        sync.Mutex
	bytes     map[schedlock.Token]heldByte // of the lease file

	turn    chan struct{} // guards conn: one user at a time
	conn    *sql.Conn     // nil: to be taken from the pool again
	stmts   map[string]*sql.Stmt
	rows    map[string]*sqlite3.Stmt // of row
	durable bool                     // commits on conn are known to wait for the disk
	batch   batch                    // of what writes to the ledger most often

	closing sync.Once
	closed  chan struct{}
}

// An Option sets something on Open or New.
type Option func(*Store) error

// WithClock replaces time.Now as the database's clock; for tests of what
// happens when a machine's clock is set.
func WithClock(now func() time.Time) Option {
	return func(s *Store) error {
		if now == nil {
			return errors.New("option WithClock: the clock is nil")
		}
		s.now = now
		return nil
	}
}

// Open opens the database file that dsn names (a path, or a file: URI with the
// driver's parameters), on connections of its own. The file and its parent
// folders are made if they do not exist; tables are not, see package
// migrations. Unless dsn says otherwise, every connection has journal_mode
// WAL, synchronous FULL, a busy_timeout of 500 ms, and begins its transactions
// with BEGIN IMMEDIATE.
//
// It returns an error that names the file and the reason if the file cannot be
// used, and if two replicas that share it could both come to lead: it lies on
// a network file system, is a single file mounted into a container, or is a
// database in memory. It waits for other processes that open the same new
// file, until ctx ends, or for 30 s if ctx has no deadline.
func Open(ctx context.Context, dsn string, opts ...Option) (*Store, error) {
	src, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	if err := prepareFile(src.path); err != nil {
		return nil, err
	}
	if err := createFile(ctx, src); err != nil {
		return nil, err
	}
	db, err := driver.Open(src.dsn)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", src.path, err)
	}
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(2)
	opts = append(opts[:len(opts):len(opts)], func(s *Store) error { s.wal = src.wal; return nil })
	store, err := open(ctx, db, true, src.path, opts)
	if err != nil {
		db.Close()
		return nil, err
	}
	return store, nil
}

// createFile makes the file if it does not exist.
func createFile(ctx context.Context, src dataSource) error {
	if _, err := os.Stat(src.path); !errors.Is(err, fs.ErrNotExist) {
		return nil // what is wrong with it shows when it is opened
	}
	db, err := driver.Open(src.create)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err = errors.Join(retryBusy(ctx, func() error { return db.PingContext(ctx) }), db.Close())
	}
	if err != nil {
		return fmt.Errorf("database %s: make it: %w", src.path, err)
	}
	return nil
}

// Opener is Open followed by Migrate, for startup.Config.
func Opener(dsn string, opts ...Option) func(context.Context) (schedlock.Store, error) {
	return func(ctx context.Context) (schedlock.Store, error) {
		store, err := Open(ctx, dsn, opts...)
		if err != nil {
			return nil, err
		}
		if err := store.Migrate(ctx); err != nil {
			return nil, errors.Join(err, store.Close())
		}
		return store, nil
	}
}

// Migrate brings the tables up to date; see migrations.Up.
func (s *Store) Migrate(ctx context.Context) error {
	if s.owned {
		// Our connection is lent: to open another takes longer than all else.
		if err := s.use(ctx, func(context.Context, *sql.Conn) error { return s.release() }); err != nil {
			return s.explain(err)
		}
		defer s.use(ctx, func(context.Context, *sql.Conn) error { return nil })
	}
	return migrations.Up(ctx, s.db, migrations.SQLite)
}

// New uses the app's own *sql.DB, which must be on
// github.com/ncruces/go-sqlite3 or another SQLite driver that runs BEGIN
// IMMEDIATE for a serializable transaction. One connection of the pool is kept
// for good, so that an exhausted pool cannot stop the heartbeats: a pool that
// is limited to one connection is refused. Close gives it back and leaves db
// open. The journal mode stays what the app has set. The errors are those of
// Open.
func New(ctx context.Context, db *sql.DB, opts ...Option) (*Store, error) {
	if db == nil {
		return nil, errors.New("the *sql.DB is nil")
	}
	if n := db.Stats().MaxOpenConnections; n == 1 {
		return nil, fmt.Errorf("the *sql.DB is limited to %d open connection, and the lock keeps one for itself: allow at least 2, or use Open", n)
	}
	return open(ctx, db, false, "", opts)
}

func open(ctx context.Context, db *sql.DB, owned bool, path string, opts []Option) (*Store, error) {
	s := &Store{
		db: db, owned: owned, path: path, now: time.Now,
		turn: make(chan struct{}, 1), stmts: map[string]*sql.Stmt{}, rows: map[string]*sqlite3.Stmt{}, closed: make(chan struct{}),
		bytes: map[schedlock.Token]heldByte{}, findLease: openLeaseFile,
	}
	for _, opt := range opts {
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
	}
	err := retryBusy(ctx, func() error { return s.use(ctx, s.findFile) })
	if err == nil {
		err = checkMount(s.path)
	}
	if err != nil {
		s.release()
		return nil, s.explain(err)
	}
	s.lease, s.leaseErr = s.findLease(s.path)
	return s, nil
}

// findFile asks the connection which file it has open, and remembers it.
func (s *Store) findFile(ctx context.Context, conn *sql.Conn) error {
	var file, mode string
	err := conn.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file)
	if err != nil {
		return err
	}
	if file == "" {
		return errors.New("the database is in memory: it cannot be shared, so it can lock nothing")
	}
	path, err := filepath.EvalSymlinks(file)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return err
	}
	if s.file, err = identify(path); err != nil {
		return err
	}
	s.path = path
	// Reads the file's header: a file that is no database shows here.
	if err := conn.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return err
	}
	var n int
	if err := conn.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master`).Scan(&n); err != nil {
		return err
	}
	if s.wal && mode != "wal" {
		return fmt.Errorf("the journal mode is %q: WAL cannot be used here", mode)
	}
	return nil
}

// Path returns the path of the database file, absolute and with symbolic links
// resolved.
func (s *Store) Path() string { return s.path }

// DB returns the pool: that of Open, or the app's own that New was given.
func (s *Store) DB() *sql.DB { return s.db }

// CheckFile returns a *FileChangedError if the path no longer leads to the
// file that was opened.
func (s *Store) CheckFile() error {
	now, err := identify(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return &FileChangedError{Path: s.path, Err: err}
	case err != nil:
		return fmt.Errorf("database %s: %w", s.path, err) // says nothing about the file
	}
	if now != s.file {
		return &FileChangedError{Path: s.path}
	}
	return nil
}

// Close gives the connection back and, after Open, closes the database. It may
// be called again. Release the lease before: a lease that was not released
// keeps its byte of the lease file for as long as the process lives.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.closed)
		if s.lease != nil {
			err = s.lease.close()
		}
		s.turn <- struct{}{}
		err = errors.Join(err, s.release())
		<-s.turn
		if s.owned {
			err = errors.Join(err, s.db.Close())
		}
	})
	return err
}

// forget closes the statements of the connection; the turn is held.
func (s *Store) forget() {
	for _, stmt := range s.stmts {
		stmt.Close()
	}
	for _, stmt := range s.rows {
		stmt.Close()
	}
	clear(s.stmts)
	clear(s.rows)
}

// release gives the connection back; the turn is held.
func (s *Store) release() error {
	s.forget()
	if s.conn == nil {
		return nil
	}
	conn := s.conn
	s.conn = nil
	if !s.durable { // whoever gets it next expects no less
		if _, err := conn.ExecContext(context.Background(), sqlDurable); err != nil {
			_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
		}
	}
	return conn.Close()
}

// use runs do on the store's own connection, alone. The wait for the turn, for
// a connection, and the statements all end with ctx.
func (s *Store) use(ctx context.Context, do func(context.Context, *sql.Conn) error) error {
	select {
	case <-s.closed:
		return fmt.Errorf("database %s was closed", s.path)
	default:
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.closed:
		return fmt.Errorf("database %s was closed", s.path)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.conn == nil {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, `PRAGMA busy_timeout = `+busyTimeoutMillis+`; `+sqlDurable); err != nil {
			conn.Close()
			return err
		}
		s.conn, s.durable = conn, true
	}
	err := do(ctx, s.conn)
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, sqldriver.ErrBadConn) {
		s.discard()
	}
	return err
}

const (
	sqlDurable = `PRAGMA synchronous = FULL`
	sqlLazy    = `PRAGMA synchronous = NORMAL`
)

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
	if s.conn != nil {
		_ = s.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	}
	s.release()
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

// each hands every row of a query on the connection to row; the turn is held.
func (s *Store) each(ctx context.Context, query string, args []any, row func(*sql.Rows) error) error {
	stmt, err := s.prepare(ctx, query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// mayWrite refuses to write to a file that is not the one that was opened: the
// pages would go to the -wal file beside whatever lies at its path now.
func (s *Store) mayWrite() error {
	err := s.CheckFile()
	if changed := (*FileChangedError)(nil); errors.As(err, &changed) {
		return fmt.Errorf("%w: %w", schedlock.ErrLost, err)
	}
	return err
}

// write runs do in one BEGIN IMMEDIATE transaction, which is rolled back
// unless do returns nil and the commit succeeds. The statements go to the
// connection itself: a sql.Tx would roll back from another goroutine when ctx
// ends, and what came after would be written outside the transaction.
func (s *Store) write(ctx context.Context, do func(context.Context, tx) error) error {
	if err := s.mayWrite(); err != nil {
		return err
	}
	err := s.use(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
		tx := tx{s}
		if err := s.setDurable(ctx, true); err != nil {
			return err
		}
		// Not kept prepared: SQLite looks for an interruption after so many steps
		// in the life of a statement, and could find one when it has begun.
		if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
			return err
		}
		always := context.WithoutCancel(ctx)
		committed := false
		defer func() {
			if committed {
				return
			}
			if _, rollbackErr := conn.ExecContext(always, `ROLLBACK`); rollbackErr != nil {
				s.discard() // whatever it still holds goes with the connection
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
	return s.explain(err)
}

// tx runs prepared statements in the open transaction.
type tx struct{ s *Store }

func (t tx) exec(ctx context.Context, query string, args ...any) (affected int64, err error) {
	stmt, err := t.s.prepare(ctx, query)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (t tx) row(ctx context.Context, query string, args []any, dest ...any) error {
	stmt, err := t.s.prepare(ctx, query)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(ctx, args...).Scan(dest...)
}

// explain adds the file's name and, for the errors that have one, what to do.
func (s *Store) explain(err error) error {
	var hint string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, schedlock.ErrLost), errors.Is(err, schedlock.ErrMoved),
		errors.Is(err, ledger.ErrPaused), errors.Is(err, ledger.ErrNoJob): // answers, no faults
		return err
	case strings.Contains(err.Error(), "no such table: scheduler_"):
		hint = "; its migrations were not run (migrations.Up)"
	case errors.Is(err, sqlite3.NOTADB), errors.Is(err, sqlite3.CORRUPT):
		return fmt.Errorf("database %s: %w: %w: stop the replicas and restore it from a backup", s.path, schedlock.ErrDamaged, err)
	case errors.Is(err, sqlite3.FULL):
		hint = "; the disk is full"
	case errors.Is(err, sqlite3.READONLY):
		hint = "; the file, or its folder, cannot be written by this user"
	}
	if strings.Contains(err.Error(), s.path) { // also if it is not known yet
		return fmt.Errorf("%w%s", err, hint)
	}
	return fmt.Errorf("database %s: %w%s", s.path, err, hint)
}

// retryBusy repeats what failed because other processes hold the file, as many
// do that set WAL on one new file at once.
func retryBusy(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, sqlite3.BUSY) && !errors.Is(err, sqlite3.LOCKED) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(1+rand.IntN(20)) * time.Millisecond):
		}
	}
}
