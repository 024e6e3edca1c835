// Package postgres keeps the scheduler lock in a PostgreSQL database, through
// github.com/jackc/pgx/v5. It serves a fleet on many machines.
//
// # Connections
//
// What the lock needs goes over one connection of its own, which no pool can
// exhaust; a standby has no other. Two small pools, empty until they are used,
// serve the rest: one the scheduler's runs and nothing else, the other named
// locks, queues, orders and the history. See WithRunConnections and
// WithSharedConnections.
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
	"cmp"
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
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/internal/logqueue"
	"example.com/schedlock/internal/pace"
	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/internal/pgschema"
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

	runsSize, sharedSize int // of the pools

	pooled   atomic.Bool            // behind a pooler
	lent     atomic.Bool            // a session was not ours: see isolate
	said     sync.Map               // what was said once
	hidden   atomic.Pointer[string] // token of a holder whose session may not be seen
	mending  pace.Pace              // of queues
	watching sync.WaitGroup

	turn     chan struct{} // guards conn and what follows: one user at a time
	conn     *pgx.Conn     // nil: to be opened
	session  *session      // on it
	holder   holder        // what this replica holds
	primed   *pgx.Conn     // see prime
	unprimed bool          // it has failed
	refused  error         // why the server will not have us, and …
	again    time.Time     // … when to ask again
	backoff  time.Duration

	mu     sync.Mutex
	wanted int                // users that wait for their turn
	yield  context.CancelFunc // ends a wait for a hint; nil: there is none

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
		if err := pgschema.Check(name); err != nil {
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
	return open(ctx, config, opts)
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
		turn:   make(chan struct{}, 1),
		closed: make(chan struct{}),
	}
	for _, opt := range opts {
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	s.log = logqueue.Wrap(s.log)
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
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
	}
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

// Close ends the connections. It may be called again. Release the lease
// before.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		s.interrupt()
		s.turn <- struct{}{}
		s.holder.unwatch()
		s.drop()
		<-s.turn
		s.watching.Wait()
		s.runs.Close()
		s.pool.Close()
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

var errClosed = errors.New("the store is closed")

// use gives f the lock's connection, for statementTimeout if the caller has set no
// limit. A connection that has failed is dropped: the next user opens another.
func (s *Store) use(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, statementTimeout)
		defer cancel()
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.leave()
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if err = f(ctx, conn); err == nil {
		if conn.IsClosed() { // by something that f could do without
			s.drop()
		}
		return nil
	}
	switch c := code(err); {
	case conn.IsClosed():
	case c == codeNoPrivilege:
		if why := hidden(ctx, s.on(conn)); why != nil {
			err = why
		}
	case c == codeLockTimeout:
		if who, _ := s.blocker(ctx, conn, 0); who != "" {
			err = fmt.Errorf("%s: %w", who, err)
		}
	}
	if conn.IsClosed() || readOnly(err) {
		s.drop()
	}
	return s.explain(err)
}

// take waits for the turn, and ends a wait for a hint that has it.
func (s *Store) take(ctx context.Context) error {
	s.mu.Lock()
	s.wanted++
	if s.yield != nil {
		s.yield()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.wanted--
		s.mu.Unlock()
	}()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.isClosed() {
		return errClosed
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.closed:
		return errClosed
	}
}

func (s *Store) leave() { <-s.turn }

func (s *Store) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.yield != nil {
		s.yield()
	}
}

// dropTimeout bounds the farewell to a server that may not listen any more.
const dropTimeout = time.Second

// drop ends the connection. The turn is held.
func (s *Store) drop() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	s.session.end()       // before the server knows
	_ = s.conn.Close(ctx) // it is given up, whatever the server says
	s.conn = nil
}

// How long a server that refuses us for good is left alone.
const (
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
)

// connect returns the connection, opened anew if there is none. The turn is
// held.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	if s.conn != nil && !s.conn.IsClosed() {
		return s.conn, nil
	}
	s.drop()
	if s.refused != nil && time.Now().Before(s.again) {
		return nil, s.refused
	}
	conn, session, err := s.dial(ctx)
	if err != nil {
		err = s.explain(err)
		s.refused = nil
		if errors.Is(err, driver.ErrPermanent) {
			s.backoff = min(max(2*s.backoff, minBackoff), maxBackoff)
			s.refused, s.again = err, time.Now().Add(s.backoff)
		}
		return nil, err
	}
	s.conn, s.session, s.refused, s.backoff = conn, session, nil, 0
	return conn, nil
}

// sqlGreet begins a session that is our own. No plan of ours depends on a
// parameter, so each statement is planned once: to plan an acquisition takes
// longer than to execute it.
func sqlGreet(channel string) string {
	return `LISTEN ` + channel + `; SET plan_cache_mode = force_generic_plan`
}

const sqlOwnSession = `
SELECT pg_backend_pid(), host(inet_server_addr()), inet_server_port(),
       host(inet_client_addr()), inet_client_port(),
       (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid()))`

func (s *Store) dial(ctx context.Context) (conn *pgx.Conn, x *session, err error) {
	config := s.config.Copy()
	if s.prepare != nil {
		if err := s.prepare(ctx, config); err != nil {
			return nil, nil, err
		}
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // see committed; statements say their own
	heard := make(chan struct{}, 1)
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if n.Channel != s.channel() { // of a LISTEN in the app's AfterConnect
			return
		}
		select {
		case heard <- struct{}{}:
		default:
		}
	}
	if conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, nil, err
	}
	opened := conn // a return of nil overwrites conn
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
			defer cancel()
			_ = opened.Close(ctx)
		}
	}()
	if err := s.welcome(ctx, conn); err != nil {
		return nil, nil, err
	}
	var (
		pid     uint32
		e       ends
		started pgtype.Timestamptz
	)
	if err := s.on(conn).QueryRow(ctx, sqlOwnSession, pgx.QueryExecModeExec).Scan(&pid, &e.server,
		&e.serverPort,
		&e.client, &e.clientPort, &started); err != nil {
		return nil, nil, err
	}
	s.pooled.Store(pid != conn.PgConn().PID())
	x = s.inspect(conn, e, started)
	x.heard = heard
	if s.pooled.Load() {
		s.say("a pooler is between the scheduler lock and the server: " +
			"no LISTEN, so a standby notices a release by polling")
		return conn, x, nil
	}
	if s.reader {
		return conn, x, nil
	}
	_, err = conn.PgConn().Exec(ctx, sqlGreet(s.channel())+";"+sqlKeep).ReadAll()
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && !conn.IsClosed() {
		x.why = cmp.Or(x.why, "the server does not let the holder change its time-outs: "+e.Message)
		_, err = conn.PgConn().Exec(ctx, sqlGreet(s.channel())).ReadAll()
	}
	return conn, x, err
}

// welcome makes a new session as the app wants it, and as our statements do.
func (s *Store) welcome(ctx context.Context, conn *pgx.Conn) error {
	if s.greet != nil {
		if err := s.greet(ctx, conn); err != nil {
			return err
		}
	}
	return s.isolate(ctx, conn)
}

// mode is how statements are sent: prepared once where the session is ours,
// else unnamed, in one round trip all the same.
func (s *Store) mode() pgx.QueryExecMode {
	if s.pooled.Load() || s.config.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return pgx.QueryExecModeExec
	}
	return pgx.QueryExecModeCacheStatement
}

// AwaitHint implements driver.Store: it returns at a release, or when
// the connection is lost. Behind a pooler it just waits.
func (s *Store) AwaitHint(ctx context.Context, _ driver.Snapshot) {
	for ctx.Err() == nil {
		switch s.listen(ctx) {
		case hinted:
			return
		case deaf:
			<-ctx.Done()
		}
	}
}

// What listen can end with.
type heard int

const (
	hinted    heard = iota // look now
	disturbed              // somebody else needs the connection: listen again after them
	deaf                   // nothing can be heard
)

// primers are the statements of a take-over and of what follows, for a lock
// that nobody has: an epoch, a token and a term that do not exist. They find
// nothing, and write nothing.
var primers = []struct {
	query string
	args  []any
}{
	{sqlTakeFree, []any{1, "", "", 0, 1, 1, 1, "", keepTerms,
		nil, nil, nil, "", "", "", 0, 0, false}},
	{sqlTakeOver, []any{1, "", "", 0, 1, 1, 1, "", keepTerms,
		nil, nil, nil, "", "", "", "", 0, 0, ""}},
	{sqlHeartbeat, []any{"", "", 0, nil}},
	{sqlRelease, []any{1, "", "", 0, ""}},
}

// primeTimeout bounds prime: a heartbeat waits for its turn meanwhile.
const primeTimeout = time.Second

// prime prepares, plans and tries what a standby will need in the moment in
// which it takes over, while it has nothing else to do; the turn is held. The
// server reads its catalogs and plans a statement when it first executes it,
// which took two thirds of an acquisition. A server that does not answer in
// time, or that refuses to write, is not asked for it again (the driver closes
// the connection in the first case): it will do all that when it must.
func (s *Store) prime(ctx context.Context) {
	s.primed = s.conn
	if s.mode() != pgx.QueryExecModeCacheStatement {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, primeTimeout)
	defer cancel()
	for _, p := range primers {
		if _, err := s.conn.Exec(ctx, p.query, append([]any{s.mode()}, p.args...)...); err != nil {
			s.unprimed = true
			return
		}
	}
}

// listen waits for a notification on the lock's connection, which it gives up
// as soon as somebody else needs it.
func (s *Store) listen(ctx context.Context) heard {
	select {
	case s.turn <- struct{}{}:
		defer s.leave()
	case <-ctx.Done():
		return deaf
	case <-s.closed:
		return deaf
	}
	if s.conn != nil && s.conn.IsClosed() { // whoever used it did not notice
		s.drop()
		return hinted
	}
	if s.conn == nil || s.pooled.Load() {
		return deaf
	}
	if s.primed != s.conn && !s.unprimed {
		s.prime(ctx)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.yield = cancel
	if s.wanted > 0 || s.isClosed() {
		cancel()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.yield = nil
		s.mu.Unlock()
	}()
	for {
		select {
		case <-s.session.heard:
			return hinted
		default:
		}
		switch err := s.conn.PgConn().WaitForNotification(waiting); {
		case err == nil: // of whatever channel
		case s.conn.IsClosed():
			s.drop() // the next look opens another
			return hinted
		default:
			return disturbed
		}
	}
}

// text makes a string one that PostgreSQL can keep: it has no byte 0, and
// nothing that is not UTF-8.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
