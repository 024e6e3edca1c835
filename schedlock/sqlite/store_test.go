package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/ledger"
)

// soon is far more than anything takes that is to happen at once.
const soon = 30 * time.Second

var (
	bg    = context.Background()
	quiet = slog.New(slog.DiscardHandler)

	look, beat, release = servertest.Look, servertest.Heartbeat, servertest.Release
	addTasks            = servertest.AddTasks
	captureTasks        = servertest.CaptureTasks
	takeNamed, lockKey  = servertest.TakeNamed, servertest.LockNamed
	lockA               = lockKey("a")
)

// claimOf asks for what was judged, as one does who has watched it for its TTL.
func claimOf(judged driver.Snapshot) driver.Claim { return servertest.Claim(judged, time.Minute) }

// acquire takes the lock as it is now.
func acquire(t testing.TB, s *Store) driver.Ref {
	t.Helper()
	return servertest.Acquire(t, s, time.Minute)
}

// namedClaim asks for a key that is to rest.
func namedClaim(key namedlock.Key, ttl, hold time.Duration) namedlock.Claim {
	c := servertest.NamedClaim(key, ttl)
	c.Hold = hold
	return c
}

// mustOpen opens a store that is closed when the test ends.
func mustOpen(t testing.TB, dsn string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(bg, dsn, opts...)
	require.NoError(t, err)
	cleanUp(t, s)
	return s
}

func cleanUp(t testing.TB, s *Store) {
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, held := range s.bytes {
			held.Release()
		}
	})
}

// storeOn is a store on a pool of the app's.
func storeOn(t testing.TB, db *sql.DB) *Store {
	t.Helper()
	s, err := openOn(bg, db)
	require.NoError(t, err)
	cleanUp(t, s)
	return s
}

// appPool is a pool of the app's own.
func appPool(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sqlite3driver.Open(dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// newStore opens a new database that has its tables.
func newStore(t testing.TB, opts ...Option) *Store {
	t.Helper()
	return mustOpen(t, unused(t), opts...)
}

// unused is a database that has its tables, and that nobody has open, alone in its
// folder.
func unused(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	putDatabase(t, path)
	return path
}

// putDatabase puts a database that has its tables where a path leads.
func putDatabase(t testing.TB, path string) {
	t.Helper()
	raw, err := template()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, raw, 0o600))
}

// template is a database that was migrated once, as a file.
var template = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "schedlock")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	store, err := Opener(filepath.Join(dir, "app.db"))(bg)
	if err != nil {
		return nil, err
	}
	if err := store.(*Store).Close(); err != nil { // which empties the -wal
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, "app.db"))
})

// foreign is a connection of another program, which waits for nobody.
func foreign(t testing.TB, s *Store) *sql.Conn {
	t.Helper()
	conn, err := appPool(t, fileURI(s.Path())+"?_pragma=busy_timeout(0)").Conn(bg)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// begin begins a transaction that ends with the test at the latest.
func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(bg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// ask reads one value.
func ask[T any](t testing.TB, from interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, query string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, from.QueryRowContext(bg, query, args...).Scan(&value), query)
	return value
}

// lasting is a context that ends after a time.
func lasting(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(bg, d)
	t.Cleanup(cancel)
	return ctx
}

// needProof skips a test where no death can be proven.
func needProof(t testing.TB, s *Store) {
	t.Helper()
	if err := s.ProofOfDeath(); err != nil {
		missing.Skip(t, "a proof of death: %v", err)
	}
}

// run executes what an operator types.
func run(t testing.TB, conn *sql.Conn, query string, args ...any) {
	t.Helper()
	_, err := conn.ExecContext(bg, query, args...)
	require.NoError(t, err, query)
}

// wantNoWriteLock fails if somebody holds the write lock.
func wantNoWriteLock(t testing.TB, other *sql.Conn, after string) {
	t.Helper()
	if _, err := other.ExecContext(bg, `BEGIN IMMEDIATE`); err != nil {
		t.Fatalf("a write lock was left behind by %s: %v", after, err)
	}
	run(t, other, `ROLLBACK`)
}

// dump is all that stands in the tables.
func dump(t testing.TB, conn *sql.Conn) string {
	t.Helper()
	var b strings.Builder
	for _, table := range []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs",
		"scheduler_runs", "scheduler_attempts", "scheduler_requests", "scheduler_pauses",
		"scheduler_audit"} {
		for _, row := range rowsOf(t, conn, `SELECT * FROM `+table+` ORDER BY 1, 2`) {
			fmt.Fprintln(&b, table, row)
		}
	}
	return b.String()
}

// rowsOf reads all rows of a query.
func rowsOf(t testing.TB, conn *sql.Conn, query string, args ...any) (all [][]any) {
	t.Helper()
	rows, err := conn.QueryContext(bg, query, args...)
	require.NoError(t, err, query)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	for rows.Next() {
		row, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			dest[i] = &row[i]
		}
		require.NoError(t, rows.Scan(dest...))
		all = append(all, row)
	}
	require.NoError(t, rows.Err(), query)
	return all
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// decide writes a decision that must succeed.
func decide(t testing.TB, s *Store, ref driver.Ref, d ledger.Decision) (ledger.Run, bool) {
	t.Helper()
	run, started, err := s.Decide(bg, ref, d)
	require.NoError(t, err)
	return run, started
}

func runs(t testing.TB, s *Store, job string) []ledger.Run {
	t.Helper()
	runs, err := s.Runs(bg, job, 1000)
	require.NoError(t, err)
	return runs
}

// newLock makes a lock on a store, without a log unless an option says so.
func newLock(t testing.TB, s *Store, opts ...schedlock.Option) *schedlock.Lock {
	t.Helper()
	lock, err := schedlock.New(s, append([]schedlock.Option{schedlock.WithLogger(quiet)},
		opts...)...)
	require.NoError(t, err)
	return lock
}

// A clock that stands still until it is told to move.
type stoppedClock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *stoppedClock {
	return &stoppedClock{at: time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)}
}

func (c *stoppedClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *stoppedClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func TestEveryConnectionHasTheSettings(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	check := func(conn *sql.Conn) {
		for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "2",
			"busy_timeout": "500"} {
			assert.Equal(t, want, ask[string](t, conn, `PRAGMA `+name), name)
		}
	}
	require.NoError(t, s.use(bg, func(_ context.Context, conn *sql.Conn) error {
		check(conn)
		return nil
	}))
	for range 3 { // as many as the pool has besides
		conn, err := s.DB().Conn(bg)
		require.NoError(t, err)
		defer conn.Close()
		check(conn)
	}
}

func TestTheUsersOwnPragmasAreKept(t *testing.T) {
	s := mustOpen(t, "file:"+filepath.Join(t.TempDir(),
		"app.db")+"?_pragma=foreign_keys(1)&_pragma=busy_timeout(77)")
	require.NoError(t, s.Migrate(bg))
	for name, want := range map[string]string{"journal_mode": "wal", "foreign_keys": "1",
		"busy_timeout": "77"} {
		assert.Equal(t, want, ask[string](t, s.DB(), `PRAGMA `+name), name)
	}
	ref := acquire(t, s)
	beat(t, s, ref)
}

func TestWithoutItsTablesADatabaseSaysWhatIsMissing(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "app.db"))
	for name, call := range map[string]func() error{
		"lock":       func() error { _, err := s.Look(bg); return err },
		"named lock": func() error { _, err := s.Named().Look(bg, lockA); return err },
		"task": func() error {
			_, err := s.Queue().Add(bg, "q", 0, []string{"a"})
			return err
		},
	} {
		err := call()
		assert.ErrorContains(t, err, "its migrations were not run (migrations.Up), or the table "+
			"was dropped since: restore a backup", name)
		assert.ErrorIs(t, err, driver.ErrPermanent, "%s, as on PostgreSQL", name)
		assert.ErrorContains(t, err, s.Path(), name)
	}
	tx := begin(t, s.DB())
	assert.ErrorIs(t, s.Fence(bg, tx, driver.Ref{}), driver.ErrNoFence)
	assert.ErrorIs(t, s.Fence(bg, (*sql.Tx)(nil), driver.Ref{}), driver.ErrNoFence)
	_, err := s.Named().Fence(bg, tx, namedlock.Ref{Key: lockA}, time.Minute)
	assert.ErrorIs(t, err, driver.ErrNoFence)
}

func TestOpenerMigrates(t *testing.T) {
	open := Opener(filepath.Join(t.TempDir(), "folder", "app.db"))
	store, err := open(bg)
	require.NoError(t, err)
	cleanUp(t, store.(*Store))
	_, err = store.Look(bg)
	assert.NoError(t, err)

	_, err = Opener(t.TempDir())(bg)
	assert.ErrorContains(t, err, "is a directory")
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := Open(bg, filepath.Join(t.TempDir(), "app.db"), WithClock(nil))
	assert.EqualError(t, err, "option WithClock: the clock is nil")
	_, err = openOn(bg, nil)
	assert.EqualError(t, err, "the *sql.DB is nil")
}

func TestUseRefusesAPoolOfOneConnectionWithTheLineToChange(t *testing.T) {
	db := appPool(t, "file:"+filepath.Join(t.TempDir(), "app.db"))
	db.SetMaxOpenConns(1)
	_, err := openOn(bg, db)
	require.ErrorContains(t, err,
		"write db.SetMaxOpenConns(2) before sqlite.Use(db), and the app still has one")
	db.SetMaxOpenConns(2)
	s, err := openOn(bg, db)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	assert.NoError(t, db.PingContext(bg), "the app's own pool stays open")
}

func TestUseRefusesADatabaseInMemory(t *testing.T) {
	s, err := openOn(bg, appPool(t, "file::memory:"))
	require.Nil(t, s)
	assert.EqualError(t, err,
		"the database is in memory: it cannot be shared, so it can lock nothing")
}

func TestAnExhaustedPoolOfTheAppHasNoEffect(t *testing.T) {
	t.Parallel()
	db := appPool(t, "file:"+unused(t)+"?_pragma=busy_timeout(500)")
	db.SetMaxOpenConns(4)
	s := storeOn(t, db)
	for range 3 { // one is ours
		conn, err := db.Conn(bg)
		require.NoError(t, err)
		defer conn.Close()
	}
	ctx := lasting(t, 30*time.Second)
	for name, op := range ops(ctx, s, acquire(t, s)) {
		_ = op() // whatever the database answers
		require.NoError(t, ctx.Err(), "%s waits for a connection", name)
	}
}

func TestALostConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	require.NoError(t, s.use(bg, func(_ context.Context, conn *sql.Conn) error {
		return conn.Close()
	}))
	_, err := s.Heartbeat(bg, ref, driver.StateLeading)
	if err != nil { // the loss is told once at the most
		_, err = s.Heartbeat(bg, ref, driver.StateLeading)
	}
	assert.NoError(t, err)
}

func TestAfterCloseNothingIsDone(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Look(bg)
	assert.ErrorContains(t, err, "was closed")
	_, err = s.Heartbeat(bg, ref, driver.StateLeading)
	assert.ErrorContains(t, err, "was closed")
	assert.NotErrorIs(t, err, driver.ErrLost)
}

func TestAMigrationThatFindsNoRoomSaysSo(t *testing.T) {
	d := newDisk(t, t.TempDir())
	s, err := d.open("a.db")
	require.NoError(t, err)
	d.failAt = d.tried + 1
	require.ErrorContains(t, s.Migrate(bg), "; the disk is full, or broken")
	require.NoError(t, s.Close())
}

func TestAnErrorIsExplainedOnce(t *testing.T) {
	s := &Store{files: &databaseFiles{path: "/data/app.db"}}
	for _, err := range []error{sqlite3.NOTADB, sqlite3.CORRUPT, sqlite3.FULL, sqlite3.READONLY,
		sqlite3.IOERR_WRITE, sqlite3.BUSY, driver.ErrLost,
		errors.New("no such table: scheduler_lock"),
		errors.New("no such table: named_locks"), errors.New("no such table: queue_tasks")} {
		explained := fmt.Errorf("somewhere: %w", s.explain(err))
		require.ErrorIs(t, explained, err)
		require.Equal(t, explained.Error(), s.explain(explained).Error())
	}
	require.ErrorContains(t, s.explain(sqlite3.FULL), "database /data/app.db: ")
	for _, err := range []error{sqlite3.FULL, sqlite3.IOERR_WRITE, sqlite3.IOERR_SHMSIZE} {
		require.ErrorContains(t, s.explain(err), "; the disk is full")
	}
	require.NoError(t, s.explain(nil))
}
