package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
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

	"example.com/schedlock/internal/child"
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
	raw, err := template()
	require.NoError(t, err)
	path := filepath.Join(quickDir(t), "app.db")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	return mustOpen(t, path, opts...)
}

// roomInMemory tells that /dev/shm is in memory, and has room.
var roomInMemory = func() bool { return false }

var onDisk = flag.Bool("sqlite.ondisk", false, "no database of the tests is in /dev/shm")

// quickDir is a folder in memory, where there is one: what is flushed is not
// waited for. Tests of files as such use t.TempDir.
func quickDir(t testing.TB) string {
	t.Helper()
	if *onDisk || !roomInMemory() {
		return t.TempDir()
	}
	parent, err := os.MkdirTemp("/dev/shm", "schedlock")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(parent)) })
	dir := filepath.Join(parent, "001")
	require.NoError(t, os.Mkdir(dir, 0o700))
	return dir
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
		"scheduler_runs", "scheduler_requests", "scheduler_pauses"} {
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
	_, err := s.Heartbeat(bg, ref, driver.StateLeading)
	assert.NoError(t, err)
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

// ops are all statements that the lock depends on.
func ops(s *Store, ref driver.Ref) map[string]func(context.Context) error {
	now := time.Now()
	return map[string]func(context.Context) error{
		"look": func(ctx context.Context) error { _, err := s.Look(ctx); return err },
		"acquire": func(ctx context.Context) error {
			v, err := s.Look(ctx)
			if err != nil {
				return err
			}
			_, err = s.Acquire(ctx, claimOf(v, nobody))
			return err
		},
		"heartbeat": func(ctx context.Context) error {
			_, err := s.Heartbeat(ctx, ref, driver.StateLeading)
			return err
		},
		"release": func(ctx context.Context) error {
			_, err := s.Release(ctx, ref, driver.EndReleased)
			return err
		},
		"jobs": func(ctx context.Context) error { _, err := s.Jobs(ctx); return err },
		"abandon": func(ctx context.Context) error {
			_, err := s.Abandon(ctx, ref, nil)
			return err
		},
		"decide": func(ctx context.Context) error {
			_, _, err := s.Decide(ctx, ref, ledger.Decision{Job: "j",
				Spec: "s", To: now, Start: now,
				Skipped: []ledger.Skip{{First: now.Add(-2 * time.Second),
					Last: now.Add(-time.Second), Count: 2, Reason: ledger.Missed}}})
			return err
		},
		"finish": func(ctx context.Context) error {
			_, err := s.Finish(ctx, ledger.Run{ID: 1, Term: ref.Term, Attempt: 1},
				ledger.End{Status: ledger.Done})
			return err
		},
		"retry": func(ctx context.Context) error {
			_, _, err := s.Retry(ctx, ref, ledger.Run{ID: 2, Attempt: 1})
			return err
		},
		"give up": func(ctx context.Context) error {
			_, err := s.GiveUp(ctx, ref, ledger.Run{ID: 2, Attempt: 1})
			return err
		},
		"run": func(ctx context.Context) error {
			_, _, err := s.Run(ctx, "k", noon)
			return err
		},
		"retries": func(ctx context.Context) error { _, err := s.Retries(ctx); return err },
		"inbox":   func(ctx context.Context) error { _, err := s.Pending(ctx); return err },
		"trigger": func(ctx context.Context) error {
			_, err := s.Trigger(ctx, ledger.Action{Job: "k", By: "me"})
			return err
		},
		"answer": func(ctx context.Context) error {
			_, _, err := s.Answer(ctx, ref, ledger.Request{Action: ledger.Action{Job: "k"},
				At: noon}, "")
			return err
		},
		"pause": func(ctx context.Context) error {
			_, err := s.Pause(ctx, ledger.Action{Job: "k", By: "me"})
			return err
		},
		"resume": func(ctx context.Context) error {
			_, err := s.Resume(ctx, "k", "me")
			return err
		},
		"prune": func(ctx context.Context) error {
			_, err := s.Prune(ctx, "k", 0, 10)
			return err
		},
	}
}

// seed gives the ledger's operations something to do: a run in progress, one
// that is owed an attempt, one that another term left, and a request.
func seed(t testing.TB, conn *sql.Conn, ref driver.Ref) {
	t.Helper()
	run(t, conn, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
		VALUES ('k', 's', ?1, ?1)`, formatTime(noon))
	for i, r := range []struct {
		status  ledger.Status
		term    int64
		retryAt time.Time
	}{{ledger.InProgress, ref.Term, time.Time{}}, {ledger.Failed, ref.Term,
		noon}, {ledger.InProgress, 1, time.Time{}}} {
		run(t, conn, `INSERT INTO scheduler_runs
			(id, job, scheduled_at, started_at, status, term, pid, hostname, attempt, retry_at)
			VALUES (?1, 'k', ?2, ?2, ?3, ?4, 1, 'h', 1, ?5)`,
			i+1, formatTime(noon.Add(time.Duration(i-5)*time.Hour)),
			string(r.status), r.term, formatOptional(r.retryAt))
	}
	run(t, conn, `INSERT INTO scheduler_requests VALUES ('k', ?1, 'me', '')`, formatTime(noon))
}

// A loser that keeps the write lock starves the leader's heartbeat.
func TestNoOperationLeavesAWriteLockBehindHoweverItEnds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	other := foreign(t, s)
	ref := acquire(t, s, nobody)
	cancelled := 0
	for i := range 50 {
		for name, op := range ops(s, ref) {
			ctx, cancel := context.WithCancel(bg)
			done := make(chan struct{})
			go func() {
				defer close(done)
				wait := time.Duration(rand.IntN(1500)) * time.Microsecond
				for end := time.Now().Add(wait); time.Now().Before(end); {
				}
				cancel()
			}()
			err := op(ctx)
			wantNoWriteLock(t, other, fmt.Sprintf("%s %d (%v)", name, i, err))
			<-done
			if errors.Is(err, sqlite3.INTERRUPT) {
				require.ErrorIs(t, err, context.Canceled, name)
			}
			if errors.Is(err, context.Canceled) {
				cancelled++
			}
			if i%5 == 0 { // the next ones have something to do
				run(t, other,
					`DELETE FROM scheduler_jobs;
					DELETE FROM scheduler_runs;
					DELETE FROM scheduler_requests`)
				ref = acquire(t, s, nobody)
				seed(t, other, ref)
			}
		}
	}
	t.Logf("%d of 900 were cancelled under way", cancelled)
	require.Positive(t, cancelled)
	// The store works after all that.
	ref = acquire(t, s, nobody)
	_, err := s.Heartbeat(bg, ref, driver.StateLeading)
	require.NoError(t, err)
}

func TestAnOperationThatFailsInTheMiddleIsRolledBack(t *testing.T) {
	t.Parallel()
	for how, raise := range map[string]string{"the statement fails": "RAISE(ABORT, 'sabotage')",
		"SQLite rolls back itself": "RAISE(ROLLBACK, 'sabotage')"} {
		for name, when := range map[string]string{
			"acquire":   "BEFORE INSERT ON scheduler_terms",
			"release":   "BEFORE UPDATE OF ended_at ON scheduler_terms",
			"heartbeat": "AFTER UPDATE OF heartbeat_at ON scheduler_lock",
			"decide":    "BEFORE INSERT ON scheduler_runs WHEN NEW.status = 'in_progress'",
			"finish":    "BEFORE UPDATE ON scheduler_jobs",
			"abandon":   "BEFORE UPDATE ON scheduler_jobs",
			"retry":     "AFTER UPDATE ON scheduler_runs",
			"answer":    "BEFORE INSERT ON scheduler_runs",
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				s := newStore(t)
				other := foreign(t, s)
				ref := acquire(t, s, nobody)
				seed(t, other, ref)
				run(t, other, `CREATE TRIGGER sabotage `+when+` BEGIN SELECT `+raise+`; END`)
				before := dump(t, other)
				for range 3 {
					require.ErrorContains(t, ops(s, ref)[name](bg), "sabotage")
					wantNoWriteLock(t, other, name)
				}
				assert.Equal(t, before, dump(t, other))
				run(t, other, `DROP TRIGGER sabotage`)
				assert.NoError(t, ops(s, ref)[name](bg))
			})
		}
	}
}

func TestAForeignWriterIsReportedInHalfASecond(t *testing.T) {
	t.Parallel()
	each := func(t *testing.T, name string) {
		t.Parallel()
		s := newStore(t)
		ref := acquire(t, s, nobody)
		op := ops(s, ref)[name]
		other := foreign(t, s)
		run(t, other, `BEGIN IMMEDIATE`)
		switch name {
		case "look", "jobs", "run", "retries", "inbox":
			assert.NoError(t, op(bg), "%s only reads", name)
			return
		}
		begin := time.Now()
		err := op(bg)
		took := time.Since(begin)
		assert.ErrorIs(t, err, sqlite3.BUSY, name)
		assert.NotErrorIs(t, err, driver.ErrLost, name)
		assert.ErrorContains(t, err, s.Path(), name)
		assert.Greater(t, took, busyTimeout/2, "%s waits for a while", name)
		assert.Less(t, took, 20*busyTimeout, name)

		ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
		begin = time.Now()
		assert.Error(t, op(ctx), name)
		assert.Less(t, time.Since(begin), 20*busyTimeout, "%s respects its context", name)
		cancel()
		run(t, other, `ROLLBACK`)
		_, err = s.Heartbeat(bg, ref, driver.StateLeading)
		assert.NoError(t, err)
	}
	for name := range ops(nil, driver.Ref{}) {
		t.Run(name, func(t *testing.T) { each(t, name) })
	}
}

func TestAWaitForTheTurnEndsWithTheContext(t *testing.T) {
	s := newStore(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		s.use(bg, func(context.Context, *sql.Conn) error { close(inside); <-leave; return nil })
	})
	<-inside
	ctx, cancel := context.WithCancelCause(bg)
	cancel(errors.New("no patience"))
	_, err := s.Look(ctx)
	assert.ErrorContains(t, err, "no patience")
	close(leave)
	wg.Wait()
}

func TestAFileThatIsGoneOrReplacedIsLost(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, s *Store){
		"unlinked": func(t *testing.T, s *Store) { require.NoError(t, os.Remove(s.Path())) },
		"moved away": func(t *testing.T, s *Store) {
			require.NoError(t, os.Rename(s.Path(), s.Path()+".old"))
		},
		"its folder moved away": func(t *testing.T, s *Store) {
			dir := filepath.Dir(s.Path())
			require.NoError(t, os.Rename(dir, dir+".old"))
			t.Cleanup(func() { os.Rename(dir+".old", dir) })
		},
		"replaced by an older copy of itself": func(t *testing.T, s *Store) {
			raw, err := os.ReadFile(s.Path() + ".copy")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(s.Path()+".new", raw, 0o600))
			require.NoError(t, os.Rename(s.Path()+".new", s.Path()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			run(t, foreign(t, s), `VACUUM INTO '`+s.Path()+`.copy'`)
			ref := acquire(t, s, nobody)
			_, err := s.Heartbeat(bg, ref, driver.StateLeading)
			require.NoError(t, err)
			harm(t, s)
			before := listing(t, filepath.Dir(filepath.Dir(s.Path())))
			wal, _ := os.ReadFile(s.Path() + "-wal") // not there if its folder was moved

			_, err = s.Heartbeat(bg, ref, driver.StateLeading)
			require.ErrorIs(t, err, driver.ErrLost)
			changed, ok := errors.AsType[*FileChangedError](err)
			require.True(t, ok)
			assert.Equal(t, s.Path(), changed.Path)
			assert.Equal(t, name != "replaced by an older copy of itself",
				errors.Is(err, os.ErrNotExist))
			assert.ErrorContains(t, err, s.Path())
			for name, op := range ops(s, ref) {
				err := op(bg)
				switch name {
				case "look", "acquire", "decide", "heartbeat", "abandon", "finish", "retry",
					"give up", "trigger", "answer", "pause", "resume", "prune":
					assert.ErrorAs(t, err, &changed, name)
				case "release":
					assert.NoError(t, err, "the row went with its file")
				}
			}
			now, _ := os.ReadFile(s.Path() + "-wal")
			assert.True(t, bytes.Equal(wal, now), "pages were written beside another file")
			assert.Equal(t, before, listing(t, filepath.Dir(filepath.Dir(s.Path()))),
				"nothing was created in its place")
		})
	}
}

func TestTwentyOpenOneNewFileAtOnce(t *testing.T) {
	t.Parallel()
	const n = 20
	for range 3 {
		path := filepath.Join(t.TempDir(), "deep", "app.db")
		start := make(chan struct{})
		var wg sync.WaitGroup
		stores, errs := make([]*Store, n), make([]error, n)
		for i := range n {
			wg.Go(func() {
				<-start
				if stores[i], errs[i] = Open(bg, path); errs[i] == nil {
					errs[i] = stores[i].Migrate(bg)
				}
			})
		}
		close(start)
		wg.Wait()
		for i, err := range errs {
			assert.NoError(t, err)
			if stores[i] != nil {
				assert.NoError(t, stores[i].Close())
			}
		}
	}
}

// As when another program has just begun to fill the file: SQLite does not
// wait by itself where the journal mode is set.
func TestOpenWaitsForWhoeverHoldsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db, err := sqlite3driver.Open("file:" + path)
	require.NoError(t, err)
	defer db.Close()
	conn, err := db.Conn(bg)
	require.NoError(t, err)
	defer conn.Close()
	run(t, conn, `CREATE TABLE theirs (x)`)
	run(t, conn, `BEGIN EXCLUSIVE`)

	short, cancel := context.WithTimeout(bg, 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err = Open(short, path)
	require.Error(t, err)
	assert.Less(t, time.Since(begin), 20*time.Second)

	opened := make(chan error, 1)
	go func() {
		s, err := Open(bg, path)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(3 * busyTimeout): // longer than one statement waits
	}
	run(t, conn, `COMMIT`)
	assert.NoError(t, <-opened)
}

func init() {
	child.Modes["store open"] = func() {
		fmt.Println("ready")
		io.ReadFull(os.Stdin, make([]byte, 1))
		s, err := Open(bg, os.Args[1])
		if err == nil {
			err = s.Migrate(bg)
		}
		if err == nil {
			_, err = s.Look(bg)
		}
		fmt.Println(err)
	}
}

func TestTwentyProcessesOpenOneNewFileAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deep", "app.db")
	var children []*child.Process
	for range 20 {
		children = append(children, child.Start(t, "store open", path))
	}
	for _, c := range children {
		require.Equal(t, "ready", c.Line())
	}
	for _, c := range children {
		c.Say("go")
	}
	for _, c := range children {
		assert.Equal(t, "<nil>", c.Line())
	}
}

func TestTimes(t *testing.T) {
	at := time.Date(2026, 3, 1, 13, 0, 0, 120456789, time.FixedZone("", 3600))
	assert.Equal(t, "2026-03-01T12:00:00.120456Z", formatTime(at))
	assert.Equal(t, sql.NullString{}, formatOptional(time.Time{}))
	for text, want := range map[string]time.Time{
		"2026-03-01T12:00:00.120456Z":      at.Truncate(time.Microsecond),
		"2026-03-01T12:00:00Z":             at.Truncate(time.Second),
		"2026-03-01T13:00:00.120456+01:00": at.Truncate(time.Microsecond),
		"2026-03-01 12:00:00":              at.Truncate(time.Second),
		"2026-03-01 12:00:00.12":           at.Truncate(10 * time.Millisecond),
	} {
		got, err := parseTime(text)
		require.NoError(t, err)
		assert.True(t, got.Equal(want), text)
		assert.Equal(t, time.UTC, got.Location())
	}
	for _, text := range []string{"", "yesterday", "2026-13-01T12:00:00Z",
		strings.Repeat("9", 1000)} {
		_, err := parseTime(text)
		assert.ErrorContains(t, err, "is not of the form")
		assert.Zero(t, stamp(text))
	}
	for ms, want := range map[int64]time.Duration{-1: 0, 0: 0, 1: time.Millisecond,
		1 << 62: 24 * time.Hour} {
		assert.Equal(t, want, fromMillis(ms))
	}
}

// A web page that looks at the history must not put an empty database where
// the old one was.
func TestADeletedFileIsNotMadeAnewByAConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := mustOpen(t, path)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		require.NoError(t, os.Remove(path+suffix))
	}
	s.DB().SetMaxIdleConns(0) // those that come are new
	for range 10 {
		_, _ = s.Runs(t.Context(), "", 1)
		_, _ = s.Look(t.Context())
	}
	require.NoFileExists(t, path)
}
