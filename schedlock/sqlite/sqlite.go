// Package sqlite keeps the scheduler lock in a SQLite file. It serves the
// replicas of one machine: processes, or containers that share a volume.
//
// [Use] takes the pool of the app, on any SQLite driver; [Opener] opens
// connections of its own with github.com/ncruces/go-sqlite3 (no cgo). Neither
// registers a driver with database/sql. Which one an app needs: docs/drivers.md.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/inotify"
	"example.com/schedlock/internal/leasefile"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// busyTimeout is how long a statement waits for another writer. It lies below
// the second after which a heartbeat is repeated, so that each try reports
// before the next begins. (The driver's own default is a minute.)
const (
	busyTimeout       = 500 * time.Millisecond
	busyTimeoutMillis = "500"
)

var _ ledger.Store = (*Store)(nil)

// A Store keeps the lock row in one SQLite file. All methods are safe for
// concurrent use. What the lock needs goes over one connection that nothing
// else can use up; reading the history uses the pool.
//
// It has all methods of [ledger.Store], such as Runs and Trigger. Some are not listed here: they
// are promoted from a type of an internal package.
type Store struct {
	driver.Base // what this database lacks
	runLedger   // Decide and so on: see ledger.go

	db    *sql.DB
	wal   bool // the journal mode must be WAL
	files *databaseFiles
	brief bool         // used for a moment: nobody watches its files
	tick  *time.Ticker // of who does
	now   func() time.Time

	lease     *leasefile.File // nil: deaths can never be proven here
	leaseErr  error           // why
	events    inotify.Watch   // of files and folders
	findLease func(dbPath string, events *inotify.Watch) (*leasefile.File, error)
	mu        sync.Mutex
	bytes     map[driver.Token]heldByte // of the lease file
	holdErr   error                     // why the last byte could not be taken
	probeErr  error                     // why the last look found nothing out
	tenures   map[driver.Token]tenure
	awaiting  map[chan<- error]driver.Token // who awaits the loss of which lease

	turn     chan struct{} // guards conn: one user at a time
	conn     *sql.Conn     // nil: to be taken from the pool again
	stmts    map[string]*sql.Stmt
	rows     map[string]*sqlite3.Stmt // of row
	durable  bool                     // commits on conn are known to wait for the disk
	primed   atomic.Bool              // see prime
	unsynced error                    // of a sync by prime, until a durable commit was refused
	before   string                   // sets on conn what the pool had set
	batch    batch                    // of what writes to the ledger most often
	mending  bounded.Pace             // of queues

	closing  sync.Once
	closed   chan struct{}
	watching sync.WaitGroup
}

// An Option sets something on Open, Opener or Use.
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

// WithoutProofOfDeath lets the TTL decide when this process has died: no other
// replica takes it for dead before. It is for a program that leads on behalf of
// others, which may outlive it. On PostgreSQL that is so unless a lock has
// schedlock.WithSessionGrace.
func WithoutProofOfDeath() Option {
	return func(s *Store) error {
		s.findLease = func(string, *inotify.Watch) (*leasefile.File, error) {
			return nil, fmt.Errorf("this program leads on behalf of others, which may outlive it: %w",
				errors.ErrUnsupported) // chosen, so it is logged at INFO
		}
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
// a network file system, is a single file mounted into a container, has more
// than one name (hard links), or is a database in memory. Parameters that break
// the promise are refused by name: nolock, immutable, a vfs, locking_mode
// exclusive, and a journal_mode other than WAL. The path is made absolute and
// resolved once: every connection opens the same file, wherever the path leads
// later. If the -wal or the -shm file is taken away while it is in use, leases
// end, and the database is opened anew when every connection that has the old
// files open was returned; see docs/architecture.md. It waits for other
// processes that open the same new
// file, until ctx ends, or for 30 s if ctx has no deadline.
func Open(ctx context.Context, dsn string, opts ...Option) (*Store, error) {
	src, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	return openSource(ctx, src, opts...)
}

func openSource(ctx context.Context, src dataSource, opts ...Option) (*Store, error) {
	if err := prepareFile(src.path); err != nil {
		return nil, err
	}
	if err := createFile(ctx, src); err != nil {
		return nil, err
	}
	files, err := findFiles(src.path)
	if err != nil {
		return nil, err
	}
	db, err := openPool(files, src.at(files.path))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(openConns)
	db.SetMaxIdleConns(openConns)
	opts = append(opts[:len(opts):len(opts)], func(s *Store) error { s.wal = true; return nil })
	return open(ctx, db, files, opts)
}

// openConns is how many connections a pool has. All wait for their next use: to
// open another takes longer than all else.
const openConns = 4

// createFile makes the file if it does not exist.
func createFile(ctx context.Context, src dataSource) error {
	if _, err := os.Stat(src.path); !errors.Is(err, fs.ErrNotExist) {
		return nil // what is wrong with it shows when it is opened
	}
	if size := orphanWAL(src.path); size > 0 {
		return fmt.Errorf("database %s does not exist, but its -wal file does, "+
			"with %d bytes that a new database would delete: "+
			"put the database back beside it, or move %s-wal away", src.path, size, src.path)
	}
	c, err := newConnector(src.create)
	if err == nil {
		db := sql.OpenDB(c)
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err = errors.Join(retryBusy(ctx, func() error { return db.PingContext(ctx) }), db.Close())
	}
	if err != nil {
		return fmt.Errorf("database %s: make it: %w", src.path, err)
	}
	return nil
}

// orphanWAL returns the size of the -wal file of a database that does not exist,
// 0 if there is none. Another process may be making both: the database comes
// first, so it is there once its -wal file is seen.
func orphanWAL(path string) int64 {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	wal, err := os.Lstat(path + "-wal")
	if err != nil {
		return 0
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	return wal.Size()
}

// Opener is [Open] followed by [Store.Migrate], for startup.Config. On Linux it
// refuses a file that the process has open through another SQLite driver: see
// [Use].
func Opener(dsn string, opts ...Option) OpenFunc {
	return ready(func(ctx context.Context) (*Store, error) { return Open(ctx, dsn, opts...) })
}

// An OpenFunc is what Opener and Use return, and what startup.Config takes:
//
//	startup.Config{Open: sqlite.Opener("app.db")}
type OpenFunc = driver.OpenFunc[*Store]

func ready(open func(context.Context) (*Store, error)) OpenFunc {
	return driver.Ready(open, func(ctx context.Context, s *Store) error { return s.Migrate(ctx) })
}

// Migrate brings the tables up to date; see migrations.Up.
func (s *Store) Migrate(ctx context.Context) error {
	// Our connection is lent: opening another takes longer than all else, and a
	// pool of the app may have no other.
	if err := s.use(ctx, func(context.Context, *sql.Conn) error {
		return s.release()
	}); err != nil {
		return err
	}
	// If the database is busy then, the next call takes it.
	defer func() { _ = s.use(ctx, func(context.Context, *sql.Conn) error { return nil }) }()
	return s.explain(migrations.Up(ctx, s.db, migrations.SQLite))
}

// Use uses the app's own *sql.DB, on any SQLite driver that locks with the
// operating system: modernc.org/sqlite, github.com/mattn/go-sqlite3 and
// github.com/ncruces/go-sqlite3 are tested. Like [Opener] it returns what
// startup.Config needs, and migrates. An app with another driver than ncruces'
// must use it: connections of the lock's own would take that driver's locks away
// when they are closed.
//
// One connection of the pool is kept for good, so that an exhausted pool cannot
// stop the heartbeats: a pool that is limited to one connection is refused, and
// one of two leaves the app the one that it had. Close of the store gives the
// connection back and leaves db open. The journal mode stays what the app has
// set, unless that is OFF or MEMORY. The errors are those of Open. If the -wal or
// the -shm file is taken away, the process must be restarted: the connections of
// db would go on working on the old one. SQLite tells only where a path led, so
// give db one without symbolic links: that a link was switched is not noticed.
func Use(db *sql.DB, opts ...Option) OpenFunc {
	return ready(func(ctx context.Context) (*Store, error) { return openOn(ctx, db, opts...) })
}

func openOn(ctx context.Context, db *sql.DB, opts ...Option) (*Store, error) {
	if db == nil {
		return nil, errors.New("the *sql.DB is nil")
	}
	if db.Stats().MaxOpenConnections == 1 {
		return nil, errors.New("the *sql.DB is limited to one open connection, " +
			"and the lock keeps one for itself: " +
			"write db.SetMaxOpenConns(2) before sqlite.Use(db), and the app still has one")
	}
	return open(ctx, db, &databaseFiles{}, opts)
}

// open closes a pool of our own if it fails.
func open(ctx context.Context, db *sql.DB, files *databaseFiles,
	opts []Option) (store *Store, err error) {
	defer func() {
		if err != nil && files.owned {
			db.Close()
		}
	}()
	s := &Store{
		db: db, files: files, now: time.Now,
		turn: make(chan struct{}, 1), stmts: map[string]*sql.Stmt{},
		rows: map[string]*sqlite3.Stmt{}, closed: make(chan struct{}),
		bytes: map[driver.Token]heldByte{}, findLease: leasefile.Open,
		tenures: map[driver.Token]tenure{}, awaiting: map[chan<- error]driver.Token{},
		tick: time.NewTicker(idleWatchInterval),
	}
	for _, opt := range opts {
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	s.runLedger = s.newLedger()
	ctx, cancel := bounded.Context(ctx, 30*time.Second)
	defer cancel()
	if err := retryBusy(ctx, func() error { return s.use(ctx, s.findFile) }); err != nil {
		_ = s.release()
		return nil, err
	}
	lease, err := s.findLease(s.files.path, &s.events)
	if s.lease = lease; lease == nil {
		s.leaseErr = err
	} else {
		s.probeErr = err
	}
	if !s.brief {
		s.watching.Go(s.watchFiles)
	}
	return s, nil
}

// findFile asks the connection which file it has open, and remembers it.
func (s *Store) findFile(ctx context.Context, conn *sql.Conn) error {
	var file, mode string
	err := conn.QueryRowContext(ctx,
		`SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file)
	if err != nil {
		return err
	}
	if file == "" {
		return errors.New("the database is in memory: it cannot be shared, so it can lock nothing")
	}
	if !s.files.owned {
		files, err := findFiles(file)
		if err != nil {
			return err
		}
		s.files = files
	}
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
	if err := s.checkJournal(mode); err != nil || s.files.owned {
		return err
	}
	if err := s.findOpen(ctx, conn); err != nil {
		return err
	}
	return s.checkLocking(ctx, conn)
}

// Path returns the path of the database file, absolute and with symbolic links
// resolved.
func (s *Store) Path() string { return s.files.path }

// DB returns the pool: that of Open, or the app's own that Use was given. A pool
// of Open opens the file that Open has opened, wherever the path leads by now.
// If the -wal or -shm file is removed or replaced while connections have it
// open, no transaction on these can be committed any more.
func (s *Store) DB() *sql.DB { return s.db }

// Close gives the connection back and, after Open, closes the database. It may
// be called again. Release the lease before: a lease that was not released
// keeps its byte of the lease file for as long as the process lives, unless its
// release, or the commit of its acquisition, has failed.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.closed)
		s.watching.Wait()
		if s.lease != nil {
			s.lease.Close()
		}
		err = s.events.Close()
		s.turn <- struct{}{}
		s.settleBytes(nil) // no look finds the row of one in doubt any more
		err = errors.Join(err, s.release())
		<-s.turn
		if s.files.owned {
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
	s.primed.Store(false)
}

// release gives the connection back; the turn is held.
func (s *Store) release() error {
	s.forget()
	if s.conn == nil {
		return nil
	}
	conn, quiet := s.conn, s.closesQuietly()
	s.conn = nil
	if !quiet {
		return nil // it stays open until the process ends
	}
	if !s.files.owned {
		s.files.forgetOpen() // the app may close it: then SQLite may remove what lies beside
	}
	_ = restore(conn, s.before)
	return conn.Close()
}
