//go:build unix

package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// lead makes a lock on a store and acquires it; nothing renews the lease.
func lead(t *testing.T, s *Store) (*schedlock.Lock, *schedlock.Lease) {
	t.Helper()
	lock := newLock(t, s)
	lease, err := lock.Acquire(bg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Stop(bg) })
	return lock, lease
}

// wantLost waits until a lease has ended because of a file.
func wantLost(t *testing.T, lease *schedlock.Lease, file string) {
	t.Helper()
	select {
	case <-lease.Done():
	case <-time.After(soon):
		require.FailNow(t, "it leads on", "without %s", file)
	}
	require.ErrorIs(t, lease.Err(), driver.ErrLost)
	changed, ok := errors.AsType[*FileChangedError](lease.Err())
	require.True(t, ok, "%v", lease.Err())
	assert.Equal(t, file, changed.Path)
}

// appStore is a store on a pool of the app's own.
func appStore(t *testing.T) *Store {
	t.Helper()
	return storeOn(t, appPool(t, "file:"+unused(t)+"?_pragma=busy_timeout(500)&_txlock=immediate"))
}

// Where nothing is heard of the files, a leader looks for itself, though the store did not before
// it led.
func TestALeaderLooksAtItsFilesByItself(t *testing.T) {
	missing.Long(t, "waits for a look")
	t.Parallel()
	s := newStore(t, func(s *Store) error { s.brief = true; return nil }) // nobody takes the ticks
	s.tick.Stop()
	lead(t, s)
	select {
	case <-s.tick.C:
	case <-time.After(10 * watchInterval):
		require.FailNow(t, "it does not look")
	}
}

func TestFilesThatWereLostAreGivenUpSoon(t *testing.T) {
	missing.Long(t, "waits for a look")
	t.Parallel()
	s := newStore(t, func(s *Store) error { s.brief = true; return nil })
	s.files.set().lose(&FileChangedError{Path: s.files.path + "-wal"})
	s.mu.Lock()
	s.retick()
	s.mu.Unlock()
	select {
	case <-s.tick.C:
	case <-time.After(5 * watchInterval):
		require.FailNow(t, "it waits as if nothing was lost")
	}
}

// The TTL is a minute and nobody sends a heartbeat: only the watch can tell.
func TestALeaderWhoseSideFilesAreTakenAwayLosesItsLeaseAtOnce(t *testing.T) {
	missing.Long(t, "makes 24 databases")
	t.Parallel()
	remove := func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }
	move := func(t *testing.T, path string) { require.NoError(t, os.Rename(path, path+".old")) }
	replace := func(t *testing.T, path string) {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path+".new", raw, 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	for how, harm := range map[string]func(*testing.T, string){"removed": remove, "moved": move,
		"replaced": replace} {
		for _, suffix := range []string{"-wal", "-shm", "-lease", ""} {
			for pool, open := range map[string]func(*testing.T) *Store{
				"": func(t *testing.T) *Store { return newStore(t) }, ", the app's pool": appStore,
			} {
				t.Run("app.db"+suffix+" "+how+pool, func(t *testing.T) {
					t.Parallel()
					s := open(t)
					if suffix == "-lease" {
						needProof(t, s)
					}
					lock, lease := lead(t, s)
					harm(t, s.Path()+suffix)
					wantLost(t, lease, s.Path()+suffix)
					assert.ErrorIs(t, lock.IsLeader(bg), schedlock.ErrNotLeader)
				})
			}
		}
	}
}

func TestOpenAndUseRefuseAFileWithTwoNames(t *testing.T) {
	t.Parallel()
	path := newStore(t).Path()
	require.NoError(t, os.Link(path, path+".hard"))
	want := func(err error) {
		t.Helper()
		require.Error(t, err)
		for _, text := range []string{path, "2 names", "-wal", "find "} {
			assert.ErrorContains(t, err, text)
		}
	}
	_, err := Open(bg, path)
	want(err)
	_, err = OpenExisting(bg, path)
	want(err)
	_, err = openOn(bg, appPool(t, "file:"+path))
	want(err)

	require.NoError(t, os.Remove(path+".hard"))
	mustOpen(t, path)
}

// twoFolders returns a link "current" that leads to the first of two folders
// with a database each, and what makes it lead to the second.
func twoFolders(t *testing.T) (dir string, swap func()) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, name := range []string{"one", "two"} {
		s := mustOpen(t, filepath.Join(dir, name, "app.db"))
		require.NoError(t, s.Migrate(bg))
	}
	require.NoError(t, os.Symlink("one", filepath.Join(dir, "current")))
	return dir, func() {
		require.NoError(t, os.Symlink("two", filepath.Join(dir, "next")))
		require.NoError(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current")))
	}
}

func TestAPathThatLeadsElsewhereIsAReplacedFile(t *testing.T) {
	t.Parallel()
	dir, swap := twoFolders(t)
	s := mustOpen(t, filepath.Join(dir, "current", "app.db"))
	require.NoError(t, s.Migrate(bg))
	_, lease := lead(t, s)
	swap()
	wantLost(t, lease, filepath.Join(dir, "one", "app.db"))
	for _, file := range []string{"current/app.db", "one/app.db", "two/app.db"} {
		assert.ErrorContains(t, s.CheckFile(), filepath.Join(dir, file))
	}
	_, err := s.Heartbeat(bg, lease.Ref(), driver.StateLeading)
	assert.ErrorIs(t, err, driver.ErrLost)
}

func TestAPoolOpensTheFileThatWasOpenedWhereverItsPathLeads(t *testing.T) {
	terms := func(s *Store) int {
		s.DB().SetMaxIdleConns(0) // the next connection is a new one
		list, err := s.Terms(bg, 10)
		require.NoError(t, err)
		return len(list)
	}
	t.Run("a link is switched", func(t *testing.T) {
		dir, swap := twoFolders(t)
		s := mustOpen(t, filepath.Join(dir, "current", "app.db"))
		acquire(t, s)
		swap()
		assert.Equal(t, 1, terms(s))
	})
	t.Run("the process changes its folder", func(t *testing.T) {
		dir, _ := twoFolders(t)
		t.Chdir(filepath.Join(dir, "one"))
		s := mustOpen(t, "app.db")
		ref := acquire(t, s)
		t.Chdir(filepath.Join(dir, "two"))
		assert.Equal(t, 1, terms(s))
		assert.NoError(t, s.CheckFile())
		beat(t, s, ref)
	})
}
