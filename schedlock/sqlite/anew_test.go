//go:build unix

package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// eventually waits for a condition, for far longer than it takes.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !cond(); time.Sleep(2 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "not within %v: %s", soon, what)
	}
}

// removeBeside removes files beside a database.
func removeBeside(t testing.TB, path string, suffixes ...string) {
	t.Helper()
	for _, suffix := range suffixes {
		require.NoError(t, os.Remove(path+suffix))
	}
}

// keepNote commits a row of the app's, which no checkpoint has moved out of the
// -wal file.
func keepNote(t testing.TB, s *Store) {
	t.Helper()
	_, err := s.DB().ExecContext(bg,
		`CREATE TABLE IF NOT EXISTS notes (n INTEGER); INSERT INTO notes VALUES (1)`)
	require.NoError(t, err)
}

func countNotes(s *Store) (n int, err error) {
	err = s.DB().QueryRowContext(bg, `SELECT count(*) FROM notes`).Scan(&n)
	return n, err
}

// Whoever has the removed file open is the only one who has what was committed.
func TestADatabaseWhoseSideFilesWereRemovedIsOpenedAnewAndHasLostNothing(t *testing.T) {
	t.Parallel()
	for _, suffixes := range []string{"-wal", "-shm", "-wal -shm", "-wal -shm -lease"} {
		t.Run(suffixes, func(t *testing.T) {
			t.Parallel()
			a := newStore(t)
			b := mustOpen(t, a.Path())
			keepNote(t, a)
			_, lease := lead(t, a)
			removeBeside(t, a.Path(), strings.Fields(suffixes)...)
			eventually(t, "the lease ends", func() bool { return lease.Err() != nil })
			for _, s := range []*Store{a, b} {
				eventually(t, "it is opened anew", func() bool {
					return s.files.check() == nil && s.DB().PingContext(bg) == nil
				})
				n, err := countNotes(s)
				require.NoError(t, err)
				assert.Equal(t, 1, n)
				row := look(t, s).Row
				require.NotNil(t, row)
				assert.Equal(t, lease.Term(), row.Term)
			}
			// The term is over, although its row is still there.
			_, err := a.Heartbeat(bg, lease.Ref(), driver.StateLeading)
			assert.ErrorIs(t, err, driver.ErrLost)
			require.NoError(t, lease.Release(bg))
			var result string
			require.NoError(t, b.DB().QueryRowContext(bg, `PRAGMA integrity_check`).Scan(&result))
			assert.Equal(t, "ok", result)
		})
	}
}

// What the old connections know would spoil what others have written since.
func TestARemovedWALFileThatCannotBeWrittenAnewIsTold(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	keepNote(t, s)
	require.NoError(t, s.Warning())
	require.NoError(t, os.Mkdir(s.Path()+"-wal.new", 0o700)) // in the way of the copy
	removeBeside(t, s.Path(), "-wal")
	eventually(t, "it says that data is lost", func() bool {
		_ = s.DB().PingContext(bg)
		return errors.As(s.Warning(), new(*UnsavedError))
	})
	require.ErrorIs(t, s.Warning(), driver.ErrWarning)
	assert.ErrorContains(t, s.Warning(), s.Path()+"-wal was removed and could not be written anew")
	assert.ErrorContains(t, s.Warning(), "check the app's data, then restart")
}

func TestAConnectionToRemovedFilesLeavesWhatOthersHaveWritten(t *testing.T) {
	t.Parallel()
	for _, suffixes := range []string{"-shm", "-wal -shm"} { // without -wal alone it cannot read
		for _, others := range []string{"stay", "go", "go, and somebody removes their files too"} {
			t.Run(suffixes+", the others "+others, func(t *testing.T) {
				t.Parallel()
				s := newStore(t)
				keepNote(t, s)
				// An app's transaction keeps a connection open.
				tx, err := s.DB().BeginTx(bg, nil)
				require.NoError(t, err)
				_, err = tx.Exec(`INSERT INTO notes VALUES (2)`)
				require.NoError(t, err)
				removeBeside(t, s.Path(), strings.Fields(suffixes)...)
				eventually(t, "it notices", func() bool { return s.CheckFile() != nil })

				// A program that knows nothing of this module.
				db, err := sqlite3driver.Open("file:" + s.Path() + "?_pragma=busy_timeout(5000)")
				require.NoError(t, err)
				defer db.Close()
				conn, err := db.Conn(bg)
				require.NoError(t, err)
				run(t, conn,
					`CREATE TABLE theirs (n INTEGER);
					INSERT INTO theirs VALUES (1);
					PRAGMA wal_checkpoint(PASSIVE)`)
				if others != "stay" {
					require.NoError(t, conn.Close())
					require.NoError(t, db.Close())
				}
				if others != "stay" && others != "go" {
					removeBeside(t, s.Path(), "-wal", "-shm")
				}
				assert.Error(t, tx.Commit(), "nobody else would find it")
				eventually(t, "it is opened anew", func() bool {
					return s.files.check() == nil && s.DB().PingContext(bg) == nil
				})
				for query, want := range map[string]string{`PRAGMA integrity_check`: "ok",
					`SELECT count(*) FROM theirs`: "1"} {
					var got string
					require.NoError(t, s.DB().QueryRowContext(bg, query).Scan(&got), query)
					assert.Equal(t, want, got, query)
				}
			})
		}
	}
}

func TestWhileFilesAreLostNothingIsWritten(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s, nobody)
	tx, err := s.DB().BeginTx(bg, &sql.TxOptions{ReadOnly: true}) // keeps a connection open
	require.NoError(t, err)
	var n int
	require.NoError(t, tx.QueryRow(`SELECT count(*) FROM scheduler_lock`).Scan(&n))
	removeBeside(t, s.Path(), "-wal", "-shm")
	eventually(t, "it notices", func() bool { return s.CheckFile() != nil })
	before := listing(t, s.Path()[:strings.LastIndex(s.Path(), "/")])
	for name, op := range ops(s, ref) {
		err := op(bg)
		if name == "release" {
			assert.NoError(t, err, "the row went with its file")
			continue
		}
		assert.ErrorContains(t, err, "-wal was removed", name)
	}
	err = s.DB().PingContext(bg)
	assert.ErrorContains(t, err, "connections that were not returned yet: 1")
	assert.Equal(t, before, listing(t, s.Path()[:strings.LastIndex(s.Path(), "/")]),
		"nothing was made")
	require.NoError(t, tx.Rollback())
	eventually(t, "it is opened anew", func() bool {
		return s.files.check() == nil && s.DB().PingContext(bg) == nil
	})
}

// A newcomer with files of its own would be a second database.
func TestANewcomerWaitsUntilRemovedFilesAreGivenUp(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	keepNote(t, s)
	tx, err := s.DB().BeginTx(bg, nil)
	require.NoError(t, err)
	removeBeside(t, s.Path(), "-wal", "-shm", "-lease")
	ctx, cancel := context.WithTimeout(bg, time.Second)
	defer cancel()
	_, err = Open(ctx, s.Path())
	require.Error(t, err)
	assert.ErrorContains(t, err, s.Path()+
		"-wal is missing while another process has the database open")
	assert.NoFileExists(t, s.Path()+"-wal")

	var wg sync.WaitGroup
	wg.Go(func() {
		b, err := Open(bg, s.Path())
		if !assert.NoError(t, err) {
			return
		}
		defer b.Close()
		n, err := countNotes(b)
		assert.NoError(t, err)
		assert.Equal(t, 1, n)
	})
	_ = tx.Rollback()
	wg.Wait()
}

func TestAnAppsPoolWhoseSideFilesWereRemovedAsksForARestart(t *testing.T) {
	t.Parallel()
	s := appStore(t)
	_, lease := lead(t, s)
	removeBeside(t, s.Path(), "-shm")
	wantLost(t, lease, s.Path()+"-shm")
	assert.ErrorContains(t, lease.Err(), "restart this process")
	raw, err := os.ReadFile(s.Path())
	require.NoError(t, err)
	_, err = s.Look(bg)
	assert.ErrorContains(t, err, "restart this process")
	require.NoError(t, lease.Release(bg))
	require.NoError(t, s.Close())
	now, err := os.ReadFile(s.Path())
	require.NoError(t, err)
	assert.True(t, bytes.Equal(raw, now), "the database file was written to")
}

func TestALeaderWhoseFileGetsASecondNameSaysSoAndLeadsOn(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var (
		mu  sync.Mutex
		log strings.Builder
	)
	logged := func() int {
		mu.Lock()
		defer mu.Unlock()
		return strings.Count(log.String(), "has 2 names")
	}
	lock, err := schedlock.New(s, schedlock.WithTTL(time.Minute),
		schedlock.WithHeartbeatInterval(time.Second),
		schedlock.WithLogger(slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(p)
		}), nil))))
	require.NoError(t, err)
	lease, err := lock.Acquire(bg)
	require.NoError(t, err)
	defer lock.Stop(bg)
	beat := func() { // each has a second, which a busy machine may not have
		t.Helper()
		eventually(t, "a heartbeat", func() bool { return lease.Heartbeat(bg) == nil })
	}
	require.NoError(t, os.Link(s.Path(), s.Path()+".hard"))
	beat()
	eventually(t, "the log has a line", func() bool { return logged() > 0 })
	for began := time.Now(); time.Since(began) < 5*250*time.Millisecond; { // it looks every 250 ms
		beat()
	}
	assert.Equal(t, 1, logged(), "once")
	status := lock.Status()
	assert.True(t, status.Leader)
	assert.Contains(t, status.Reason, "has 2 names (hard links)")
	assert.NotContains(t, status.PublicReason(func(error) string { return "something" }), s.Path())
	require.NoError(t, os.Remove(s.Path()+".hard"))
	beat()
	assert.NotContains(t, lock.Status().Reason, "names")
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
