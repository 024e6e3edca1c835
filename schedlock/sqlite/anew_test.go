//go:build unix

package sqlite

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/missing"
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

func countNotes(t testing.TB, s *Store) int {
	t.Helper()
	return ask[int](t, s.DB(), `SELECT count(*) FROM notes`)
}

// openedAnew waits until a store works on files that are in place.
func openedAnew(t *testing.T, s *Store) {
	t.Helper()
	eventually(t, "it is opened anew", func() bool {
		return s.files.check() == nil && s.DB().PingContext(bg) == nil
	})
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
				openedAnew(t, s)
				assert.Equal(t, 1, countNotes(t, s))
				row := look(t, s).Row
				require.NotNil(t, row)
				assert.Equal(t, lease.Term(), row.Term)
			}
			// The term is over, although its row is still there.
			_, err := a.Heartbeat(bg, lease.Ref(), driver.StateLeading)
			assert.ErrorIs(t, err, driver.ErrLost)
			require.NoError(t, lease.Release(bg))
			assert.Equal(t, "ok", ask[string](t, b.DB(), `PRAGMA integrity_check`))
		})
	}
}

// One of them is the last one, and sees to it that nothing is lost.
func TestConnectionsToRemovedFilesMayBeClosedAtOnce(t *testing.T) {
	missing.Long(t, "makes 20 databases")
	t.Parallel()
	for range 20 {
		s := newStore(t)
		keepNote(t, s)
		var conns [2]*sql.Conn
		for i := range conns {
			var err error
			conns[i], err = s.DB().Conn(bg)
			require.NoError(t, err)
		}
		removeBeside(t, s.Path(), "-wal")
		eventually(t, "it notices", func() bool { return s.CheckFile() != nil })
		var closed sync.WaitGroup
		for _, conn := range conns {
			closed.Go(func() { _ = conn.Close() })
		}
		closed.Wait()
		openedAnew(t, s)
		require.Equal(t, 1, countNotes(t, s))
		require.NoError(t, s.Close())
	}
}

// What the old connections know would spoil what others have written since.
func TestARemovedWALFileThatCannotBeWrittenAnewIsTold(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	keepNote(t, s)
	require.NoError(t, s.Warning())
	inTheWay := s.Path() + "-wal.new" // of the copy
	require.NoError(t, os.MkdirAll(filepath.Join(inTheWay, "full"), 0o700))
	removeBeside(t, s.Path(), "-wal")
	eventually(t, "it says that data is lost", func() bool {
		_ = s.DB().PingContext(bg)
		return errors.As(s.Warning(), new(*UnsavedError))
	})
	require.ErrorIs(t, s.Warning(), driver.ErrWarning)
	assert.ErrorContains(t, s.Warning(), s.Path()+"-wal was removed and could not be written anew")
	assert.ErrorContains(t, s.Warning(), "check the app's data, then restart")
}

// Whoever may write to the folder may have put it there, for root to follow.
func TestWhatLiesInTheWayOfAWALFileIsNotFollowed(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("theirs"), 0o600))
	for name, put := range map[string]func(path string) error{
		"a link": func(path string) error { return os.Symlink(other, path) },
		"a name": func(path string) error { return os.Link(other, path) },
		"a pipe": func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"a file": func(path string) error { return os.WriteFile(path, []byte("old"), 0o400) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			keepNote(t, s)
			require.NoError(t, put(s.Path()+"-wal.new"))
			removeBeside(t, s.Path(), "-wal")
			openedAnew(t, s)
			assert.Equal(t, 1, countNotes(t, s))
			content, err := os.ReadFile(other)
			require.NoError(t, err)
			assert.Equal(t, "theirs", string(content))
		})
	}
}

func TestAConnectionToRemovedFilesLeavesWhatOthersHaveWritten(t *testing.T) {
	missing.Long(t, "makes six databases")
	t.Parallel()
	for _, suffixes := range []string{"-shm", "-wal -shm"} { // without -wal alone it cannot read
		for _, others := range []string{"stay", "go", "go, and somebody removes their files too"} {
			t.Run(suffixes+", the others "+others, func(t *testing.T) {
				t.Parallel()
				s := newStore(t)
				keepNote(t, s)
				// An app's transaction keeps a connection open.
				tx := begin(t, s.DB())
				_, err := tx.Exec(`INSERT INTO notes VALUES (2)`)
				require.NoError(t, err)
				removeBeside(t, s.Path(), strings.Fields(suffixes)...)
				eventually(t, "it notices", func() bool { return s.CheckFile() != nil })

				// A program that knows nothing of this module.
				db := appPool(t, "file:"+s.Path()+"?_pragma=busy_timeout(5000)")
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
				openedAnew(t, s)
				assert.Equal(t, "ok", ask[string](t, s.DB(), `PRAGMA integrity_check`))
				assert.Equal(t, 1, ask[int](t, s.DB(), `SELECT count(*) FROM theirs`))
			})
		}
	}
}

func TestWhileFilesAreLostNothingIsWritten(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	tx, err := s.DB().BeginTx(bg, &sql.TxOptions{ReadOnly: true}) // keeps a connection open
	require.NoError(t, err)
	ask[int](t, tx, `SELECT count(*) FROM scheduler_lock`)
	removeBeside(t, s.Path(), "-wal", "-shm")
	eventually(t, "it notices", func() bool { return s.CheckFile() != nil })
	before := listing(t, filepath.Dir(s.Path()))
	for name, op := range ops(bg, s, ref) {
		err := op()
		if name == "release" {
			assert.NoError(t, err, "the row went with its file")
			continue
		}
		assert.ErrorContains(t, err, "-wal was removed", name)
	}
	err = s.DB().PingContext(bg)
	assert.ErrorContains(t, err, "connections that were not returned yet: 1")
	assert.Equal(t, before, listing(t, filepath.Dir(s.Path())), "nothing was made")
	require.NoError(t, tx.Rollback())
	openedAnew(t, s)
}

// A newcomer with files of its own would be a second database.
func TestANewcomerWaitsUntilRemovedFilesAreGivenUp(t *testing.T) {
	missing.Long(t, "takes a second")
	t.Parallel()
	s := newStore(t)
	keepNote(t, s)
	tx := begin(t, s.DB())
	removeBeside(t, s.Path(), "-wal", "-shm", "-lease")
	_, err := Open(lasting(t, time.Second), s.Path())
	assert.ErrorContains(t, err, s.Path()+
		"-wal is missing while another process has the database open")
	assert.NoFileExists(t, s.Path()+"-wal")

	time.AfterFunc(10*time.Millisecond, func() { _ = tx.Rollback() })
	assert.Equal(t, 1, countNotes(t, mustOpen(t, s.Path())))
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
	missing.Long(t, "takes seconds")
	t.Parallel()
	s := newStore(t)
	log := &logtest.Log{}
	lock := newLock(t, s, schedlock.WithLogger(log.Logger()), schedlock.WithTTL(time.Minute),
		schedlock.WithHeartbeatInterval(time.Second))
	lease, err := lock.Acquire(bg)
	require.NoError(t, err)
	defer lock.Stop(bg)
	beat := func() { // each has a second, which a busy machine may not have
		t.Helper()
		eventually(t, "a heartbeat", func() bool { return lease.Heartbeat(bg) == nil })
	}
	require.NoError(t, os.Link(s.Path(), s.Path()+".hard"))
	beat()
	eventually(t, "the log has a line", func() bool { return log.Count("has 2 names") > 0 })
	for range 5 {
		time.Sleep(watchInterval / 4) // it looks, and has nothing new to say
		beat()
	}
	assert.Equal(t, 1, log.Count("has 2 names"))
	status := lock.Status()
	assert.True(t, status.Leader)
	assert.Contains(t, status.Reason, "has 2 names (hard links)")
	assert.NotContains(t, status.PublicReason(func(error) string { return "something" }), s.Path())
	require.NoError(t, os.Remove(s.Path()+".hard"))
	beat()
	assert.NotContains(t, lock.Status().Reason, "names")
}
