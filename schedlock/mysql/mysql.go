// Package mysql keeps the scheduler lock in a MariaDB database, through
// github.com/go-sql-driver/mysql. It serves a fleet on many machines.
//
// It was tried with MariaDB 10.11, on one server, on a promoted replica and on three nodes
// of Galera 4, with nothing between it and the app: neither with MySQL, which lacks some
// of the statements, nor with ProxySQL or MaxScale. On Galera the TTL decides about a
// holder on another node, and a fence ends its own transaction if another node has taken
// over.
//
// # The end of a holder
//
// The end of its session is a sign of its death if WithSessionSign is given; else the TTL
// decides. A release wakes a standby that waits, on a second connection; see WithPolling.
//
// # What the server must keep
//
// An acquisition counts once the server has it on its disk. That needs
// innodb_flush_log_at_trx_commit = 1, which is the default. Nothing checks it yet.
//
// # A fail-over
//
// A server is known by its server_uid and server_id. A lock that was last acquired on
// another server is never free at once, as a later acquisition may be lost: one TTL
// must pass. After a restart of the server each watch begins anew. Terms stay above those
// that are lost if one fail-over lies between two acquisitions, not if several do.
//
// # Connections
//
// What the lock needs goes over one connection of its own, which nothing can exhaust.
// Two pools of four connections, empty until they are used, serve the rest: one the
// scheduler's runs and nothing else, the other the fence, named locks, queues, orders and
// the history. What may have to wait for a transaction of somebody else, such as adding a
// task or taking a lock, never uses the last connection of the second. The settings of their
// sessions are the store's own, whatever the address says: READ COMMITTED, a strict sql_mode,
// UTC.
//
// # A fence
//
// Fence takes a *sql.Tx of any isolation level. A client that dies without a word in
// the middle of a fenced transaction keeps others from the lock until the server ends
// its session: let the app set idle_transaction_timeout, which by default never does.
package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/mydsn"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

var _ ledger.Store = (*Store)(nil)

// A Store keeps the lock row in one MariaDB database. All methods are safe for
// concurrent use.
//
// It has all methods of [ledger.Store], such as Runs and Trigger. Some are not listed here: they
// are promoted from a type of an internal package.
type Store struct {
	driver.Base // what this database lacks
	runLedger   // Decide and so on: see ledger.go

	config  *mysql.Config
	lock    pool // one connection, for the lock itself: see line.go
	waiting pool // one connection, for hints
	runs    pool // for the scheduler's runs
	shared  pool // for all else
	patient pool // the same connections, for what may wait for others
	log     *slog.Logger
	direct  bool // see WithDirectConnection
	sign    bool // see WithSessionSign
	polling bool // see WithPolling
	plain   bool // the server was made without Galera

	session atomic.Pointer[session] // of the lock's latest connection
	heard   atomic.Pointer[probe]   // the last lock that was waited for and got
	said    sync.Map                // what was said once
	mending bounded.Pace            // of queues

	turn   bounded.WatchedTurn // guards the lock's connection and what follows
	holder holder              // what this replica holds

	mu         sync.Mutex      // guards the end of life
	life       context.Context // ends with Close
	end        context.CancelFunc
	background sync.WaitGroup
}

// An Option sets something on Open or Opener.
type Option func(*Store) error

// WithLogger sets the logger; default slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(s *Store) error {
		if log == nil {
			return errors.New("option WithLogger: the logger is nil")
		}
		s.log = log
		return nil
	}
}

// Open connects to the database that url names: mysql://user:password@host:3306/database
// with parameters of the driver, or the driver's own form,
// user:password@tcp(host:3306)/database. Tables are not made, see [Store.Migrate] and
// [Opener]. It fails if the server does not answer until ctx ends, or for 10 s if ctx
// has no deadline. The error never shows a part of url that may belong to a password.
// For that reason a URL is refused where a / ? # or @ could be in the password: write
// %2F %3F %23 %40.
func Open(ctx context.Context, url string, opts ...Option) (*Store, error) {
	config, err := mydsn.Parse(url)
	if err != nil {
		return nil, fmt.Errorf("the database URL is not %s: %w", mydsn.Form, err)
	}
	s := &Store{config: config, log: slog.Default()}
	s.turn.Turn = bounded.NewTurn()
	for _, opt := range opts {
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	s.log = bounded.Log(s.log)
	ctx, cancel := bounded.Context(ctx, statementTimeout)
	defer cancel()
	if err = s.connect(ctx); number(err) == errNoVariable { // a server without Galera's
		s.plain = true
		err = errors.Join(s.Close(), s.connect(ctx))
	}
	if err != nil && s.life != nil {
		err = errors.Join(err, s.Close())
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) connect(ctx context.Context) error {
	settings, err := s.settings()
	if err != nil {
		return err
	}
	others := settings.Clone()
	others.ReadTimeout = cmp.Or(others.ReadTimeout, answerTimeout)
	connector, err := mysql.NewConnector(others)
	if err != nil { // a setting that parse has let through
		return errors.New("the database URL has a parameter that the driver does not take")
	}
	line, err := s.lockConnector(settings)
	if err != nil {
		return err
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.lock, s.waiting = newPool(line, 1), newPool(connector, 1)
	s.waiting.db.SetConnMaxIdleTime(time.Minute)
	s.runs, s.shared = newPool(connector, poolSize), newPool(connector, poolSize)
	s.patient = s.shared
	s.patient.places = make(chan struct{}, poolSize-1)
	s.runLedger = s.newLedger()
	return s.use(ctx, func(context.Context, *sql.Conn, *session) error { return nil })
}

// name is what errors call the database.
func (s *Store) name() string {
	return fmt.Sprintf("database %q on %s", s.config.DBName, s.config.Addr)
}

// Migrate brings the tables up to date; see migrations.Up.
func (s *Store) Migrate(ctx context.Context) error {
	err := migrations.Up(ctx, s.shared.db, migrations.MySQL)
	if permanent(number(err)) { // Up has said what to do
		err = fmt.Errorf("%w: %w", driver.ErrPermanent, err)
	}
	return err
}

// DB returns the pool for what is neither the lock nor a run. Its sessions have the
// settings of the store. It is not for fenced transactions: each Fence needs another
// connection of the pool.
func (s *Store) DB() *sql.DB { return s.shared.db }

// Close ends the connections. It may be called again. Release the lease before.
func (s *Store) Close() error {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	_ = s.turn.Take(context.Background(), nil)
	s.holder.unwatch()
	if x := s.session.Load(); x != nil {
		x.end()
	}
	s.turn.Give()
	s.background.Wait()
	return errors.Join(s.lock.db.Close(), s.waiting.db.Close(), s.runs.db.Close(),
		s.shared.db.Close())
}

// inBackground calls f, unless the store is closed. Close waits for it.
func (s *Store) inBackground(f func()) (begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if begun = s.life.Err() == nil; begun {
		s.background.Go(f)
	}
	return begun
}

// An OpenFunc is what Opener returns, and what startup.Config takes:
//
//	startup.Config{Open: mysql.Opener("mysql://app@db/app")}
type OpenFunc = driver.OpenFunc[*Store]

// Opener connects to the database that url names, as [Open] does, brings the tables
// up to date, and looks at the lock. An outage at this moment, or a right that is
// missing, is an error: a process that cannot reach its database at its start should
// not pretend to run.
func Opener(url string, opts ...Option) OpenFunc {
	open := func(ctx context.Context) (*Store, error) { return Open(ctx, url, opts...) }
	return driver.Ready(open,
		func(ctx context.Context, s *Store) error {
			if err := s.Migrate(ctx); err != nil {
				return err
			}
			if err := s.Check(ctx); errors.Is(err, driver.ErrPermanent) {
				return err
			}
			_, err := s.Look(ctx)
			return err
		})
}

// layout is how the server writes a time.
const layout = "2006-01-02 15:04:05.000000"

func formatTime(t time.Time) string { return t.UTC().Format(layout) }
