package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
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

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// soon is far more than anything takes that is to happen at once.
const soon = 30 * time.Second

var (
	bg     = context.Background()
	timing = driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
		HeartbeatInterval: 10 * time.Second}
	quiet  = slog.New(slog.DiscardHandler)
	nobody = driver.Owner{PID: 1, Hostname: "container"}
)

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

// newStore opens a new database that has its tables.
func newStore(t testing.TB, opts ...Option) *Store {
	t.Helper()
	return mustOpen(t, unused(t), opts...)
}

// unused is a database that has its tables, and that nobody has open, alone in its
// folder.
func unused(t testing.TB) string {
	t.Helper()
	raw, err := template()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	return path
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
	db, err := sqlite3driver.Open("file:" + (&url.URL{Path: s.Path()}).EscapedPath() +
		"?_pragma=busy_timeout(0)")
	require.NoError(t, err)
	conn, err := db.Conn(bg)
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		db.Close()
	})
	return conn
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
		rows, err := conn.QueryContext(bg, `SELECT * FROM `+table+` ORDER BY 1, 2`)
		require.NoError(t, err)
		columns, err := rows.Columns()
		require.NoError(t, err)
		for rows.Next() {
			values, dest := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				dest[i] = &values[i]
			}
			require.NoError(t, rows.Scan(dest...))
			fmt.Fprintln(&b, table, values)
		}
		require.NoError(t, rows.Err())
		rows.Close()
	}
	return b.String()
}

func look(t testing.TB, s *Store) driver.Snapshot {
	t.Helper()
	v, err := s.Look(bg)
	require.NoError(t, err)
	return v
}

// claimOf asks for what was judged, as one does who has watched it for its TTL.
func claimOf(judged driver.Snapshot, owner driver.Owner) driver.Claim {
	return driver.Claim{Ref: driver.Ref{Owner: owner, Token: driver.NewToken()},
		Timing: timing, Expected: judged, Reason: driver.EndExpired, Watched: true}
}

// acquire takes the lock as it is now.
func acquire(t testing.TB, s *Store, owner driver.Owner) driver.Ref {
	t.Helper()
	c := claimOf(look(t, s), owner)
	g, err := s.Acquire(bg, c)
	require.NoError(t, err)
	c.Ref.Term = g.Term
	return c.Ref
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

func beat(t testing.TB, s *Store, ref driver.Ref) {
	t.Helper()
	_, err := s.Heartbeat(bg, ref, driver.StateLeading)
	require.NoError(t, err)
}

// release gives back a lock that is held.
func release(t testing.TB, s *Store, ref driver.Ref) {
	t.Helper()
	deleted, err := s.Release(bg, ref, driver.EndReleased)
	require.NoError(t, err)
	require.True(t, deleted)
}

// newLock makes a lock on a store, with the default settings and without a log.
func newLock(t testing.TB, s *Store) *schedlock.Lock {
	t.Helper()
	lock, err := schedlock.New(s, schedlock.WithLogger(quiet))
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

func (c *stoppedClock) add(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
	return c.at
}

func TestEveryConnectionHasTheSettings(t *testing.T) {
	s := newStore(t)
	want := map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "500"}
	read := func(q interface {
		QueryRowContext(context.Context, string, ...any) *sql.Row
	}) map[string]string {
		got := map[string]string{}
		for name := range want {
			var value string
			require.NoError(t, q.QueryRowContext(bg, `PRAGMA `+name).Scan(&value))
			got[name] = value
		}
		return got
	}
	require.NoError(t, s.use(bg, func(_ context.Context, conn *sql.Conn) error {
		assert.Equal(t, want, read(conn))
		return nil
	}))
	var conns []*sql.Conn
	for range 3 { // as many as the pool has besides
		conn, err := s.DB().Conn(bg)
		require.NoError(t, err)
		conns = append(conns, conn)
		assert.Equal(t, want, read(conn))
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	// Two transactions of the pool do not fail each other at their first write.
	tx, err := s.DB().BeginTx(bg, nil)
	require.NoError(t, err)
	_, err = foreign(t, s).ExecContext(bg, `BEGIN IMMEDIATE`)
	assert.ErrorIs(t, err, sqlite3.BUSY, "the transaction began immediate")
	require.NoError(t, tx.Rollback())
}

func TestTheUsersOwnPragmasAreKept(t *testing.T) {
	s := mustOpen(t, "file:"+filepath.Join(t.TempDir(),
		"app.db")+"?_pragma=foreign_keys(1)&_pragma=busy_timeout(77)")
	require.NoError(t, s.Migrate(bg))
	for name, want := range map[string]string{"journal_mode": "wal", "foreign_keys": "1",
		"busy_timeout": "77"} {
		var got string
		require.NoError(t, s.DB().QueryRowContext(bg, `PRAGMA `+name).Scan(&got))
		assert.Equal(t, want, got, name)
	}
	ref := acquire(t, s, nobody)
	beat(t, s, ref)
}

func TestWithoutItsTablesADatabaseSaysWhatIsMissing(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "app.db"))
	_, err := s.Look(bg)
	require.ErrorContains(t, err, "its migrations were not run")
	require.ErrorIs(t, err, driver.ErrPermanent, "as on PostgreSQL")
	assert.ErrorContains(t, err, s.Path())
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
	db, err := sqlite3driver.Open("file:" + filepath.Join(t.TempDir(), "app.db"))
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	_, err = openOn(bg, db)
	require.ErrorContains(t, err,
		"write db.SetMaxOpenConns(2) before sqlite.Use(db), and the app still has one")
	db.SetMaxOpenConns(2)
	s, err := openOn(bg, db)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	assert.NoError(t, db.PingContext(bg), "the app's own pool stays open")
}

func TestUseRefusesADatabaseInMemory(t *testing.T) {
	db, err := sqlite3driver.Open("file::memory:")
	require.NoError(t, err)
	defer db.Close()
	s, err := openOn(bg, db)
	require.Nil(t, s)
	assert.EqualError(t, err,
		"the database is in memory: it cannot be shared, so it can lock nothing")
}

func TestAnExhaustedPoolOfTheAppHasNoEffect(t *testing.T) {
	db, err := sqlite3driver.Open("file:" + filepath.Join(t.TempDir(), "app.db") +
		"?_pragma=journal_mode(wal)&_pragma=busy_timeout(500)")
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxOpenConns(4)
	s, err := openOn(bg, db)
	require.NoError(t, err)
	cleanUp(t, s)
	require.NoError(t, s.Migrate(bg))
	for range 3 { // one is ours
		conn, err := db.Conn(bg)
		require.NoError(t, err)
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	// All that a leader does, without a connection to be had.
	ref := acquire(t, s, nobody)
	for range 50 {
		_, err := s.Heartbeat(ctx, ref, driver.StateLeading)
		require.NoError(t, err)
	}
	_, err = s.Abandon(ctx, ref, nil)
	require.NoError(t, err)
	_, err = s.Jobs(ctx)
	require.NoError(t, err)
	_, err = s.Retries(ctx)
	require.NoError(t, err)
	_, err = s.Pending(ctx)
	require.NoError(t, err)
	now := time.Now()
	run, started, err := s.Decide(ctx, ref, ledger.Decision{Job: "j",
		Spec: "s", To: now, Start: now})
	require.NoError(t, err)
	require.True(t, started)
	_, err = s.Finish(ctx, run, ledger.End{Status: ledger.Failed, RetryAt: now})
	require.NoError(t, err)
	_, started, err = s.Retry(ctx, ref, run)
	require.NoError(t, err)
	require.True(t, started)
	_, found, err := s.Run(ctx, "j", now)
	require.NoError(t, err)
	require.True(t, found)
	request, err := s.Trigger(ctx, ledger.Action{Job: "j", By: "me"})
	require.NoError(t, err)
	_, started, err = s.Answer(ctx, ref, request, "")
	require.NoError(t, err)
	require.True(t, started)
	_, err = s.Prune(ctx, "j", 1, 1)
	require.NoError(t, err)
	deleted, err := s.Release(ctx, ref, driver.EndReleased)
	require.NoError(t, err)
	assert.True(t, deleted)
}

func TestALostConnectionIsReplaced(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
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
	s := newStore(t)
	ref := acquire(t, s, nobody)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Look(bg)
	assert.ErrorContains(t, err, "was closed")
	_, err = s.Heartbeat(bg, ref, driver.StateLeading)
	assert.ErrorContains(t, err, "was closed")
	assert.NotErrorIs(t, err, driver.ErrLost)
}
