// Package postgres keeps the scheduler lock in a PostgreSQL database, through
// github.com/jackc/pgx/v5. It serves a fleet on many machines.
//
// # Connections
//
// What the lock needs goes over one connection of its own, which no pool can
// exhaust; a standby has no other. Two small pools, empty until they are used,
// serve the rest: one the scheduler's runs and nothing else, the other named
// locks, queues, orders and the history. See WithRunConnections and
// WithSharedConnections. In the first quarter of a second after an acquisition
// the runs use the lock's connection if nobody else does: the pool has none yet.
//
// # Poolers
//
// Everything works through a pooler in transaction mode, such as PgBouncer: no
// statement needs a session, a prepared statement of a name, or an advisory
// lock. A pooler is recognised because pg_backend_pid() is not the pid that
// the protocol announced; it is said once in the log. LISTEN cannot work
// there, so a standby notices a release by polling, within a second.
//
// # Schema
//
// WithSchema keeps the tables in a schema of their own, so that several apps can
// share a database. Without it they are looked for along the search_path of the
// connection, which may be a setting of the role (ALTER ROLE app SET search_path
// = app, which works behind a pooler too) or of the URL (?search_path=app).
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// channel is what a release notifies, and standbys listen to: the standbys of an
// app in a schema of its own are not woken by those of others.
func (s *Store) channel() string {
	if s.schema == "" {
		return "scheduler_lock"
	}
	return "scheduler_lock_" + s.schema
}

var (
	_ ledger.Store = (*Store)(nil)
)

// A Store keeps the lock row in one PostgreSQL database. All methods are safe
// for concurrent use.
type Store struct {
	driver.Base // what this database lacks

	config  *pgx.ConnConfig
	prepare func(ctx context.Context, config *pgx.ConnConfig) error
	greet   func(ctx context.Context, conn *pgx.Conn) error
	runs    statementPool // for the scheduler's runs: see pools.go
	pool    statementPool // for all else
	patient statementPool // the same connections, for what may wait for others
	log     *slog.Logger
	reader  bool   // of OpenReader: does not listen
	direct  bool   // see WithDirectConnection
	schema  string // see WithSchema; "": the first of the search_path

	runsSize, sharedSize int           // of the pools
	bound                time.Duration // statementTimeout, or less in a test
	borrowFor            time.Duration // or more in a test
	borrowWait           time.Duration // likewise
	primeFor             time.Duration // likewise

	pooled   atomic.Bool               // behind a pooler
	lent     atomic.Bool               // a session was not ours: see isolate
	granted  atomic.Pointer[time.Time] // when the lock was acquired last: see borrow
	said     sync.Map                  // what was said once
	hidden   atomic.Pointer[string]    // token of a holder whose session may not be seen
	mending  bounded.Pace              // of queues
	watching sync.WaitGroup

	lines bounded.Opener[line]

	turn     bounded.WatchedTurn // guards what follows: one user at a time
	conn     *pgx.Conn           // nil: to be opened
	session  *session            // on it
	holder   holder              // what this replica holds
	primed   *pgx.Conn           // see prime
	unprimed bool                // it has failed
	refused  error               // why the server will not have us, and …
	again    time.Time           // … when to ask again
	backoff  time.Duration

	closing sync.Once
	closed  chan struct{}
}

// An Option sets something on Open, Opener or Use.
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

// WithSchema keeps all tables in a schema of that name, such as "billing", so
// that several apps can share a database and each has a lock, a ledger, named
// locks and queues of its own, whatever the search_path says. Migrate makes the
// schema if it is missing, which takes the right CREATE on the database. A name
// has at most 48 of a-z, 0-9 and _, and does not begin with a digit or pg_.
func WithSchema(name string) Option {
	return func(s *Store) error {
		if err := names.CheckSchema(name); err != nil {
			return fmt.Errorf("option WithSchema: %w", err)
		}
		s.schema = name
		return nil
	}
}

// Open connects to the database that url names (postgres://… or key=value
// pairs, with the parameters of pgx and of its pool), on connections of its
// own. Tables are not made, see [Store.Migrate] and [Opener]. It fails if the server
// does not answer until ctx ends, or for 10 s if ctx has no deadline. The
// error never shows a part of url that may belong to a password. For that reason
// a URL is refused where an @ could be in the password or end it: write %40.
func Open(ctx context.Context, url string, opts ...Option) (*Store, error) {
	config, err := pgdsn.Parse(url)
	if err != nil {
		return nil, fmt.Errorf("the database URL is not %s: %w", pgdsn.Form, err)
	}
	store, err := open(ctx, config, opts)
	if err != nil && strings.TrimSpace(url) == "" {
		return nil, fmt.Errorf("the database URL is empty, so variables such as PGHOST count: %w",
			err)
	}
	return store, err
}

// connectTimeout is how long one attempt to connect may take, unless the URL
// has a connect_timeout: what swallows packets must not hold a slot of the pool
// for minutes after it has healed.
const connectTimeout = 5 * time.Second

func open(ctx context.Context, config *pgxpool.Config, opts []Option) (*Store, error) {
	if err := pgdsn.Check(config.ConnConfig); err != nil {
		return nil, fmt.Errorf("settings of the connection: %w", err)
	}
	s := &Store{
		config:   config.ConnConfig.Copy(),
		prepare:  config.BeforeConnect,
		greet:    config.AfterConnect,
		log:      slog.Default(),
		runsSize: defaultPoolSize, sharedSize: defaultPoolSize,
		bound: statementTimeout, borrowFor: borrowFor, borrowWait: borrowWait,
		primeFor: primeFor,
		closed:   make(chan struct{}),
	}
	s.turn.Turn = bounded.NewTurn()
	s.lines.Open, s.lines.Close = s.openLine, func(l line) { hangUp(l.conn) }
	for _, opt := range opts {
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	s.log = bounded.Log(s.log)
	// not the app's own, and kept by nobody; see dial
	s.config.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	if s.config.RuntimeParams["application_name"] == "" {
		s.config.RuntimeParams["application_name"] = "schedlock"
	}
	for name := range s.config.RuntimeParams {
		if strings.EqualFold(name, "DateStyle") {
			delete(s.config.RuntimeParams, name)
		}
	}
	// as the driver reads times; poolers know this setting
	s.config.RuntimeParams["DateStyle"] = "ISO"
	if s.config.ConnectTimeout == 0 {
		s.config.ConnectTimeout = connectTimeout // pgx has none of its own
	}
	if err := s.openPools(config); err != nil {
		return nil, err
	}
	ctx, cancel := bounded.Context(ctx, 10*time.Second)
	defer cancel()
	if err := s.use(ctx, func(context.Context, *pgx.Conn) error { return nil }); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// name is what errors call the database.
func (s *Store) name() string {
	name := fmt.Sprintf("database %q on %s:%d", s.config.Database, s.config.Host, s.config.Port)
	if s.schema != "" {
		name += fmt.Sprintf(", schema %q", s.schema)
	}
	return name
}

// Pool returns the pool that serves all but the lock and its runs: see
// WithSharedConnections. It is small, and the store closes it: an app has its
// own.
func (s *Store) Pool() *pgxpool.Pool { return s.pool.Pool }

// Pooled reports whether the store is behind a pooler in transaction mode (or
// anything else that is not the server itself).
func (s *Store) Pooled() bool { return s.pooled.Load() }

// Migrate brings the tables up to date, and makes the schema of WithSchema; see
// migrations.Up.
func (s *Store) Migrate(ctx context.Context) error {
	if s.migrated(ctx) {
		return nil
	}
	config := s.config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	var opts []stdlib.OptionOpenDB
	if s.prepare != nil {
		opts = append(opts, stdlib.OptionBeforeConnect(s.prepare))
	}
	if s.greet != nil {
		opts = append(opts, stdlib.OptionAfterConnect(s.greet))
	}
	db := stdlib.OpenDB(*config, opts...)
	var in []migrations.Option
	if s.schema != "" {
		in = append(in, migrations.WithSchema(s.schema))
	}
	err := errors.Join(migrations.Up(ctx, db, migrations.PostgreSQL, in...), db.Close())
	if permanent(code(err)) { // Up has said what to do
		err = fmt.Errorf("%w: %w", driver.ErrPermanent, err)
	}
	return err
}

// migrated reports whether there is nothing to migrate. It asks on the lock's connection, as
// opening another takes several milliseconds. If anything is wrong, the migration reports it.
func (s *Store) migrated(ctx context.Context) bool {
	var version, minCode int64
	err := s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return s.on(conn).QueryRow(ctx, `
SELECT coalesce(max(version), 0), coalesce(max(min_code), 0) FROM scheduler_lock_schema`,
			pgx.QueryExecModeExec).Scan(&version, &minCode)
	})
	return err == nil && version >= migrations.Latest && minCode <= migrations.Latest
}

// Close ends the connections. It may be called again. Release the lease
// before.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		_ = s.turn.Take(context.Background(), nil)
		s.holder.unwatch()
		s.drop()
		s.turn.Give()
		s.lines.End()
		s.watching.Wait()
		s.runs.Pool.Close()
		s.pool.Pool.Close()
	})
	return nil
}

func (s *Store) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// mode is how statements are sent: prepared once where the session is ours,
// else unnamed, in one round trip all the same.
func (s *Store) mode() pgx.QueryExecMode {
	if s.pooled.Load() || s.config.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return pgx.QueryExecModeExec
	}
	return pgx.QueryExecModeCacheStatement
}

// text makes a string one that PostgreSQL can keep: it has no byte 0, and
// nothing that is not UTF-8.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
